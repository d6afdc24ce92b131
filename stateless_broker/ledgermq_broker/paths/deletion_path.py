"""Handle DeleteRecords: route the partitions of a request to their owners' bundles, with one
checkpoint per bundle.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.deletion import Before, Deleted
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.topics.topic import Topic

PARTITIONS_MAX = 10_000


class DeletionPath:
    def __init__(self, metadata: Metadata, ownership: Ownership) -> None:
        self._metadata = metadata
        self._ownership = ownership

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """Delete records; return results in the order of the request, each with its own error.

        Raises InvalidRequest, UnknownTopic, Unavailable.
        """
        if not 1 <= len(request.partitions) <= PARTITIONS_MAX:
            raise InvalidRequest(f"1 to {PARTITIONS_MAX} partitions in one request, not {len(request.partitions)}")
        wanted = {one.partition: _before(one) for one in request.partitions}
        if len(wanted) < len(request.partitions):
            raise InvalidRequest("a partition is named twice")
        lookup = self._metadata.lookup()
        results: dict[int, pb.DeletedRecords] = {}
        by_bundle: dict[int, dict[int, Before]] = {}
        topic = await lookup.find(request.topic, request.topic_id)
        for partition, before in wanted.items():
            try:
                topic, bundle = await lookup.partition(request.topic, partition, request.topic_id)
                by_bundle.setdefault(bundle, {})[partition] = before
            except LedgerMQError as error:
                results[partition] = pb.DeletedRecords(error=self._ownership.error(error))
        for found in await asyncio.gather(
            *(self._in_bundle(topic, *each, dry_run=request.dry_run) for each in by_bundle.items())
        ):
            results |= found
        return pb.DeleteRecordsResponse(results=[results[one.partition] for one in request.partitions])

    async def _in_bundle(
        self, topic: Topic, bundle: int, befores: dict[int, Before], *, dry_run: bool
    ) -> dict[int, pb.DeletedRecords]:
        try:
            owner = await self._ownership.owner(bundle)
            found = await owner.delete_records(topic, befores, dry_run=dry_run)
        except LedgerMQError as error:
            return {partition: pb.DeletedRecords(error=self._ownership.error(error, bundle)) for partition in befores}
        return {partition: self._result(deleted, bundle) for partition, deleted in found.items()}

    def _result(self, deleted: Deleted | LedgerMQError, bundle: int) -> pb.DeletedRecords:
        if isinstance(deleted, LedgerMQError):
            return pb.DeletedRecords(error=self._ownership.error(deleted, bundle))
        return pb.DeletedRecords(log_start_before=deleted.log_start_before, log_start=deleted.log_start)


def _before(wanted: pb.RecordsToDelete) -> Before:
    kind = wanted.WhichOneof("before")
    if kind == "offset":
        return wanted.offset
    if kind == "timestamp_us":
        return timedelta(microseconds=wanted.timestamp_us)
    if kind == "end" and wanted.end:
        return "end"
    raise InvalidRequest("a deletion needs a bound: an offset, a time or the end of the log")

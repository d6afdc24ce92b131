"""Describe the tables of topics, as the owner of partition 0 knows them, which keeps them; and empty dropped ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import all_of
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.tables.describe import ParquetEnds, PartitionFacts, TableFacts, describe_table
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.tables.follower import TableState
from ledgermq_ledger.tables.undecoded import find_undecoded
from ledgermq_ledger.topics.tables import check_has_table
from ledgermq_ledger.topics.topic import Topic

FOREIGN_MAX = 20
"""Keys of one answer."""
TABLES_MAX = 100
"""Tables of one answer."""
TABLES_AT_ONCE = 4
"""Tables whose logs are read at a time."""
RECORDS_MAX = 1000
"""Records with values that could not be decoded, of one answer."""
SEARCHES_AT_ONCE = 2
"""For such records: each decodes a row group's column of errors, and pieces of its values."""


class TablePath:
    def __init__(self, metadata: Metadata, ownership: Ownership, context: BundleContext) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._context = context
        self._searching = asyncio.Semaphore(SEARCHES_AT_ONCE)

    async def describe_table(self, request: pb.DescribeTableRequest) -> pb.DescribeTableResponse:
        """Raises UnknownTopic, InvalidRequest (the topic has no table), NotOwner, Unavailable, DataDamaged,
        FormatNotSupported, the store's errors.
        """
        return await self._described(request.topic, None)

    async def _described(self, name: str, ends: ParquetEnds | None) -> pb.DescribeTableResponse:
        topic, bundle = await self._metadata.lookup().partition(name, 0)
        check_has_table(topic)
        await self._ownership.owner(bundle)
        context = self._context
        facts = await describe_table(context.store, context.cluster.cluster_id, topic, ends)
        root = f"{context.store.url.rstrip('/')}/" if context.store.url else ""
        return _answer(topic, root, facts, context.tables.get((bundle, topic.name)))

    async def describe_lake(self, request: pb.DescribeLakeRequest) -> pb.DescribeLakeResponse:
        """Return a page of the tables whose first partition this broker owns. One that cannot be described says why."""
        limit = min(request.limit or TABLES_MAX, TABLES_MAX)
        topics = sorted(
            name
            for name, topic in self._context.catalog().topics_by_name.items()
            if name > request.after and _is_kept(topic) and topic.bundles[0] in self._ownership.opened
        )
        ends = ParquetEnds(self._context.store)
        tables = await all_of((self._lake_table(topic, ends) for topic in topics[:limit]), TABLES_AT_ONCE)
        return pb.DescribeLakeResponse(tables=tables, more=len(topics) > limit)

    async def _lake_table(self, topic: str, ends: ParquetEnds) -> pb.LakeTable:
        try:
            found = await self._described(topic, ends)
        except LedgerMQError as error:
            return pb.LakeTable(topic=topic, trouble=error.message)
        stopped = [each.stopped for each in found.partitions if each.stopped]
        table = pb.LakeTable(
            topic=topic,
            format=found.format,
            folder=found.folder,
            is_current=found.is_current,
            version_ms=found.version_ms,
            files=sum(each.files for each in found.partitions),
            rows=sum(each.rows for each in found.partitions),
            size_bytes=sum(each.size_bytes for each in found.partitions),
            missing=sum(max(0, each.parquet_end - each.end) for each in found.partitions),
            behind_ms=found.behind_ms,
            waits_for=found.waits_for,
            held_bytes=found.held_bytes,
            foreign_objects=found.foreign_objects,
            stopped=len(stopped),
            trouble=next(iter(stopped), ""),
        )
        if found.HasField("version"):
            table.version = found.version
        return table

    async def drop_table(self, request: pb.DropTableRequest) -> pb.DropTableResponse:
        """Any broker may. Raises UnknownTopic, InvalidRequest (the topic has its table yet), and what `empty_table`
        raises.
        """
        await self._metadata.catch_up()
        topic = await self._metadata.lookup().find(request.topic)
        if topic.internal or topic.settings.table_generation:
            raise InvalidRequest(
                f"topic {topic.name!r} has its table yet, or can have none: `ledgermq table drop` unsets it before"
            )
        context = self._context
        for bundle in sorted(topic.bundles_in_use):  # one without rounds may not know of it yet
            await bring_facts_into_force(replace(context.ledger(bundle), known=None), context.catalog())
        await empty_table(context.store, context.cluster, topic, context.sources)
        return pb.DropTableResponse()

    async def list_undecoded(self, request: pb.ListUndecodedRequest) -> pb.ListUndecodedResponse:
        """Any broker may. Raises UnknownTopic, UnknownPartition, InvalidRequest (the topic's values have no schemas),
        and what `find_undecoded` raises.
        """
        await self._metadata.catch_up()
        topic, _ = await self._metadata.lookup().partition(request.topic, request.partition, request.topic_id)
        if topic.internal or not topic.settings.value_schema_subject:
            raise InvalidRequest(
                f"the values of topic {topic.name!r} are not decoded: `ledgermq topic alter {topic.name} --set"
                " value.schema.subject=NAME` says by which schemas they are to be"
            )
        limit, context = min(request.limit or RECORDS_MAX, RECORDS_MAX), self._context
        async with self._searching:
            page = await find_undecoded(
                context.store, topic, request.partition, request.offset, limit, context.run_blocking
            )
        answer = pb.ListUndecodedResponse(
            topic_id=topic.id, partitions=topic.partitions, next_offset=page.next_offset, at_end=page.at_end
        )
        for each in page.found:
            answer.records.add(offset=each.offset, error=each.error, schema_id=each.schema_id)
        return answer


def _is_kept(topic: Topic) -> bool:
    return not topic.internal and topic.living and topic.settings.table_generation > 0


def _answer(topic: Topic, root: str, facts: TableFacts, state: TableState | None) -> pb.DescribeTableResponse:
    stopped = {} if state is None else state.stopped
    answer = pb.DescribeTableResponse(
        format=topic.settings.table_format,
        folder=facts.folder if "://" in facts.folder else root + facts.folder,
        generation=topic.settings.table_generation,
        is_current=facts.is_current,
        partitions=[
            _partition(partition, stopped.get(number, "")) for number, partition in enumerate(facts.partitions)
        ],
        waits_for="its owner has not looked at it yet",
    )
    if facts.version >= 0:
        answer.version, answer.oldest_held, answer.version_ms = facts.version, facts.oldest_held, facts.version_ms
    if state is not None:
        answer.waits_for = state.why
        answer.behind_ms = round(state.behind_s * 1000)
        answer.held_bytes = state.held_bytes
        answer.foreign_objects = len(state.foreign)
        answer.foreign.extend(state.foreign[:FOREIGN_MAX])
    return answer


def _partition(facts: PartitionFacts, stopped: str) -> pb.DescribedTablePartition:
    return pb.DescribedTablePartition(
        start=facts.start,
        end=facts.end,
        files=facts.files,
        rows=facts.rows,
        size_bytes=facts.size_bytes,
        parquet_end=facts.parquet_end,
        stopped=stopped,
    )

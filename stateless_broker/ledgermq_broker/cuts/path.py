"""Serve the calls about cuts: take, list, keep, drop, and the files that one names."""

from __future__ import annotations

import asyncio

from ledgermq.errors import InvalidRequest, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq_broker.cuts.holding import Holding
from ledgermq_broker.cuts.taking import Taking
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.cut import read_cut
from ledgermq_ledger.cuts.reading.root import RootAtCut, open_at_cut
from ledgermq_ledger.cuts.record import cut_in, cuts_in, dropped, encode, kept, key_of, taken_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger

KEEP_MS_MAX = 100 * 366 * 24 * 3600 * 1000
FILES_MAX = 1000
READ_BYTES = 2 * 1024 * 1024
"""Of one answer, about; a single batch may be larger."""
READS_AT_ONCE = 4
LEDGERS_KEPT = 4
NAME_CHARS_SHOWN = 300


class CutPath:
    def __init__(
        self,
        compaction: Compaction,
        metadata: Metadata,
        controller: Controller,
        at_controller: AtController,
        taking: Taking,
        holding: Holding,
        run_blocking: RunBlocking,
    ) -> None:
        self._compaction = compaction
        self._metadata = metadata
        self._controller = controller
        self._at_controller = at_controller
        self._taking = taking
        self._run_blocking = run_blocking
        self.hold_for_cut = holding.hold_for_cut
        self._opened: dict[tuple[int, int], FollowedLedger] = {}
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    async def take_cut(self, request: pb.TakeCutRequest) -> pb.TakeCutResponse:
        _check_keep(request.keep_ms)
        check_nonce(request.nonce)

        async def here() -> pb.TakeCutResponse:
            record = await self._taking.take(request.name, request.keep_ms, request.nonce)
            return pb.TakeCutResponse(cut=_info(record))

        return await self._at_controller.run(request, here, lambda line, passed: line.take_cut(passed))

    async def list_cuts(self, request: pb.ListCutsRequest) -> pb.ListCutsResponse:
        await self._metadata.catch_up()
        catalog = self._metadata.catalog
        if not request.name:
            return pb.ListCutsResponse(cuts=map(_info, cuts_in(catalog).values()))
        record = cut_in(catalog, request.name)
        info = _info(record)
        cut = await read_cut(self._compaction.store, record.id) if record.state == fmt.TAKEN else None
        for each in cut.bundles if cut is not None else ():
            info.bundles.add(bundle=each.bundle, base=each.base, slot=each.slot)
        return pb.ListCutsResponse(cuts=[info])

    async def keep_cut(self, request: pb.KeepCutRequest) -> pb.KeepCutResponse:
        _check_keep(request.keep_ms)

        async def here() -> pb.KeepCutResponse:
            now_ms = max(self._compaction.sources.now_ms(), await self._compaction.store.store_time_ms())
            until_ms = now_ms + request.keep_ms if request.keep_ms else 0

            def decide(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
                return [(key_of(request.name), encode(kept(catalog, request.name, until_ms)))]

            await self._controller.put_rules(decide)
            self._controller.wake()
            return pb.KeepCutResponse(cut=_info(cut_in(self._metadata.catalog, request.name)))

        return await self._at_controller.run(request, here, lambda line, passed: line.keep_cut(passed))

    async def drop_cut(self, request: pb.DropCutRequest) -> pb.DropCutResponse:
        async def here() -> pb.DropCutResponse:
            seen: list[fmt.CutRecord] = []

            def decide(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
                held = cut_in(catalog, request.name)
                seen[:] = [held]
                if request.id and held.id != request.id:
                    return []
                record = dropped(catalog, request.name)
                if record is None:
                    return []
                seen[:] = [record]
                return [(key_of(request.name), encode(record))]

            await self._controller.put_rules(decide)
            self._controller.wake()
            return pb.DropCutResponse(cut=_info(seen[0]))

        return await self._at_controller.run(request, here, lambda line, passed: line.drop_cut(passed))

    async def read_cut(self, request: pb.ReadCutRequest) -> pb.ReadCutResponse:
        await self._metadata.catch_up()
        record = taken_in(self._metadata.catalog, request.name)
        async with self._reading:
            at, topic = await self._topic_at(record, request.topic, request.partition)
            key = PartitionId(topic.id, request.partition)
            reader = (await self._ledger(at, topic.bundles[request.partition])).reader
            end = reader.end(key)
            start = reader.log_start(key)
            offset = max(request.offset, start)
            batches = await reader.read(key, offset, READ_BYTES, topic) if offset < end else []
        answer = pb.ReadCutResponse(start=start, end=end, next_offset=end, partitions=topic.partitions)
        for batch in batches:
            answer.batches.add(
                base_offset=batch.base_offset, record_count=batch.record_count, crc=batch.crc, data=bytes(batch.data)
            )
            answer.next_offset = batch.end
        return answer

    async def _ledger(self, at: RootAtCut, bundle: int) -> FollowedLedger:
        """Return a ledger that ends at the cut; a few are kept, because a client reads one in many calls."""
        which = at.store.cut.id, bundle
        ledger = self._opened.pop(which, None)
        if ledger is None:
            ledger = FollowedLedger(
                LedgerRef(at.store, bundle, at.cluster, self._compaction.sources), run_blocking=self._run_blocking
            )
            await ledger.open()
        self._opened[which] = ledger
        while len(self._opened) > LEDGERS_KEPT:
            del self._opened[next(iter(self._opened))]
        return ledger

    async def _topic_at(self, record: fmt.CutRecord, name: str, partition: int) -> tuple[RootAtCut, Topic]:
        at = await open_at_cut(self._compaction.store, self._compaction.cluster, record.id)
        topic = at.catalog.topics_by_name.get(name)
        if topic is None or topic.internal or not topic.living:
            raise UnknownTopic(f"cut {record.name!r} has no topic {name[:NAME_CHARS_SHOWN]!r}")
        if partition >= topic.partitions:
            raise UnknownPartition(
                f"topic {name!r} has partitions 0 to {topic.partitions - 1} at cut {record.name!r}, not {partition}"
            )
        return at, topic

    async def list_cut_files(self, request: pb.ListCutFilesRequest) -> pb.ListCutFilesResponse:
        await self._metadata.catch_up()
        record = taken_in(self._metadata.catalog, request.name)
        at, topic = await self._topic_at(record, request.topic, request.partition)
        part = await at.partition(PartitionId(topic.id, request.partition))
        files = [file for file in part.files if file.key > request.after]
        limit = min(request.limit or FILES_MAX, FILES_MAX)
        return pb.ListCutFilesResponse(
            files=[
                pb.CutFile(
                    key=file.key,
                    held_key=names.held(file.key),
                    first_offset=file.first_offset,
                    last_offset=file.last_offset,
                    size=file.size,
                )
                for file in files[:limit]
            ],
            more=len(files) > limit,
            start=part.start,
            parquet_end=part.parquet_end,
            end=part.end,
            partitions=topic.partitions,
            root=self._compaction.store.url,
        )


def _check_keep(keep_ms: int) -> None:
    if keep_ms > KEEP_MS_MAX:
        raise InvalidRequest(
            f"a cut is kept for at most 100 years, not for {keep_ms} ms; 0 keeps it until it is dropped"
        )


def _info(record: fmt.CutRecord) -> pb.CutInfo:
    return pb.CutInfo(
        name=record.name,
        id=record.id,
        status=pb.CutStatus.Name(record.state),
        begun_ms=record.begun_ms,
        taken_ms=record.taken_ms,
        until_ms=record.until_ms,
        reason=record.reason,
    )

"""Keep this broker's copy of the catalog up to date by following `__metadata`.

The records come from the controller (the owner of bundle 0), by an ordinary Fetch. If this broker
is the controller, they come from its own bundle. They come from the store only while there is no
controller. After `catch_up`, the copy holds everything that was acknowledged before the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from ledgermq.buffers import Buffer
from ledgermq.errors import LedgerMQError, OffsetOutOfRange, Unavailable, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.logs import get_logger
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.writing.shared_run import SharedRun
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import METADATA, Topic

FETCH_BYTES = 1024 * 1024
CATCH_UP_S_MAX = 3.0
PAUSE_FIRST_S = 0.05
PAUSE_S_MAX = 5.0

log = get_logger(__name__)

Source = BundleOwner | str
"""The bundle itself, if this broker owns it, otherwise the controller's address."""


class Metadata:
    """`source()` returns where `__metadata` is served now, None while no such broker is known.
    `connect(address)` returns a connection to another broker.

    `gives_hints()`: whether errors may name topics that a request did not name. `on_change` is called whenever
    the catalog has news.
    """

    def __init__(
        self,
        ledger: LedgerRef,
        source: Callable[[], Source | None],
        connect: Callable[[str], Connection],
        on_change: Callable[[], None],
        gives_hints: Callable[[], bool] = lambda: True,
    ) -> None:
        self.catalog = Catalog()
        self._notified_offset = 0
        self._ledger = ledger
        self._sources = ledger.sources
        self._source = source
        self._connect = connect
        self._on_change = on_change
        self._gives_hints = gives_hints
        self._followed: Source | None = None
        self._following: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._advanced = asyncio.Event()
        self._catch_up = SharedRun(self._catch_up_now)

    async def load(self) -> None:
        """Read the catalog from the store. Raises DataDamaged, Unavailable, the store's errors."""
        found = await read_catalog(self._ledger)
        if found.offset > self.catalog.offset:
            self.catalog = found
        self._notify()

    def ownership_changed(self) -> None:
        """Follow another source if it has changed."""
        source = self._source()
        if source == self._followed:
            return
        self._moved.set()
        if self._following is not None:
            self._following.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(self._sources, PAUSE_FIRST_S, PAUSE_S_MAX)
        while True:
            before = self.catalog.offset
            self._moved.clear()
            self._followed = self._source()
            task = self._following = asyncio.create_task(self._follow(self._followed), name="follow metadata")
            try:
                await asyncio.wait([task])
            finally:
                self._following = None
                task.cancel()
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                if not isinstance(error, LedgerMQError):
                    raise error
                log.info("metadata source lost", error=str(error))
                await self._reload()
            if self.catalog.offset > before:
                backoff.reset()
            await wait_for(self._moved, backoff.next_s())

    def lookup(self) -> Lookup:
        """Return what finds the topics that one request names."""
        return Lookup(self)

    async def catch_up(self) -> None:
        """Read everything that the controller had acknowledged before this call.

        Raises Unavailable if that is not possible now.
        """
        await self._catch_up.run()

    async def know(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Catch up if the catalog lacks one of these (topic, partition). Raises Unavailable."""
        topics = self.catalog.topics_by_name
        if any(name not in topics or partition >= topics[name].partitions for name, partition in partitions):
            await self.catch_up()

    async def pull(self, owner: BundleOwner) -> None:
        """Apply what the bundle itself holds and this broker has not read yet.

        Raises NotOwner, the store's errors.
        """
        while True:
            try:
                found = await owner.fetch(METADATA, 0, self.catalog.offset, FETCH_BYTES)
            except OffsetOutOfRange:
                await self.load()
                continue
            for batch in found.batches:
                self._apply(batch.base_offset, batch.crc, batch.data)
            self._notify()
            if self.catalog.offset >= found.high_watermark:
                return

    async def _catch_up_now(self) -> None:
        source = self._source()
        try:
            async with asyncio.timeout(CATCH_UP_S_MAX):
                if isinstance(source, BundleOwner):
                    await self.pull(source)
                    # Otherwise a fenced controller that has not noticed would miss newer topics.
                    await source.check_fence()
                elif source is None:
                    await self.load()
                else:
                    await self._wait_for(await self._latest_offset(source))
        except (LedgerMQError, TimeoutError) as error:
            why = str(error) or "time-out"
            raise Unavailable(f"topic metadata is not available yet: {why}", retry_after_ms=200) from error

    async def _latest_offset(self, address: str) -> int:
        query = pb.OffsetQuery(topic=keys.METADATA_TOPIC, partition=0, latest=True)
        answer = await self._connect(address).list_offsets(pb.ListOffsetsRequest(queries=[query]))
        result = answer.results[0]
        if result.HasField("error"):
            raise error_from_proto(result.error)
        return result.offset

    async def _wait_for(self, offset: int) -> None:
        while self.catalog.offset < offset:
            self._advanced.clear()
            await self._advanced.wait()

    async def _reload(self) -> None:
        try:
            await self.load()
        except LedgerMQError as error:
            log.warning("metadata cannot be read", error=str(error))

    async def _follow(self, source: Source | None) -> None:
        if source is None:
            await self.load()
        elif isinstance(source, BundleOwner):
            while source.lost is None:
                await self.pull(source)
                await source.wait_for_data({PartitionId(METADATA.id, 0): self.catalog.offset})
        else:
            await self._follow_controller(source)

    async def _follow_controller(self, address: str) -> None:
        wanted = pb.FetchPartition(topic=keys.METADATA_TOPIC, partition=0, offset=self.catalog.offset)
        request = pb.FetchRequest(partitions=[wanted], max_bytes=FETCH_BYTES)
        async with aclosing(self._connect(address).fetch(request)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                self._apply_frame(frame)
        raise Unavailable(f"the controller at {address} has closed the stream")

    def _apply_frame(self, frame: FetchFrame) -> None:
        payload = memoryview(b"".join(frame.payload))
        at = 0
        for partition in frame.header.partitions:
            if partition.HasField("error"):
                raise error_from_proto(partition.error)
            for batch in partition.batches:
                self._apply(batch.base_offset, batch.crc, payload[at : at + batch.length])
                at += batch.length
        self._notify()

    def _notify(self) -> None:
        self._advanced.set()
        self.catalog.hints = self._gives_hints()
        if self.catalog.offset != self._notified_offset:
            self._notified_offset = self.catalog.offset
            self._on_change()

    def _apply(self, base_offset: int, crc: int, data: Buffer) -> None:
        check_crc(data, crc)
        rows = decode_batch(data)
        for i, (key, value) in enumerate(
            zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        ):
            self.catalog.apply(base_offset + i, key or b"", value)


class Lookup:
    """The names in one request.

    It requests the controller's catalog at most once, however many names this broker does not know.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._has_asked = False

    async def find(self, name: str, topic_id: int = 0) -> Topic:
        """Return a live topic. Raises UnknownTopic, TopicBeingDeleted, Unavailable."""
        try:
            return self._known(name, topic_id)
        except UnknownTopic:
            if not await self._has_news():
                raise
        return self._known(name, topic_id)

    async def partition(self, name: str, partition: int, topic_id: int = 0) -> tuple[Topic, int]:
        """Return the topic and the partition's bundle. Also raises UnknownPartition."""
        topic = await self.find(name, topic_id)
        if partition >= topic.partitions and await self._has_news():
            topic = self._known(name, topic_id)
        if partition >= topic.partitions:
            raise UnknownPartition(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
        return topic, topic.bundles[partition]

    async def _has_news(self) -> bool:
        """Read the controller's catalog; return False if that was already done for this request."""
        if self._has_asked:
            return False
        await self._metadata.catch_up()
        self._has_asked = True
        return True

    def _known(self, name: str, topic_id: int) -> Topic:
        topic = self._metadata.catalog.living(name)
        if topic_id and topic.id != topic_id:
            raise UnknownTopic(
                f"topic {name!r} has the id {topic.id}, not {topic_id}: it was deleted and created again"
            )
        return topic

"""Change the catalog by appending to `__metadata`.

One change at a time: catch up with the log, decide on the catalog, append, wait until it is
durable, apply. So the ledger orders two controllers that race, and a change that was not
acknowledged may still have happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import Unavailable
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.runtime.tasks import retrieve_error
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger import keys
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, topic_key

T = TypeVar("T")


class Changes:
    """Changes by one broker, which are made while it owns bundle 0. `lacking(feature)` returns the brokers that are
    present without it.
    """

    def __init__(
        self,
        compaction: Compaction,
        metadata: Metadata,
        ownership: Ownership,
        lacking: Callable[[str], Sequence[Heartbeat]],
    ) -> None:
        self._compaction = compaction
        self._cluster = compaction.cluster
        self._sources = compaction.sources
        self._metadata = metadata
        self._ownership = ownership
        self._lacking = lacking
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._changes: set[asyncio.Task[Any]] = set()
        self.taking: set[int] = set()
        """The ids of the cuts that this controller takes at the moment."""
        self._pinned: set[int] = set()
        """The ids of cuts that are known to have their pins in this root."""

    def _bundles(self) -> int:
        """Return the number of bundles in force, by the catalog on which the change builds."""
        return self._metadata.catalog.bundles(self._cluster)

    def wake(self) -> None:
        """Look soon what is to be ended."""
        self._changed.set()

    def require(self, feature: str) -> None:
        """Raise Unavailable if a broker that is present lacks the feature."""
        for heartbeat in self._lacking(feature)[:1]:
            release = heartbeat.release or "a release that does not announce its number"
            raise Unavailable(
                f"{feature} need every broker, but broker {heartbeat.broker} at {heartbeat.address} runs {release}"
                " without them: upgrade or stop it, then retry",
                retry_after_ms=5000,
            )

    async def _change(self, decide: Callable[[Catalog], Topic]) -> Topic:
        return await self._to_its_end(self._change_now(decide))

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end even if its caller is cancelled: half a change would block the next one.

        The controller looks then whether there is something to end, such as a cut that no call takes any longer.
        """
        task = asyncio.create_task(change, name="change of metadata")
        self._changes.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self.wake())
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        retrieve_error(task)

    async def _change_now(self, decide: Callable[[Catalog], Topic]) -> Topic:
        async with self._lock:
            owner = await self._ready()
            wish = decide(self._metadata.catalog)
            await self._append(owner, topic_key(wish.name), encode_topic_record(wish, creation=wish.id < 0))
            self._changed.set()
            return self._metadata.catalog.topics_by_name[wish.name]

    async def _ready(self) -> BundleOwner:
        """Return bundle 0 with the catalog caught up.

        The first controller of a cluster writes record 0.
        """
        owner = await self._ownership.owner(keys.METADATA_BUNDLE)
        await self._metadata.pull(owner)
        if self._metadata.catalog.offset == 0:
            founding = Topic(METADATA.id, METADATA.name, METADATA.bundles, created_ms=self._sources.now_ms())
            await self._append(owner, topic_key(founding.name), encode_topic_record(founding, creation=True))
        return owner

    async def _append(self, owner: BundleOwner, key: bytes, value: bytes | None) -> None:
        await self._append_all(owner, [(key, value)])

    async def _append_all(self, owner: BundleOwner, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append the records as one batch, all or none."""
        now_us, rows = self._sources.now_us(), len(records)
        written, values = [key for key, _ in records], [value for _, value in records]
        columns = [written, values, [None] * rows, [now_us] * rows, [1] * rows, [None] * rows]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        data = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        batch = Batch(METADATA.id, 0, rows, crc32c(data), now_us, now_us, data)
        [done] = owner.produce([batch], durable=True)
        base_offset = await done
        for i, (key, value) in enumerate(records):
            self._metadata.catalog.apply(base_offset + i, key, value)

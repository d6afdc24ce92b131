"""Run level *keyed*: like level *rounds*, with rivals that clean a keyed topic beside those that
compact.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.topics.settings import parse_settings
from ledgermq_ledger.topics.topic import Topic, encode_topic_record
from tests.simulation.ambush import Ambush
from tests.simulation.history import FinalLog, Partition
from tests.simulation.keyed_watch import KeyedWatch
from tests.simulation.loop import SimulatedLoop
from tests.simulation.rounds_plan import BUNDLES
from tests.simulation.rounds_processes import PARTITIONS, Compactor, Founder, Owner, Worker, bundle_of, metadata_batch
from tests.simulation.rounds_run import RoundsRun

TOPIC = "latest"


class KeyedRun(RoundsRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        r = random.Random(f"keyed {seed}")
        self._settings = {
            "cleanup.policy": r.choice(("compact", "compact", "compact,delete")),
            "parquet.target.bytes": r.choice(("2048", "8192")),
            "parquet.max.lag.ms": "500",
            "delete.retention.ms": r.choice(("0", "10000", "100000")),
            "min.cleanable.dirty.ratio": r.choice(("0", "0.3")),
        }
        if r.random() < 0.7:
            self.rounds = replace(
                self.rounds, ambush=Ambush({r.choice(("versions", "keyed files", "parquet", "checkpoints")): 0.5})
            )
        self.keyed = KeyedWatch(self.world, TOPIC)
        self.world.judged_elsewhere.add(TOPIC)
        self.world.store.on_keyed = self.keyed.on_keyed

    def _processes(self) -> list[str]:
        return ["k", "r1", "r2", *super()._processes()]

    def _kind_of(self, name: str) -> type[Worker]:
        return {"k": KeyedProducer, "r1": Cleaner, "r2": Cleaner}.get(name) or super()._kind_of(name)

    async def _create_topics(self) -> None:
        await super()._create_topics()
        first = Founder(self.world, self.rounds, self.cluster, "keyed setup", 0)
        topic = Topic(
            0, TOPIC, tuple(bundle_of(p) for p in range(PARTITIONS)), self._settings, parse_settings(self._settings)
        )
        self.keyed.topic_id = await first.append(
            keys.METADATA_BUNDLE, metadata_batch(TOPIC, encode_topic_record(topic, creation=True))
        )
        self.world.topic_ids[TOPIC] = self.keyed.topic_id
        first.process.kill()

    def _on_parquet(self, changed: keys.ParquetName) -> None:
        super()._on_parquet(changed)
        self.keyed.on_parquet(changed)

    def _logs(self) -> dict[Partition, FinalLog]:
        """Without the keyed topic, which has a judge of its own."""
        for partition in range(PARTITIONS):
            self.keyed.look(PartitionId(self.keyed.topic_id, partition))
        return {
            partition: log
            for partition, log in super()._logs().items()
            if not partition[0].endswith(f"#{self.keyed.topic_id}")
        }


class KeyedProducer(Owner):
    """Few keys, again and again; some are removed."""

    _written = 0

    def pause_s(self) -> float:
        return 1 / (2 * self._plan.records_s)

    async def step(self) -> None:
        partition = self._random.randrange(PARTITIONS)
        rows = []
        for _ in range(self._random.choice((1, 2, 5))):
            self._written += 1
            value = (
                None if self._random.random() < 0.25 else b"%d" % self._written + b"." * self._random.choice((0, 300))
            )
            rows.append({"key": b"k%d" % self._random.randrange(8), "value": value})
        data = encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        now_us = self._sources.now_ms() * 1000
        batch = Batch(self._world.topic_ids[TOPIC], partition, len(rows), crc32c(data), now_us, now_us, data)
        await self.append(bundle_of(partition), batch)


class Cleaner(Compactor):
    """Beside the compactors, which clean only when they compact the whole root."""

    async def step(self) -> None:
        if self._known is None or self._random.random() >= self._plan.stale_catalog:
            self._known = await self._catalog()
        bundle = self._random.randrange(1, BUNDLES)
        bytes_max = self._random.choice((None, None, 4000))
        everything = self._random.random() < 0.7
        await clean_bundle(self._compaction, bundle, self._known, everything=everything, bytes_max=bytes_max)
        if self._random.random() < 0.1:
            catalog = await self._catalog()
            versions = await removed.find_versions(self._store, catalog)
            await removed.remove_versions(self._store, versions, catalog, BUNDLES)

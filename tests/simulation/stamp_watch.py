"""A topic with `message.timestamp.type = LogAppendTime`, in some runs of level cluster.

time goes back     a record of a partition has an earlier timestamp than one before it
time differs       a producer was told, a reader read, or a Parquet file has another time than the segment

Times are microseconds since the epoch. The segments as they were put are the truth. Where a batch has left the
memory of its owner before the answer, a producer is told its own time of the record: that is not judged.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pyarrow.parquet as pq

from tests.judges.violation import Violation
from tests.simulation.history import Partition
from tests.simulation.parquet_watch import parquet_names
from tests.simulation.stored_segments import times_of
from tests.simulation.world import World

TOPIC = "main"


def stamped_of(seed: int) -> bool:
    """Return whether brokers set the timestamps of the topic."""
    return random.Random(f"timestamps by brokers {seed}").random() < 0.4


class StampWatch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[tuple[int, int, int], str] = {}
        """By partition, offset and time: who told it first."""

    def told(self, who: str, partition: Partition, offset: int, time_us: int | None, own_us: int = 0) -> None:
        """Note a time that a client got. `own_us`: the one that the producer gave the record."""
        name, _, _ = partition[0].partition("#")
        if time_us == own_us:
            self._world.coverage.saw("a producer was told its own time", name == TOPIC)
        elif name == TOPIC and time_us is not None:
            self._told.setdefault((partition[1], offset, time_us), who)

    def judge(self, bundles: int) -> list[Violation]:
        stored = self._stored(bundles)
        found = []
        for partition, times in sorted(stored.items()):
            last_us = 0
            for offset, time_us in sorted(times.items()):
                if time_us < last_us:
                    text = f"{TOPIC}-{partition}: {offset} has {time_us}, {last_us - time_us} µs before an earlier one"
                    found.append(Violation("time goes back", text))
                last_us = max(last_us, time_us)
        for (partition, offset, time_us), who in self._told.items():
            known = stored[partition].get(offset)
            if known is not None and time_us != known:  # a record that is nowhere is judged elsewhere
                text = f"{TOPIC}-{partition} {offset}: {who} was told {time_us}, {known} is stored"
                found.append(Violation("time differs", text))
        self._world.coverage.saw("a time of the append was told", len(self._told))
        return found + self._judge_parquet(stored)

    def _stored(self, bundles: int) -> dict[int, dict[int, int]]:
        """Return the time of each record by partition and offset."""
        topic_id, store = self._world.topic_ids[TOPIC], self._world.store
        found: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for bundle in range(1, bundles):
            for segment in store.history(bundle):
                for entry in segment.index.batches if segment.valid else ():
                    if entry.topic_id == topic_id:
                        data = segment.data[entry.position : entry.position + entry.length]
                        found[entry.partition] |= dict(enumerate(times_of(data), entry.base_offset))
        return found

    def _judge_parquet(self, stored: dict[int, dict[int, int]]) -> list[Violation]:
        found = []
        for name in parquet_names(self._world):
            if name.topic_id != self._world.topic_ids[TOPIC]:
                continue
            file = pq.ParquetFile(self._world.store.reader(name.key))
            table = file.read(columns=["offset", "timestamp"], use_threads=False)
            times = table["timestamp"].cast("int64").to_pylist()
            for offset, time_us in zip(table["offset"].to_pylist(), times, strict=True):
                if time_us != stored[name.partition].get(offset):
                    text = f"{name.key}: {offset} has {time_us}, not {stored[name.partition].get(offset)}"
                    found.append(Violation("time differs", text))
        return found

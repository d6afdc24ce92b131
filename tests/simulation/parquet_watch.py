"""What a plain reader of `parquet/` would find, looked at whenever a file comes or goes and
whenever a checkpoint is put.

One gapless run of each partition; every file that the newest checkpoint lists from the log start
on; one topic under one name, and nothing of a topic whose name has been freed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.pages import PageReader
from tests.judges.violation import Violation
from tests.simulation.checker import judge_plain_read
from tests.simulation.history import FinalLog, Partition, PlainRead
from tests.simulation.watch import parquet_name
from tests.simulation.world import World

T = TypeVar("T")


class ParquetWatch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._live: dict[int, dict[tuple[int, int], tuple[tuple[int, int], ...]]] = defaultdict(dict)
        """bundle → (topic id, partition) → (first, last) of every file that must be there."""
        self._taken_over: dict[tuple[int, int], int] = defaultdict(int)
        """(topic id, partition) → the newest move with which another bundle has taken its files over."""

    def taken_over(self, key: PartitionId) -> int:
        """Return the newest move with which another bundle has taken a partition's files over; 0: none."""
        return self._taken_over[key]

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        """Its file lists, read in this very moment: in the store itself nothing takes time."""
        pages = PageReader(self._world.store, checkpoint.bundle)
        live = self._live[checkpoint.bundle]
        live.clear()
        removed = {note.topic_id for note in checkpoint.removed_topics}
        for part in checkpoint.partitions:
            key = PartitionId(part.topic_id, part.partition)
            if part.taken_over > self._taken_over[key]:
                self._taken_over[key] = part.taken_over
                self._world.coverage.saw("a file list was taken over")
                for other in self._live.values():
                    other.pop(key, None)
            if part.forgotten and part.frozen > self._taken_over[key]:
                self._report("forgotten too soon", f"bundle {checkpoint.bundle}: {key}, move {part.frozen}")
            if part.topic_id in removed or (part.frozen and part.frozen <= self._taken_over[key]):
                continue
            try:
                files = at_once(pages.files_from(part, max(part.log_start, part.parquet_start)))
            except LedgerMQError as error:
                if self._world.is_told_of(error):
                    continue
                text = f"bundle {checkpoint.bundle} checkpoint {checkpoint.number}: {error.message}"
                self._world.violations.append(Violation("file list", text))
                continue
            live[key] = tuple((file.first_offset, file.last_offset) for file in files)
            if files:
                self.on_parquet(_name_of(files[0].key))

    def on_parquet(self, changed: keys.ParquetName) -> None:
        """Of the partition that has just changed, and of its topic's name."""
        if not self._world.store.has(changed.key):
            self._world.coverage.saw("a Parquet file was deleted")
        folder = keys.hidden_topic(changed.topic_id) if changed.topic is None else keys.parquet_topic(changed.topic)
        names = [name for key in self._world.store.keys_now(folder) if (name := parquet_name(key))]
        key = PartitionId(changed.topic_id, changed.partition)
        same = [name for name in names if (name.topic_id, name.partition) == key]
        files = tuple(sorted((name.first_offset, name.last_offset) for name in same))
        live = next((found[key] for found in self._live.values() if key in found), ())
        read = PlainRead((f"{changed.topic or 'hidden'}#{changed.topic_id}", changed.partition), files, live)
        self._world.violations += judge_plain_read(read)
        creations = {name.topic_id for name in names}
        if len(creations) > 1:
            self._report("two topics under one name", f"{changed.topic}: ids {sorted(creations)}, {changed.key}")
        if creations & self._world.freed:
            self._report(
                "file of a freed name", f"{changed.topic}: ids {sorted(creations & self._world.freed)}, {changed.key}"
            )

    def look_at_all(self) -> None:
        for name in parquet_names(self._world):
            self.on_parquet(name)

    def _report(self, kind: str, text: str) -> None:
        self._world.violations.append(Violation(kind, text))


def _name_of(key: str) -> keys.ParquetName:
    name = parquet_name(key)
    assert name is not None, key
    return name


def parquet_names(world: World) -> Iterator[keys.ParquetName]:
    for key in world.store.keys_now(keys.PARQUET):
        name = parquet_name(key)
        if name is not None:
            yield name


def judge_parquet(world: World, logs: dict[Partition, FinalLog], whole: Collection[Partition]) -> list[Violation]:
    """Every record that plain readers find now is the one that the log has; of the partitions
    `whole` they find all that is kept.
    """
    found: defaultdict[Partition, dict[int, str]] = defaultdict(dict)
    times: defaultdict[Partition, _Appended] = defaultdict(lambda: _Appended(world.sources("true time").now_us()))
    violations = []
    for name in parquet_names(world):
        if name.key == world.damaged or name.topic in world.judged_elsewhere:
            continue  # pyarrow may end the process on it
        partition = (f"{name.topic}#{name.topic_id}", name.partition)
        table = pq.ParquetFile(world.store.reader(name.key)).read(
            columns=["offset", "value", "appended"], use_threads=False
        )
        violations += times[partition].judge(name.key, table["appended"].cast(pa.int64()).to_pylist())
        for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
            if offset in found[partition]:
                violations.append(Violation("parquet doubled", f"{name.key}: offset {offset}"))
            found[partition][offset] = value.decode()
            stored = logs[partition].records.get(offset) if partition in logs else None
            if stored != value.decode():
                violations.append(
                    Violation("parquet differs", f"{name.key}: {offset} is {value!r}, the log says {stored!r}")
                )
    for partition, log in logs.items():
        if partition in whole:
            spoilt = _offsets_of(world.damaged, partition)
            missing = [o for o in log.records if o >= log.log_start and o not in found[partition] and o not in spoilt]
            if missing:
                violations.append(
                    Violation(
                        "parquet differs",
                        f"{partition}: {missing[0]} is missing, the log has {log.records[missing[0]]!r}",
                    )
                )
    return violations


class _Appended:
    """The times of appends of a partition, file by file: none is below the one before it, or of the future."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._last_us = 0

    def judge(self, key: str, times_us: list[int]) -> list[Violation]:
        violations = []
        for time_us in times_us:
            if not self._last_us <= time_us <= self._now_us:
                text = f"{key}: {time_us} comes after {self._last_us}, and it is {self._now_us} now"
                violations.append(Violation("appended", text))
            self._last_us = max(self._last_us, time_us)
        return violations


def _offsets_of(key: str, partition: Partition) -> range:
    """Those that a damaged Parquet file of the partition holds."""
    name = parquet_name(key)
    if name is None or (f"{name.topic}#{name.topic_id}", name.partition) != partition:
        return range(0)
    return range(name.first_offset, name.last_offset + 1)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("it waits")

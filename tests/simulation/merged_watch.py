"""What readers of merged files would find, looked at whenever a checkpoint is put and whenever one of these files comes
or goes: what the newest checkpoints name is there, stands for a run of small files, and is not forgotten before it is
deleted.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow.parquet as pq

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.merging.merged_list import list_key, place_of, read_list, standing
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.parquet.pages import PageReader
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog, Partition
from tests.simulation.parquet_watch import at_once
from tests.simulation.world import World


class MergedWatch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._named: dict[int, dict[PartitionId, frozenset[str]]] = defaultdict(dict)
        """bundle → partition → what its newest checkpoint names and readers may take."""
        self._merges: defaultdict[PartitionId, int] = defaultdict(int)
        self._listed: defaultdict[PartitionId, set[str]] = defaultdict(set)
        """What the newest list of each partition has, behind the front or not."""
        self._taken_over: defaultdict[PartitionId, int] = defaultdict(int)
        """The newest move with which another bundle has taken a partition's list over."""

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        named = self._named[checkpoint.bundle]
        named.clear()
        removed = {note.topic_id for note in checkpoint.removed_topics}
        for part in checkpoint.partitions:
            place = place_of(part)
            if part.taken_over > self._taken_over[place]:
                self._taken_over[place] = part.taken_over
                for other in self._named.values():
                    other.pop(place, None)
            is_left = part.frozen and part.frozen <= self._taken_over[place]
            if not part.merged.number or part.topic_id in removed or is_left:
                continue
            if part.merged.number > self._merges[place]:
                self._merges[place] = part.merged.number
                self._world.coverage.saw("a list of merged files came into force")
            self._judge_list(checkpoint, part)

    def _judge_list(self, checkpoint: fmt.Checkpoint, part: fmt.PartitionCheckpoint) -> None:
        key = list_key(place_of(part), part.merged)
        if not self._world.store.has(key):
            self._report("list of merged files", f"{key} is gone, and checkpoint {checkpoint.number} names it")
            return
        store = self._world.store
        listed = at_once(read_list(store, part)).files
        self._judge_kept(place_of(part), {file.key for file in listed})
        files = standing(listed, part)
        try:
            small = at_once(PageReader(store, checkpoint.bundle).files_from(part, part.parquet_start))
        except LedgerMQError:
            return  # `ParquetWatch` judges that
        firsts, lasts = {file.first_offset for file in small}, {file.last_offset for file in small}
        for file in files:
            if file.first_offset not in firsts or file.last_offset not in lasts:
                self._report("merged file", f"{file.key} stands for no run of small files")
        self._named[checkpoint.bundle][place_of(part)] = frozenset([key, *(file.key for file in files)])
        self._judge_named()

    def _judge_kept(self, place: PartitionId, listed: set[str]) -> None:
        """Each list has what the one before it had and is not deleted, or no broker would delete it."""
        for key in sorted(self._listed[place] - listed):
            if self._world.store.has(key):
                self._report("merged file", f"{key} is there, and the newest list has forgotten it")
        self._listed[place] = listed

    def on_merged(self, key: str) -> None:
        """Judge after an object below `merged/` came or went."""
        if not self._world.store.has(key):
            self._world.coverage.saw("a merged file was deleted")
            self._judge_named()

    def _judge_named(self) -> None:
        for bundle, parts in self._named.items():
            for named in parts.values():
                for key in named:
                    if not self._world.store.has(key):
                        self._report("merged file", f"{key} is gone, and the newest checkpoint of {bundle} names it")

    def _report(self, kind: str, text: str) -> None:
        self._world.violations.append(Violation(kind, text))


def judge_merged(
    world: World, logs: dict[Partition, FinalLog], parts: dict[PartitionId, fmt.PartitionCheckpoint]
) -> None:
    """Judge what is left at the end. `parts`: the partitions of topics that live."""
    records = {(int(name.rpartition("#")[2]), number): log.records for (name, number), log in logs.items()}
    for key in world.store.keys_now(keys.MERGED):
        name = parse_merged(key)
        assert name is not None, key
        part = parts.get(name.place)
        if part is None:
            world.violations.append(Violation("merged file of a topic that is gone", key))
            continue
        if name.offsets is None:
            continue
        if name.offsets[0] < part.parquet_start:
            world.violations.append(Violation("merged file of deleted records", key))
        stored = records[name.place]
        table = pq.ParquetFile(world.store.reader(key)).read(columns=["offset", "value"], use_threads=False)
        for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
            if stored.get(offset) != value.decode():
                text = f"{key}: {offset} is {value!r}, the log says {stored.get(offset)!r}"
                world.violations.append(Violation("merged file differs", text))
        world.coverage.saw("merged rows were compared with the log", table.num_rows)

"""Register the Parquet files of a topic in its table (design Z1 to Z7), or the versions of a keyed one (V5).

A registrar holds no state: each turn sees that every bundle knows of the table, reads the table, then the
list of each partition, and puts at most one version. It may die anywhere, and several may run at once.

`raise_gates` writes into checkpoints up to where no version names a file that a reader may have open, so that
the files below can be deleted (`ledgermq_ledger.garbage.gate`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.latest import draft_latest
from ledgermq_ledger.delta.statistics import Statistics, encode_statistics, time_of_us
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, ListedFile, draft_version
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import (
    Move,
    checkpoint_in_charge,
    is_in_charge,
    newest_checkpoint,
    partition_of,
    partitions_by_key,
    replace_partitions,
)
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import APPENDED
from ledgermq_ledger.parquet.merging.merged_list import Unread, read_files, standing
from ledgermq_ledger.parquet.merging.plan import has_delta_table, wants_merges
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.tables.formats.choose import open_log, table_of
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.latest import bytes_held, newest_number, read_latest
from ledgermq_ledger.topics.facts import fact_of
from ledgermq_ledger.topics.tables import bundle_before
from ledgermq_ledger.topics.topic import Topic

LOG_CHECKPOINT_EVERY = 100
"""Versions between two checkpoints of the table's log, or between two times that old versions are let go of."""
TURNS_MAX = 10_000


@dataclass(slots=True)
class Turn:
    """`version`: the newest one that was read; -1: none. `committed`: None if there was nothing to say, or not yet
    (`pause_ms`). `stopped`: by partition, why nothing is said of it. `waits`: what has to come before there may be more
    to say.
    """

    version: int = -1
    committed: Committed | None = None
    stopped: dict[int, str] = field(default_factory=dict)
    waits: str = ""
    pause_ms: int = 0


class _Unknown(Exception):
    """A bundle does not know of the table as this process does. The text says which one."""


class Registrar:
    """`topic`: a living one with a table, as the catalog has it. `log_checkpoint_every`: versions
    between two checkpoints of the table's log; None: `LOG_CHECKPOINT_EVERY`. `run_blocking`: runs what a catalog's
    client does. Raises as `open_log`.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterSettings,
        topic: Topic,
        sources: Sources,
        log_checkpoint_every: int | None = None,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        self._store, self._cluster, self._sources = store, cluster, sources
        self._log_checkpoint_every = log_checkpoint_every or LOG_CHECKPOINT_EVERY
        self._set = topic
        self._keep_ms = topic.settings.table_keep_ms
        self._is_keyed = topic.settings.keyed
        self._topic = table_of(cluster.cluster_id, topic)
        self._log = open_log(store, self._topic, topic.settings, sources, run_blocking)

    @property
    def folder(self) -> str:
        return self._topic.folder

    async def catch_up(self) -> Turn:
        """Take turns until the table has all that Parquet has, or its next version is due later. Return the last one.

        Raises what `turn` raises, and AssertionError if the turns never end.
        """
        for _ in range(TURNS_MAX):
            turn = await self.turn()
            if turn.committed is None:
                return turn
        raise AssertionError(f"{self._topic.folder}: {TURNS_MAX} versions, and the table is still behind")

    async def turn(self) -> Turn:
        """Put the next version of the table, if there is anything to say.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors. A repeated call is harmless.
        """
        try:
            await self._check_that_all_know()
            table = await self._log.read()  # before the lists: a version is computed from what was there after it
            now_ms = await self._store.store_time_ms()
            await self._log.tidy(table, now_ms, self._keep_ms, self._log_checkpoint_every)
            draft, between = await self._draft(table, now_ms)
        except _Unknown as error:
            return Turn(waits=str(error))
        if not draft.operation:
            waits = f"partition {between[0]} is between two bundles" if between else ""
            return Turn(table.version, None, draft.stopped, waits)
        if pause_ms := self._log.pause_ms(table, now_ms, self._keep_ms):
            return Turn(table.version, None, draft.stopped, "its next version is due later", pause_ms)
        return Turn(table.version, await self._log.commit(table, draft, now_ms), draft.stopped)

    async def _draft(self, table: Table, now_ms: int) -> tuple[Draft, list[int]]:
        """Return what the next version says, and the partitions that are between two bundles."""
        if self._is_keyed:
            return draft_latest(table, self._topic, await read_latest(self._store, self._set), now_ms), []
        lists = await self._lists(table)
        between = [partition for partition in range(self._topic.partitions) if partition not in lists]
        draft = draft_version(table, self._topic, lists, now_ms)
        fitted = await self._log.fit(table, self._topic, draft, lists)
        if draft.operation == "WRITE" and not fitted.operation:  # what cannot be added keeps nothing from going
            draft = draft_version(table, self._topic, lists, now_ms, adds=False)
            draft.stopped |= fitted.stopped
            fitted = await self._log.fit(table, self._topic, draft, lists)
        return fitted, between

    async def raise_gates(self) -> int:
        """Raise each partition's `table_start` to the log start that every version says which a reader may have open
        (design Z6), or `table_version` to the version that each of them shows. Return how many were raised.

        For the keeping time after a table was set or rebuilt none is: versions of the generation before may be open.
        Raises what `turn` raises.
        """
        try:
            known = await self._check_that_all_know()
            parts = [part for checkpoint in known for part in checkpoint.partitions]
            if not self._is_keyed and not any(_is_held_back(part, self._set.id) for part in parts):
                return 0
            await self._log.date()
            lowest, newest = await self._log.read_held(self._keep_ms)
            if any(versions.generation_of(table, self._topic) != self._topic.generation for table in (lowest, newest)):
                return 0
            raised = 0
            for partition in range(self._topic.partitions):
                said = [
                    versions.registered(table, self._topic, partition, "version" if self._is_keyed else "start")
                    for table in (lowest, newest)
                ]
                raised += await self._raise_gate(PartitionId(self._set.id, partition), min(said))
        except _Unknown:
            return 0
        return raised

    async def held_bytes(self) -> int:
        """Return the bytes of the files below the log starts, or of replaced versions, that stay because of the table.
        Raises what `turn` raises.
        """
        held = 0
        for partition in range(self._topic.partitions):
            place = PartitionId(self._set.id, partition)
            checkpoint = await checkpoint_in_charge(self._store, bundle_before(self._set, partition), place)
            if checkpoint is None:
                continue
            if self._is_keyed:
                held += await bytes_held(self._store, place, self._cluster, checkpoint)
                continue
            counters = partition_of(checkpoint, *place)
            first = max(counters.parquet_start, counters.table_start)
            if first >= min(counters.log_start, counters.parquet_end):
                continue
            try:
                files = await PageReader(self._store, checkpoint.bundle).files_from(counters, first)
            except ObjectMissing:
                continue  # another process has replaced the list
            held += sum(file.size for file in files if file.last_offset < counters.log_start)
        return held

    async def _raise_gate(self, place: PartitionId, start: int) -> bool:
        checkpoint = await self._in_charge(place) if start else None
        if checkpoint is None or self._gate_of(partition_of(checkpoint, *place)) >= start:
            return False
        if self._is_keyed:
            start = min(start, await newest_number(self._store, place))  # that of a restored root may be behind
        ledger = LedgerRef(self._store, checkpoint.bundle, self._cluster, self._sources)
        return await advance_checkpoint(ledger, self._gate_move(place, start)) is not None

    def _gate_move(self, place: PartitionId, start: int) -> Move:
        """Return the move that raises the gate of a partition; never one of a frozen list, and that of a log never
        above the log start: that of a restored root may be behind its table.
        """

        def move(draft: fmt.Checkpoint) -> bool:
            parts = partitions_by_key(draft)
            counters = parts.get(place)
            if counters is None or self._why_unknown(draft) or not is_in_charge(draft, *place) or counters.frozen:
                return False
            raised = start if self._is_keyed else min(start, counters.log_start)
            if raised <= self._gate_of(counters):
                return False
            if self._is_keyed:
                counters.table_version = raised
            else:
                counters.table_start = raised
            replace_partitions(draft, parts.values())
            return True

        return move

    def _gate_of(self, counters: fmt.PartitionCheckpoint) -> int:
        return counters.table_version if self._is_keyed else counters.table_start

    async def _check_that_all_know(self) -> list[fmt.Checkpoint]:
        """Return the newest checkpoint of each of the topic's bundles; each names this generation. This look comes
        before the table and the lists are read, so a bundle has deleted nothing meanwhile that they name (design Z2).
        """
        found = []
        for bundle in sorted(self._set.bundles_in_use):
            found.append(await newest_checkpoint(self._store, bundle))
            self._check_that_knows(found[-1])
        return found

    def _check_that_knows(self, checkpoint: fmt.Checkpoint) -> None:
        if why := self._why_unknown(checkpoint):
            raise _Unknown(why)

    def _why_unknown(self, checkpoint: fmt.Checkpoint) -> str:
        fact = fact_of(checkpoint, self._set.id)
        if fact is None or fact.table != self._topic.generation[1]:
            return f"bundle {checkpoint.bundle} does not know of the table yet"
        if fact.version > self._set.version:
            return f"bundle {checkpoint.bundle} knows newer settings of the topic than this process"
        return ""

    async def _in_charge(self, place: PartitionId) -> fmt.Checkpoint | None:
        checkpoint = await checkpoint_in_charge(self._store, bundle_before(self._set, place.partition), place)
        if checkpoint is not None:
            self._check_that_knows(checkpoint)
        return checkpoint

    async def _lists(self, table: Table) -> dict[int, Listed]:
        """Return the lists of the partitions that some bundle is in charge of."""
        is_same = versions.generation_of(table, self._topic) == self._topic.generation
        found, named = {}, versions.merged_in(table, self._topic) if is_same else {}
        for partition in range(self._topic.partitions):
            end = versions.registered(table, self._topic, partition, "end") if is_same else 0
            listed = await self._list(partition, end, named.get(partition, ()))
            if listed is not None:
                found[partition] = listed
        return found

    async def _list(self, partition: int, registered: int, named: Sequence[tuple[str, int, int]]) -> Listed | None:
        """Return a partition's list from the registered end on, and from where small files have to take the place of a
        merged one; None if it is between two bundles. `named`: the merged files that the table names.
        """
        place = PartitionId(self._set.id, partition)
        while True:
            checkpoint = await self._in_charge(place)
            if checkpoint is None:
                return None
            counters = partition_of(checkpoint, *place)
            try:
                merged = await self._merged(counters)
                first = min([registered, *_put_back(named, merged, counters.log_start)])
                files = await PageReader(self._store, checkpoint.bundle).files_from(counters, first)
            except ObjectMissing:
                if (await newest_checkpoint(self._store, checkpoint.bundle)).number == checkpoint.number:
                    raise
                continue  # another process has replaced the list
            listed = [_listed(file, self._topic.name, partition) for file in files]
            stand = None if merged is None else [_listed(file, self._topic.name, partition) for file in merged]
            return Listed(counters.log_start, counters.parquet_end, listed, stand)

    async def _merged(self, counters: fmt.PartitionCheckpoint) -> list[fmt.ParquetFile] | None:
        """Return the merged files that the table may name; none if the topic wants none any longer. None: their list
        cannot be read, so what the table names stays until the log start comes there.
        """
        if not counters.merged.number or not has_delta_table(self._set) or not wants_merges(self._set):
            return []
        files = await read_files(self._store, counters)
        if isinstance(files, Unread):
            return None
        return [file for file in standing(files, counters) if file.key.startswith(self._topic.folder)]


def _put_back(
    named: Sequence[tuple[str, int, int]], merged: Sequence[fmt.ParquetFile] | None, log_start: int
) -> list[int]:
    """Return where the merged files begin that a table names, and whose small files have to take their place."""
    stand = {key for key, *_ in named} if merged is None else {file.key for file in merged}
    return [first for key, first, end in named if end > log_start and (first < log_start or key not in stand)]


def _is_held_back(counters: fmt.PartitionCheckpoint, topic_id: int) -> bool:
    return counters.topic_id == topic_id and counters.table_start < counters.log_start


def _listed(file: fmt.ParquetFile, topic: str, partition: int) -> ListedFile:
    rows = file.last_offset + 1 - file.first_offset
    bounds = (
        ("timestamp", file.timestamp_min_us, file.timestamp_max_us),
        (APPENDED, file.appended_min_us, file.appended_max_us),
    )
    found = Statistics(
        rows,
        {"topic": topic, "partition": partition, "offset": file.first_offset},
        {"topic": topic, "partition": partition, "offset": file.last_offset},
    )
    for name, least_us, most_us in bounds:
        least, most = time_of_us(least_us), time_of_us(most_us)
        if (least_us or most_us) and least is not None and most is not None:
            found.least[name], found.most[name] = least, most
    stats = encode_statistics(found)
    end = file.last_offset + 1
    return ListedFile(file.key, file.first_offset, end, file.size, file.committed_ms, stats, file.typed)

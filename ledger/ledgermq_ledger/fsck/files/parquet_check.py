"""Check the Parquet files of the root: those that count exist and are whole, and plain readers see
no record twice (safety invariant 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.files.parquet_rows import check_footer, find_wrong_rows
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import ParquetName
from ledgermq_ledger.object_store.contract import FENCES, ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import read_footer


@dataclass(slots=True)
class _File:
    name: ParquetName
    info: ObjectInfo
    rows: int | None = None
    """The number of rows; None if its footer cannot be read."""


class ParquetCheck:
    """`live`: the files that count, by key, with their list entries.

    `checkpoints`: the newest of each bundle.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterSettings,
        live: Mapping[str, fmt.ParquetFile | None],
        checkpoints: Sequence[fmt.Checkpoint],
        problems: Problems,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._live = live
        self._finished = {checkpoint.bundle: checkpoint.finished_plan for checkpoint in checkpoints}
        self._newest_ms = {checkpoint.bundle: checkpoint.created_ms for checkpoint in checkpoints}
        self._problems = problems
        self._run_blocking = run_blocking
        self._files: dict[str, _File] = {}

    async def run(self, listed: list[ObjectInfo], *, quick: bool) -> None:
        """Check all files. `listed`: a LIST from before the checkpoints were read."""
        for info in listed:
            if (name := keys.parse_parquet(info.key)) is not None:
                self._files[info.key] = _File(name, info)
        await self._find_missing()
        for key in sorted(self._files):
            with self._problems.collecting(key):
                try:
                    await self._check_file(self._files[key], quick=quick)
                except ObjectMissing:
                    if key in self._live:
                        raise
                    del self._files[key]  # deleted since the LIST
        self._check_runs()
        await self._check_fences()

    async def _find_missing(self) -> None:
        """Look for files that the lists name and the LIST did not show: put since, or missing."""
        for key, listed in self._live.items():
            if key in self._files or listed is None:
                continue
            try:
                info = await self._store.head(key)
            except ObjectMissing:
                self._problems.damage(key, "OBJECT_MISSING", "it is missing, but a list of Parquet files names it")
                continue
            if (name := keys.parse_parquet(key)) is not None:
                self._files[key] = _File(name, info)

    async def _check_file(self, file: _File, *, quick: bool) -> None:
        key, name = file.info.key, file.name
        footer = await read_footer(self._store, key)
        file.rows = footer.num_rows
        note = check_footer(footer, key, name, self._cluster, self._problems)
        if note is None:
            return
        self._check_listed(file, note)
        if not quick:
            await self._check_rows(file)

    def _check_listed(self, file: _File, note: FooterNote) -> None:
        key = file.info.key
        if key not in self._live:
            finished = self._finished.get(note.bundle, 0)
            if note.plan <= finished:
                text, used_ms = "no list of Parquet files names it", self._newest_ms.get(note.bundle, 0)
                self._problems.leftover(key, "UNREFERENCED", text, put_ms=file.info.modified_ms, used_ms=used_ms)
            else:
                self._problems.damage(
                    key,
                    "UNPLANNED",
                    f"it names plan {note.plan} of bundle {note.bundle}, which is not open or does not list it",
                )
        elif (listed := self._live[key]) is not None:
            if (listed.first_offset, listed.last_offset) != (file.name.first_offset, file.name.last_offset):
                self._problems.damage(
                    key,
                    "WRONG_LIST",
                    f"the file list says that it holds offsets {listed.first_offset} to {listed.last_offset}",
                )
            if listed.size != file.info.size:
                self._problems.damage(key, "WRONG_SIZE", f"it has {file.info.size} bytes, the list says {listed.size}")
            if note.failed:
                self._problems.damage(
                    key,
                    "WRONG_LIST",
                    "it replaces a batch that cannot be read, but the file list says that it holds records",
                )

    async def _check_rows(self, file: _File) -> None:
        data = await self._store.get(file.info.key)
        problem = await self._run_blocking(lambda: find_wrong_rows(data, file.info.key, file.name))
        if problem:
            self._problems.damage(file.info.key, "DATA_DAMAGED", problem)

    def _check_runs(self) -> None:
        by_partition: dict[tuple[str, int], list[_File]] = {}
        for file in self._files.values():
            if file.rows:
                topic = f"topic id {file.name.topic_id}" if file.name.topic is None else file.name.topic
                by_partition.setdefault((topic, file.name.partition), []).append(file)
        for (topic, partition), files in by_partition.items():
            files.sort(key=lambda file: (file.name.first_offset, file.name.last_offset))
            for before, after in pairwise(files):
                if after.name.first_offset <= before.name.last_offset:
                    text = (
                        f"{topic}/{partition}: it overlaps {before.info.key}, so readers of Parquet see records twice"
                    )
                    self._problems.damage(after.info.key, "RANGES_OVERLAP", text)
                elif after.name.first_offset > before.name.last_offset + 1:
                    first, last = before.name.last_offset + 1, after.name.first_offset - 1
                    text = (
                        f"{topic}/{partition}: no file holds offsets {first} to {last}, so readers of Parquet miss them"
                    )
                    self._problems.damage(after.info.key, "RANGES_GAP", text)

    async def _check_fences(self) -> None:
        for name in await self._store.list_fences():
            fence = keys.parse_fence(name)
            object_key = f"{FENCES}{name}"
            if fence is None:
                self._problems.untidy(object_key, "FOREIGN_OBJECT", "no LedgerMQ process makes a fence of this name")
            elif fence.plan <= self._finished.get(fence.bundle, 0):
                text, used_ms = (
                    f"plan {fence.plan} is finished, but its fence is not closed yet",
                    self._newest_ms[fence.bundle],
                )
                self._problems.leftover(object_key, "OPEN_FENCE", text, put_ms=0, used_ms=used_ms)

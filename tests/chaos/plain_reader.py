"""Read `parquet/` with pyarrow alone, without brokers and SDK: file names during the run, every
record at its end.

A LIST is no snapshot: files are added and deleted while it runs. A reader that finds a file deleted
starts again, so a gap counts only when every file of the list still opens afterwards and a second
list shows the same gap.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ledgermq_ledger.keys import ParquetName, parse_parquet
from tests.chaos.workload import Workload, name_of
from tests.judges.violation import Violation
from tests.simulation.checker import judge_plain_read
from tests.simulation.history import Partition, PlainRead

TRIES_MAX = 20

Found = dict[Partition, list[ParquetName]]


class PlainReader:
    """Blocking calls of pyarrow run in threads."""

    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        self._fs = filesystem
        self._folder = folder
        self.looks: Counter[str] = Counter()

    def names(self) -> Found:
        """Finished files by partition, ascending."""
        found: Found = defaultdict(list)
        for info in self._fs.get_file_info(fs.FileSelector(self._folder, recursive=True, allow_not_found=True)):
            inside = info.path.partition("/parquet/")[2]
            if info.type is fs.FileType.File and not any(part.startswith(("_", ".")) for part in inside.split("/")):
                name = parse_parquet(f"parquet/{inside}")
                if name is None:
                    raise AssertionError(f"a plain reader would stumble over {info.path}")
                found[name.topic, name.partition].append(name)
        return {partition: sorted(names, key=lambda name: name.first_offset) for partition, names in found.items()}

    def open_all(self, names: Iterable[ParquetName]) -> None:
        """Raises FileNotFoundError when one of them has gone."""
        for name in names:
            pq.read_metadata(f"{self._folder}/{name.key.removeprefix('parquet/')}", filesystem=self._fs)

    def look(self) -> list[PlainRead]:
        """One consistent look, as the history takes it.

        Raises OSError while the store does not answer.
        """
        for _ in range(TRIES_MAX):
            seen = self.names()
            reads = {partition: _plain_read(partition, names) for partition, names in seen.items()}
            suspect = [partition for partition, read in reads.items() if judge_plain_read(read)]
            try:
                self.open_all(name for partition in suspect for name in seen[partition])
            except FileNotFoundError:
                self.looks["list that met a deletion"] += 1
                continue
            again = self.names() if suspect else {}
            if any(again.get(partition, []) != seen[partition] for partition in suspect):
                self.looks["list that met a new file"] += 1
                continue
            self.looks["consistent list"] += 1
            return list(reads.values())
        return []

    def records(self) -> tuple[dict[Partition, dict[int, str]], list[Violation]]:
        """Everything, at rest: by partition and offset; an offset that is there twice is a
        violation.
        """
        found: dict[Partition, dict[int, str]] = defaultdict(dict)
        violations = []
        for partition, names in self.names().items():
            for name in names:
                table = self._read(name)
                for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
                    if offset in found[partition]:
                        violations.append(Violation("parquet doubled", f"{name.key}: offset {offset}"))
                    if not name.first_offset <= offset <= name.last_offset:
                        violations.append(Violation("parquet differs", f"{name.key}: holds offset {offset}"))
                    found[partition][offset] = name_of(value)
        return found, violations

    def _read(self, name: ParquetName) -> pa.Table:
        path = f"{self._folder}/{name.key.removeprefix('parquet/')}"
        return pq.ParquetFile(self._fs.open_input_file(path)).read(columns=["offset", "value"])

    async def run(self, work: Workload) -> None:
        """Looks again and again."""
        r = random.Random(f"plain {work.seed}")
        while not work.stopped.is_set():
            await asyncio.sleep(r.uniform(1, 5))
            try:
                reads = await asyncio.to_thread(self.look)
            except OSError:
                self.looks["store did not answer"] += 1
                continue
            for read in reads:
                work.history.add(read)


def _plain_read(partition: Partition, names: list[ParquetName]) -> PlainRead:
    return PlainRead(partition, tuple((name.first_offset, name.last_offset) for name in names))

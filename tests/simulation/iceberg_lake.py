"""The catalog of level *tables* where the table is Iceberg's: SQLite and metadata in memory, with PyIceberg's client.
Its answers fail as those of the store do, before their effect, after it, or it comes late; and now and then it answers
"conflict" for what it has taken, as a proxy does that sent a request twice.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from pyiceberg.catalog import AVAILABLE_CATALOGS, CatalogType
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from ledgermq_ledger.iceberg.catalog import Place
from ledgermq_ledger.iceberg.writing import commit
from ledgermq_ledger.tables.formats import iceberg
from ledgermq_ledger.tables.formats.iceberg import PAUSE_MS
from tests.simulation.loop import State, current_process
from tests.simulation.store import UNANSWERED
from tests.simulation.tables_plan import CATALOG, NAMESPACE
from tests.simulation.world import World

LATE_S_MAX = 40.0
PAUSES_MS = 500, 3000, PAUSE_MS
"""Between two snapshots at least. With less than the product's there are more of them in the time of a run."""
CONFLICT = 0.5
"""Share of the answers that are lost after their effect, in place of which the catalog says "conflict"."""
_objects: dict[str, bytes] = {}
"""Of the run that goes on: PyIceberg makes its `FileIO` by the name of a class."""
_data: list[Callable[[str], bytes]] = []
"""How that run reads a data file, by its URL."""


class _Stream(BytesIO):
    def __init__(self, location: str) -> None:
        super().__init__()
        self._location = location

    def close(self) -> None:
        if not self.closed:
            _objects[self._location] = self.getvalue()
        super().close()


class _Object(InputFile, OutputFile):
    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> bytes:
        return _objects[self.location] if self.location in _objects else _data[-1](self.location)

    def exists(self) -> bool:
        return self.location in _objects

    def open(self, seekable: bool = True) -> Any:
        return BytesIO(self._read())

    def create(self, overwrite: bool = False) -> Any:
        assert overwrite or self.location not in _objects, self.location
        return _Stream(self.location)

    def to_input_file(self) -> InputFile:
        return self


class LakeIO(FileIO):
    def new_input(self, location: str) -> InputFile:
        return _Object(location)

    def new_output(self, location: str) -> OutputFile:
        return _Object(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        del _objects[location if isinstance(location, str) else location.location]


class Lake:
    """`on_commit`: is called with the table's metadata after each commit. `commits`: so many have landed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(f"catalog {world.seed}")
        self.root = Place(CATALOG, NAMESPACE, "", world.line("catalog").url).root
        self._bad, self._pause_ms = self.random.choice((0.0, 0.1, 0.4)), self.random.choice(PAUSES_MS)
        self.on_commit: Callable[[TableMetadata], None] = lambda metadata: None
        self.commits = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let every process find the catalog by its configuration, and no other one."""
        before, name = AVAILABLE_CATALOGS[CatalogType.SQL], f"PYICEBERG_CATALOG__{CATALOG.upper()}__TYPE"
        _objects.clear()
        _data.append(self._data_file)
        self.catalog = Catalog(self)
        AVAILABLE_CATALOGS[CatalogType.SQL] = lambda name, properties: self.catalog
        iceberg.PAUSE_MS = self._pause_ms
        os.environ[name] = "sql"
        try:
            yield
        finally:
            os.environ.pop(name)
            AVAILABLE_CATALOGS[CatalogType.SQL] = before
            _data.pop()
            iceberg.PAUSE_MS = PAUSE_MS
            self.catalog.engine.dispose()

    def has(self, location: str) -> bool:
        return location in _objects

    def _data_file(self, url: str) -> bytes:
        return self.world.store.read_now(url.removeprefix(self.root))

    def table(self) -> Table:
        """Return the table as a reader loads it, who always gets an answer."""
        return SqlCatalog.load_table(self.catalog, (NAMESPACE, "lake"))

    def fault(self, *, is_commit: bool) -> str:
        """Return how the catalog fails now: "before" the effect, "after" it, or it comes "late"; "": it answers."""
        share = 1.0 if self.world.weather.silent else 0.0 if self.world.healed else self._bad
        if self.random.random() >= share * (1.0 if is_commit else 0.2):
            return ""
        return self.random.choice(UNANSWERED) if is_commit else "before"

    def line(self, name: str) -> Callable[[Callable[[], Any]], Awaitable[Any]]:
        """Return how a process calls the catalog that may lie in ambush: it sleeps before a commit, until others have
        committed.
        """

        async def run(call: Callable[[], Any]) -> Any:
            ambush = self.world.weather.ambush
            share = ambush.shares.get("table logs", 0.0)
            if getattr(call, "func", None) is commit and ambush.whose in ("", name) and self.random.random() < share:
                await self._sleep(name, self.commits + self.random.choice((1, 1, 3)), ambush.seconds_max)
            return call()

        return run

    async def _sleep(self, name: str, commits: int, seconds_max: float) -> None:
        process = current_process()
        if process is None or process.state is not State.RUNNING:
            return
        process.pause()
        self.world.note(name, "sleeps before a commit of the catalog")
        self.world.loop.in_world(self._wake(process, commits, self.world.loop.time() + seconds_max))
        await asyncio.sleep(0)

    async def _wake(self, process: Any, commits: int, until_s: float) -> None:
        while self.commits < commits and self.world.loop.time() < until_s:
            await asyncio.sleep(0.2)
        if self.commits >= commits:
            self.world.coverage.saw("another snapshot came before a registrar awoke that was to put its own")
        if process.state is State.PAUSED:
            process.resume()


class Catalog(SqlCatalog):
    """One for all processes: in memory there is one connection."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._is_inside = False
        said = {"uri": "sqlite:///:memory:", "warehouse": "memory://warehouse"}
        super().__init__(CATALOG, **said, **{PY_IO_IMPL: f"{LakeIO.__module__}.LakeIO"})

    def load_table(self, identifier: Any) -> Table:
        if not self._is_inside and self._lake.fault(is_commit=False):
            raise ConnectionError("the catalog did not answer")
        return super().load_table(identifier)

    def create_table(self, *of: Any, **more: Any) -> Table:
        with self._inside():
            return super().create_table(*of, **more)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        lake, world = self._lake, self._lake.world
        fault = lake.fault(is_commit=True)
        if fault:
            world.coverage.saw(f"catalog fault: {fault}")
        if fault == "late":
            later_s = lake.random.uniform(0, LATE_S_MAX)
            world.loop.call_later(later_s, self._land, table, requirements, updates, context=world.loop.world)
        if fault in ("before", "late"):
            raise ConnectionError("the catalog did not answer")
        answer = self._put(table, requirements, updates)
        if fault and lake.random.random() < CONFLICT:
            world.coverage.saw("the catalog said conflict for what it had taken")
            raise CommitFailedException("the catalog said conflict for what it had taken")
        if fault:
            raise ConnectionError("the catalog took it, and did not answer")
        return answer

    def _land(self, *of: Any) -> None:
        try:
            self._put(*of)
        except (CommitFailedException, ValueError):  # PyIceberg refuses so what lets go of a snapshot that has gone
            return
        self._lake.world.coverage.saw("a commit came late, and was taken")

    def _put(self, *of: Any) -> CommitTableResponse:
        with self._inside():
            answer = super().commit_table(*of)
        self._lake.commits += 1
        self._lake.on_commit(answer.metadata)
        return answer

"""What a table format does for a registrar (design Z3): read the newest version of a topic's table, and put the next
one. Any number of processes may do so at the same time.

What a version says is the same in each format, in the words of `ledgermq_ledger.delta`: a `Table`, which names files
and how far each partition is registered, and a `Draft` of the next one. A format is how both are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, Topic

FOOTERS_AT_ONCE = 8


class Committed(Enum):
    """WON: the version is the table's. LOST: another one has its number, or had it. UNKNOWN: it may be the
    table's, now or later. After each of them the table is read again; nothing is undone.
    """

    WON = 1
    LOST = 2
    UNKNOWN = 3


class TableLog(Protocol):
    """The versions of one topic's table. Each method that reads or writes raises DataDamaged, FormatNotSupported,
    Unavailable, the store's errors. Times are in milliseconds by the store's clock; `keep_ms`: how long a version can
    be read after the next one came.
    """

    async def read(self) -> Table:
        """Return the newest version; version -1: there is no table."""

    async def read_held(self, keep_ms: int) -> tuple[Table, Table]:
        """Return the lowest version that a reader may have open, because the next one came less than `keep_ms` ago,
        and the newest. Their files may be left out.
        """

    async def read_named(self, keep_ms: int) -> tuple[Table, dict[str, int]]:
        """Return the newest version, and the files that versions name which a reader may have open: by path, with one
        of these versions.
        """

    async def read_dated(self, keep_ms: int) -> tuple[Table, int, int]:
        """Return the newest version, the number of the lowest that a reader may have open, and when the newest came."""

    async def fit(self, table: Table, of: Topic, draft: Draft, lists: Mapping[int, Listed]) -> Draft:
        """Return a draft that names the columns of the files which it adds; one that stops a partition whose files the
        table cannot name.
        """

    async def commit(self, base: Table, draft: Draft, now_ms: int) -> Committed:
        """Put the version after `base`, from which it was computed. `now_ms`: a time after `base` was read."""

    def pause_ms(self, table: Table, now_ms: int, keep_ms: int) -> int:
        """Return how long the next version has to wait, because each one costs every reader something."""

    async def tidy(self, table: Table, now_ms: int, keep_ms: int, every: int) -> None:
        """Let go of versions that nothing needs, once there are `every` of them."""

    async def date(self) -> None:
        """Write down when the newest version came at the latest, where the store does not say it."""

    async def place(self) -> str:
        """Return where readers find the table: a folder below the root, or a URL."""

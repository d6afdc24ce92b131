"""A local SQLite file in which a client keeps what must outlive its process: how it is opened, locked,
marked, written and closed, and what SQLite's errors mean.

Invariants: a change is durable when its call returns (write-ahead log, synchronous=FULL). One process has the
file open: SQLite's exclusive lock, which ends with the process, keeps others out. A file that is damaged, or
was written by another program or version, is refused and left as it is, and never taken for an empty one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    LedgerMQError,
    StoreFull,
    StoreUnusable,
    UsedElsewhere,
)

T = TypeVar("T")

_PIECE_BYTES = 64 * 1024

Step = Callable[[sqlite3.Connection], T]
"""What is done with the open file. It runs in the file's thread."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """`name`, `user`, `content`, `setting`: for error messages, as "retry store", "handler", "messages",
    "Retry.metaq(store=…)". `application_id` marks the file as one of this kind; SQLite keeps it in the header.
    """

    name: str
    user: str
    content: str
    setting: str
    application_id: int
    version: int
    tables: str
    reserve_bytes: int = 0
    """Size of a file beside it that is given up for changes which make room, when the disk is full."""


class SqliteFile:
    """`in_thread`: run SQLite in a thread of this file; False, as in a simulation: on the loop."""

    def __init__(self, path: Path, kind: FileKind, *, in_thread: bool = True) -> None:
        self.path = path
        self.kind = kind
        self._threads = ThreadPoolExecutor(1, f"ledgermq {kind.name}") if in_thread else None
        self._connection: sqlite3.Connection | None = None

    async def open(self, begin: Step[None], check: Step[T]) -> T:
        """Open the file, or create it, and return what `check` returns. `begin` fills the tables of a new file.

        Raises UsedElsewhere (another process or user has it open), DataDamaged, FormatNotSupported,
        StoreUnusable, StoreFull, what `check` raises; then it is not open.
        """
        return await self._in_thread(lambda: self._open(begin, check))

    async def run(self, step: Step[T]) -> T:
        """Run a step outside of a transaction: each statement is durable alone.

        Raises StoreFull, StoreUnusable, DataDamaged, what the step raises.
        """

        def run() -> T:
            assert self._connection is not None, "opened first"
            with self._errors():
                return step(self._connection)

        return await self._in_thread(run)

    async def change(self, step: Step[T], *, adds: bool = True) -> T:
        """Run a step as one transaction: all of it is durable, or nothing. Raises like `run`.

        `adds`: whether the file grows by it. It is then refused while the reserve cannot be held; a change that
        adds nothing may use the reserve.
        """

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = step(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors have ended it already
                    connection.execute("ROLLBACK")
                raise
            return result

        def with_reserve(connection: sqlite3.Connection) -> T:
            if adds:
                self._hold_reserve()
                return transaction(connection)
            try:
                return transaction(connection)
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_FULL or not self._reserve.exists():
                    raise
                self._reserve.unlink()
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return transaction(connection)

        return await self.run(with_reserve if self.kind.reserve_bytes else transaction)

    async def close(self) -> None:
        """Close the file, and let other processes open it. A cancelled caller does not stop it."""
        try:
            await asyncio.shield(self._in_thread(self._close))
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    # -- in the file's thread

    async def _in_thread(self, step: Callable[[], T]) -> T:
        if self._threads is None:
            return step()
        return await asyncio.get_running_loop().run_in_executor(self._threads, step)

    def _open(self, begin: Step[None], check: Step[T]) -> T:
        with suppress(OSError):  # SQLite reports what is wrong with the path
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # it may hold records
        with self._errors():
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(connection, begin)
                result = check(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return result

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _prepare(self, connection: sqlite3.Connection, begin: Step[None]) -> None:
        """Lock the file, and check what it is; write nothing to one of another kind."""
        kind = self.kind
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        [application_id] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        is_new = (application_id, version, tables) == (0, 0, 0)
        if not is_new and application_id != kind.application_id:
            raise FormatNotSupported(
                f"{self.path} is an SQLite database of another program; give {kind.setting} another file"
            )
        if not is_new and version != kind.version:
            raise FormatNotSupported(
                f"{kind.name} {self.path} has version {version}; this program reads version {kind.version}"
            )
        modes = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if modes != ("wal",):
            raise StoreUnusable(f"{kind.name} {self.path}: SQLite cannot keep a write-ahead log there")
        connection.execute("PRAGMA synchronous = FULL")
        if is_new:
            connection.execute("BEGIN EXCLUSIVE")
            for table in kind.tables.split(";"):
                connection.execute(table)
            begin(connection)
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
            connection.execute(f"PRAGMA user_version = {kind.version}")
            connection.execute("COMMIT")
        connection.execute("BEGIN EXCLUSIVE")  # takes the lock even of a file that is only read now
        connection.execute("COMMIT")

    @property
    def _reserve(self) -> Path:
        return self.path.with_name(self.path.name + "-reserve")

    def _hold_reserve(self) -> None:
        """Make the reserve if it is not there, or is too small, because its process was killed meanwhile. Raises
        StoreFull, StoreUnusable.
        """
        try:
            if self._reserve.exists():
                if self._reserve.stat().st_size >= self.kind.reserve_bytes:
                    return
                self._reserve.unlink()
            with self._reserve.open("xb", buffering=0) as file:
                for _ in range(0, self.kind.reserve_bytes, _PIECE_BYTES):
                    if file.write(b"\0" * _PIECE_BYTES) != _PIECE_BYTES:
                        raise OSError(errno.ENOSPC, "no space for all of it")
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full() from error
            raise StoreUnusable(f"{self.kind.name} {self.path}: {error}") from error

    # -- errors

    def _full(self) -> StoreFull:
        return StoreFull(f"{self.kind.name} {self.path}: no space is left on its disk")

    def damaged(self, what: str) -> DataDamaged:
        """Return the error of a damaged part of the file; `what` says which, and how it was found."""
        return DataDamaged(
            f"{self.kind.name} {self.path}: {what}. Restore the file, or move it away: its {self.kind.content} are then"
            " lost",
            object_key=str(self.path),
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert SQLite's errors."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._converted(error) from error

    def _converted(self, error: sqlite3.Error) -> LedgerMQError:
        kind, path = self.kind, self.path
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return UsedElsewhere(
                f"{kind.name} {path} is in use by another process, or by another {kind.user} of this one; give each its"
                " own file"
            )
        if code == sqlite3.SQLITE_FULL:
            return self._full()
        # Text that is not UTF-8: the error is one of Python's module, and has no code.
        undecoded = code == 0 and isinstance(error, sqlite3.OperationalError)
        # the last: a table is missing
        if undecoded or code in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_ERROR,
        ):
            return self.damaged(f"it is damaged, or no SQLite file: {error}")
        return StoreUnusable(f"{kind.name} {path}: {error}")


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF

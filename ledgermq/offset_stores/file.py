"""Offsets in a local JSON file, which several processes of one machine may share.

    {"version": 1,
     "offsets": [{"group", "topic", "topic_id", "partition", "epoch", "counter", "offset", "metadata", "commit_ms"}, …]}

Invariants: the file is always whole: a new one is written beside it, fsynced, and renamed over it.
It is changed only under the lock of `<file>.lock`. A damaged file is an error that names it, never
an empty store.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig, LedgerMQError, StoreUnusable
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.offset_stores.rules import Row, RowKey, commit_rows, load_rows
from ledgermq.sources import Sources

VERSION = 1

T = TypeVar("T")


class FileOffsetStore:
    """`path`: the first call creates it, with its folder. Each call reads the whole file."""

    def __init__(self, path: str | Path, sources: Sources | None = None) -> None:
        self._path = Path(path).expanduser()
        self._sources = sources or Sources()

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        """See `OffsetStore.load`. Raises StaleAssignment, DataDamaged, FormatNotSupported,
        StoreUnusable.
        """
        return await asyncio.to_thread(self._change, lambda rows: load_rows(rows, group, partitions))

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """See `OffsetStore.commit`. Raises DataDamaged, FormatNotSupported, StoreUnusable."""
        now_ms = self._sources.now_ms()
        return await asyncio.to_thread(self._change, lambda rows: commit_rows(rows, group, entries, now_ms))

    def _change(self, step: Callable[[dict[RowKey, Row]], T]) -> T:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._path.with_name(self._path.name + ".lock")):
                rows = self._read()
                before = dict(rows)
                answer = step(rows)
                if rows != before:
                    self._write(rows)
                return answer
        except OSError as error:
            raise StoreUnusable(f"offset file {self._path}: {error.strerror or error}") from error

    def _read(self) -> dict[RowKey, Row]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError as error:
            raise DataDamaged(f"offset file {self._path}: {error}") from error
        try:
            document = json.loads(text)
            if document["version"] != VERSION:
                raise FormatNotSupported(
                    f"offset file {self._path} has version {document['version']}; this program reads version {VERSION}"
                )
            return dict(map(_row, document["offsets"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataDamaged(f"offset file {self._path} cannot be read: {error!r}") from error

    def _write(self, rows: dict[RowKey, Row]) -> None:
        offsets = [{**key._asdict(), **asdict(row)} for key, row in sorted(rows.items())]
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("w") as file:
            json.dump({"version": VERSION, "offsets": offsets}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes. The system releases it when its holder dies."""
    try:
        import fcntl
    except ImportError as error:
        raise InvalidConfig("FileOffsetStore needs a POSIX system; use SqlOffsetStore with SQLite instead") from error
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _row(entry: dict[str, object]) -> tuple[RowKey, Row]:
    offset = entry["offset"]
    key = RowKey(_text(entry["group"]), _text(entry["topic"]), _whole(entry["topic_id"]), _whole(entry["partition"]))
    return key, Row(
        _whole(entry["epoch"]),
        _whole(entry["counter"]),
        None if offset is None else _whole(offset),
        _text(entry["metadata"]),
        _whole(entry["commit_ms"]),
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value

"""List a folder tree as keys in ascending byte order, reading and stat-ing only the requested part.

A folder sorts by its name with "/" behind it, so a depth-first walk ascends: "a-b" < "a/x" < "ab".
Folders outside the prefix or at or before `start_after` are not opened. Knows only names; the store
gives a listing its meaning. `ascending` serves any tree of folders, `walk` one on a local disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from ledgermq_ledger.object_store.contract import ObjectInfo

T = TypeVar("T")

Children = Callable[[str], Iterable[tuple[str, bool, T]]]
"""Folder, "" or with "/" at its end -> (name, whether it is a folder, what is known of it); nothing
where there is no such folder.
"""


def info_of(key: str, found: os.stat_result) -> ObjectInfo:
    """Return the properties of a file. `modified_ms` is the change time, which is never before the
    object appeared; the write time may be.
    """
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(key, found.st_size, etag, found.st_ctime_ns // 1_000_000)


def walk(root: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield objects lazily: each is stat-ed when it is requested; one that is deleted meanwhile is
    left out.
    """

    def children(folder: str) -> Iterator[tuple[str, bool, None]]:
        try:
            entries = os.scandir(root / folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name, entry.is_dir(), None

    for key, _ in ascending(children, prefix, start_after):
        try:
            found = os.stat(root / key)
        except FileNotFoundError:
            continue
        yield info_of(key, found)


def ascending(children: Children[T], prefix: str, start_after: str) -> Iterator[tuple[str, T]]:
    """Yield (key, what is known of it) for every file whose key begins with `prefix` and is greater
    than `start_after`.
    """
    folder = prefix.rpartition("/")[0]
    yield from _below(children, folder + "/" if folder else "", prefix, start_after)


def _below(children: Children[T], folder: str, prefix: str, start_after: str) -> Iterator[tuple[str, T]]:
    wanted: dict[str, T] = {}
    for entry, is_folder, known in children(folder):
        name = f"{folder}{entry}/" if is_folder else folder + entry
        if is_folder:
            inside = name.startswith(prefix) or prefix.startswith(name)
            if inside and (name > start_after or start_after.startswith(name)):
                wanted[name] = known
        elif name.startswith(prefix) and name > start_after:
            wanted[name] = known
    for name in sorted(wanted):
        if name.endswith("/"):
            yield from _below(children, name, prefix, start_after)
        else:
            yield name, wanted[name]

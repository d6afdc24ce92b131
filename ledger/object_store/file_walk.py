"""The listing of a folder tree as keys in ascending byte order, reading and stat-ing no more of it than was asked for.

A folder sorts by its name with "/" behind it, which makes a depth-first walk ascend: "a-b" < "a/x" < "ab". Folders that lie
wholly outside the prefix or at or before `start_after` are not opened. Knows only names; what a listing means is the store's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ledger.object_store.contract import ObjectInfo


def info_of(key: str, found: os.stat_result) -> ObjectInfo:
    """`modified_ms` is the change time, which is never before the object appeared; the write time may be."""
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(key, found.st_size, etag, found.st_ctime_ns // 1_000_000)


def walk(root: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Lazy: each object is stat-ed when it is asked for; one that is deleted meanwhile is left out."""
    folder = prefix.rpartition("/")[0]
    for key in _keys(root, folder + "/" if folder else "", prefix, start_after):
        try:
            found = os.stat(root / key)
        except FileNotFoundError:
            continue
        yield info_of(key, found)


def _keys(root: Path, folder: str, prefix: str, start_after: str) -> Iterator[str]:
    for name in _names(root, folder, prefix, start_after):
        if name.endswith("/"):
            yield from _keys(root, name, prefix, start_after)
        else:
            yield name


def _names(root: Path, folder: str, prefix: str, start_after: str) -> list[str]:
    try:
        entries = os.scandir(root / folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    wanted = []
    with entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                name = f"{folder}{entry.name}/"
                inside = name.startswith(prefix) or prefix.startswith(name)
                if inside and (name > start_after or start_after.startswith(name)):
                    wanted.append(name)
            elif (name := folder + entry.name).startswith(prefix) and name > start_after:
                wanted.append(name)
    return sorted(wanted)

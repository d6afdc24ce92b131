"""What a disk may hold after the power was cut: an operating system's files and folders, and what
of them was made durable.

The promise of POSIX and nothing more: an fsync of a file makes its bytes durable, an fsync of a
folder its entries. What was done since may have happened or not, each name for itself and in any
order; of the bytes of a file any beginning may be there, or zeros.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None


@dataclass(eq=False)
class Folder:
    """`durable`: entries at the last fsync.

    `since`: what each name has stood for since then, oldest first; None: nothing.
    """

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    since: dict[str, list[Node | None]] = field(default_factory=dict)

    def set(self, name: str, node: Node | None) -> None:
        if node is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = node
        self.since.setdefault(name, []).append(node)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.since = {}


Node = File | Folder
Choose = Callable[[int], int]
"""Picks one of so many possibilities; 0 is the oldest, the last the newest."""

OLDEST: Choose = lambda count: 0  # noqa: E731
NEWEST: Choose = lambda count: count - 1  # noqa: E731


def at_random(rng: random.Random) -> Choose:
    return rng.randrange


class DiskModel:
    """One tree below `top`, which is durable.

    Methods are what the system did, in its order; paths are absolute.
    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self.root = Folder()

    def node(self, path: Path) -> Node:
        node: Node = self.root
        for part in path.relative_to(self.top).parts:
            assert isinstance(node, Folder)
            node = node.entries[part]
        return node

    def folder(self, path: Path) -> Folder:
        found = self.node(path)
        assert isinstance(found, Folder)
        return found

    def create(self, path: Path) -> File:
        file = File()
        self.folder(path.parent).set(path.name, file)
        return file

    def mkdir(self, path: Path) -> None:
        self.folder(path.parent).set(path.name, Folder())

    def remove(self, path: Path) -> None:
        self.folder(path.parent).set(path.name, None)

    def link(self, source: Path, target: Path) -> None:
        self.folder(target.parent).set(target.name, self.node(source))

    def rename(self, source: Path, target: Path) -> None:
        self.link(source, target)
        self.remove(source)

    @staticmethod
    def sync(node: Node) -> None:
        if isinstance(node, Folder):
            node.sync()
        else:
            node.synced = bytes(node.data)

    def cut_power(self, into: Path, choose: Choose) -> None:
        """Make in the folder `into`, which is emptied first, what may be found afterwards."""
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        _restore(self.root, into, choose)


def _restore(folder: Folder, into: Path, choose: Choose) -> None:
    for name in sorted(folder.durable.keys() | folder.since.keys()):
        possible = [folder.durable.get(name), *folder.since.get(name, [])]
        node = possible[choose(len(possible))]
        if isinstance(node, Folder):
            (into / name).mkdir()
            _restore(node, into / name, choose)
        elif node is not None:
            (into / name).write_bytes(_content(node, choose))


def _content(file: File, choose: Choose) -> bytes:
    live = bytes(file.data)
    if live == file.synced:
        return live
    return (file.synced or b"", bytes(len(live)), live[: len(live) // 2], live)[choose(4)]

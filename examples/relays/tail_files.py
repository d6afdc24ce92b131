"""Follow log files into a topic: each line once, although this program, a broker or the machine dies.

    pip install "ledgermq[broker]"
    python examples/relays/tail_files.py TARGET TOPIC PATTERN… [--name NAME] [--once]

TARGET: addresses of brokers, or the URL of a root. PATTERN: a path whose last part may have `*`, `?` and `[…]`,
such as '/var/log/app/app.log*'. It has to match a file after its rotation, too, so that the program finds the rest
of it. NAME: of this program (by default that of the machine); two programs need two names. --once: end when all is
read. docs/relays.md says what is promised.

One transaction has the lines, and how much of each file was sent: a record of the keyed topic `relay-positions`. So
after each crash either both are stored or neither is, and the next run continues from there. The transactional id
fences a run before that still goes on.

A file is known by its inode. A digest of its first bytes, and of those before the position, tells whether it still
has the same contents. Otherwise it was truncated, or its inode was given to another file, and it is read from its
beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ledgermq
from ledgermq.client.messages.record import Record
from ledgermq.errors import TransactionAborted, TransactionOutcomeUnknown, Unavailable

POSITIONS = "relay-positions"
PIECE_BYTES = 256 * 1024
"""A longer line is sent in pieces."""
TRANSACTION_BYTES = 1024 * 1024
MARK_BYTES = 512
PAUSE_S = 0.5
GONE_S = 10.0
"""How long a file that was removed is still read: its writer may go on for a while."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class File:
    """An open file, and how much of it is in the topic: `offset` bytes, which begin with `head` and end with `tail`."""

    def __init__(self, key: str, path: Path, descriptor: int) -> None:
        self.key, self.path, self.descriptor = key, path, descriptor
        self.offset, self.head, self.tail = 0, b"", b""
        self.gone_since_s: float | None = None

    def restore(self, position: bytes | None) -> None:
        """Go to a position that was stored, if the file still has the contents of that time; else to its beginning."""
        self.offset, self.head, self.tail = 0, b"", b""
        if position is not None:
            stored = json.loads(position)
            head, tail = self._ends(stored["offset"])
            if _digest(head, tail) == stored["digest"]:
                self.offset, self.head, self.tail = stored["offset"], head, tail
            else:
                _say(f"{self.path}: other contents than before, reading from its beginning")

    def position(self, data: bytes) -> bytes:
        """Return what is stored when `data` was sent."""
        head, tail = self._grown(data)
        stored = {"offset": self.offset + len(data), "digest": _digest(head, tail), "path": str(self.path)}
        return json.dumps(stored).encode()

    def advance(self, data: bytes) -> None:
        self.head, self.tail = self._grown(data)
        self.offset += len(data)

    def read(self, bytes_max: int, *, to_end: bool = False) -> bytes:
        """Return what follows the position: whole lines, or a piece of one that is too long; `to_end`: also what has
        no end of a line. Only afterwards the contents before are compared, so that they were the same while it read.
        """
        data = os.pread(self.descriptor, bytes_max, self.offset)
        if self._ends(self.offset) != (self.head, self.tail):
            _say(f"{self.path}: truncated, reading from its beginning")
            self.offset, self.head, self.tail = 0, b"", b""
            return b""
        if whole := data.rfind(b"\n") + 1:
            return data[:whole]
        return data[:PIECE_BYTES] if to_end or len(data) >= PIECE_BYTES else b""

    def records(self, data: bytes, source: str) -> Iterator[Record]:
        """Yield a record for each line. All lines of a source have one key: they keep their order."""
        at = self.offset
        for line in io.BytesIO(data):
            for start in range(0, len(line), PIECE_BYTES):
                piece = line[start : start + PIECE_BYTES]
                more = {} if piece.endswith(b"\n") else {"more": "1"}
                yield Record(piece.removesuffix(b"\n"), source, {"file": str(self.path), "at": str(at)} | more)
                at += len(piece)

    def _ends(self, offset: int) -> tuple[bytes, bytes]:
        length = min(MARK_BYTES, offset)
        return os.pread(self.descriptor, length, 0), os.pread(self.descriptor, length, offset - length)

    def _grown(self, data: bytes) -> tuple[bytes, bytes]:
        return (self.head + data)[:MARK_BYTES], (self.tail + data)[-MARK_BYTES:]


class Source:
    """The files of one pattern. `known`: the stored positions by key."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = f"{name}:{pattern}"
        self._prefix = f"{name}\0{pattern}\0"
        self._folder, self._glob = Path(pattern).parent, Path(pattern).name
        self._files: dict[int, File] = {}
        self._known: dict[str, bytes] = {}
        self._refused: set[Path] = set()

    def restore(self, positions: dict[str, bytes]) -> None:
        """Take the stored positions, also for files that are open."""
        self._known = {key: value for key, value in positions.items() if key.startswith(self._prefix)}
        for file in self._files.values():
            file.restore(self._known.get(file.key))

    def collect(self, now_s: float) -> list[tuple[File, bytes]]:
        """Return new data of files, the oldest file first, `TRANSACTION_BYTES` at most."""
        found: list[tuple[File, bytes]] = []
        room = TRANSACTION_BYTES
        for file in self._look(now_s):
            data = file.read(room, to_end=file.gone_since_s is not None and now_s > file.gone_since_s + GONE_S / 2)
            if data:
                found.append((file, data))
                room -= len(data)
                if file.gone_since_s is not None:
                    file.gone_since_s = now_s
            if room < PIECE_BYTES:
                break
        return found

    def forgotten(self, now_s: float) -> list[str]:
        """Return the keys of files that are no longer there. None while the folder is not there, as before a mount."""
        if not self._folder.is_dir():
            return []
        files = self._files.values()
        kept = {file.key for file in files if file.gone_since_s is None or now_s < file.gone_since_s + GONE_S}
        return [key for key in {*self._known, *(file.key for file in files)} if key not in kept]

    def note_stored(self, file: File, data: bytes) -> None:
        self._known[file.key] = file.position(data)
        file.advance(data)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)
        for inode, file in list(self._files.items()):
            if file.key == key:
                os.close(self._files.pop(inode).descriptor)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    def _look(self, now_s: float) -> list[File]:
        """Return the files, those that are gone first, the others by the time of their last change."""
        times: dict[int, int] = {}
        for path in sorted(self._folder.glob(self._glob), reverse=True):
            try:
                there = path.stat()
                if not stat.S_ISREG(there.st_mode) or path.name.endswith(COMPRESSED):
                    continue
                inode = there.st_ino if there.st_ino in self._files else self._open(path)
            except FileNotFoundError:  # renamed since
                continue
            except OSError as error:
                if path not in self._refused:
                    _say(f"{path}: cannot be read: {error}")
                self._refused.add(path)
                continue
            self._files[inode].path = path
            times[inode] = there.st_mtime_ns
        for inode, file in self._files.items():
            file.gone_since_s = None if inode in times else file.gone_since_s or now_s
        return sorted(self._files.values(), key=lambda file: times.get(os.fstat(file.descriptor).st_ino, 0))

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        inode = os.fstat(descriptor).st_ino
        if inode in self._files:  # renamed between the two looks
            os.close(descriptor)
            return inode
        self._files[inode] = file = File(f"{self._prefix}{inode}", path, descriptor)
        file.restore(self._known.get(file.key))
        return inode


Step = Callable[[str], None]
"""Called before each step with its name, for tests that end the program there."""


async def follow(
    client: ledgermq.Client,
    topic: str,
    patterns: list[str],
    name: str,
    *,
    once: bool = False,
    step: Step = lambda _: None,
) -> None:
    """Send the lines of all files until cancelled; `once`: until all is read.

    Raises TransactionFenced when another program has begun with this name, and other errors of the client, such as
    UnknownTopic. After an error that may pass it begins again, from what is stored.
    """
    await client.create_topic(POSITIONS, 1, {"cleanup.policy": "compact"}, if_not_exists=True)
    sources = [Source(name, pattern) for pattern in patterns]
    try:
        while True:
            try:
                async with client.transactions(f"tail-{name}") as transactions:  # fences, and settles what was open
                    async with client.table(POSITIONS) as table:
                        positions = {key.decode(): value for key, value in table.items()}
                    for source in sources:
                        source.restore(positions)
                    step("begin")
                    while True:
                        sent = [await _send_new(transactions, topic, source, step) for source in sources]
                        if once and not any(sent):
                            return
                        if not any(sent):
                            await asyncio.sleep(PAUSE_S)
            except (TransactionAborted, TransactionOutcomeUnknown, Unavailable) as error:
                _say(f"once more, from what is stored: {error}")
                await asyncio.sleep(PAUSE_S)
    finally:
        for source in sources:
            source.close()


async def _send_new(transactions: ledgermq.Transactions, topic: str, source: Source, step: Step) -> bool:
    """Send what is new in a source, with the positions. Return whether there was anything."""
    now_s = asyncio.get_running_loop().time()
    new = source.collect(now_s)
    forgotten = source.forgotten(now_s)
    if not new and not forgotten:
        return False
    async with transactions.begin() as transaction:
        step("send")
        for file, data in new:
            await transaction.send_many(topic, file.records(data, source.name))
            transaction.send(POSITIONS, file.position(data), key=file.key)
        for key in forgotten:
            transaction.send(POSITIONS, None, key=key)
        step("stage")
        await transaction.flush()
        step("commit")
    step("committed")
    for file, data in new:
        source.note_stored(file, data)
    for key in forgotten:
        source.forget(key)
    return bool(new)


def _digest(head: bytes, tail: bytes) -> str:
    return hashlib.sha256(head + tail).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("pattern", nargs="+")
    parser.add_argument("--name", default=socket.gethostname())
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    patterns = [str(Path(pattern).absolute()) for pattern in given.pattern]
    asyncio.run(run(given.target, given.topic, patterns, given.name, once=given.once))


async def run(target: str, topic: str, patterns: list[str], name: str, *, once: bool) -> None:
    async with ledgermq.connect(target) as client:
        await follow(client, topic, patterns, name, once=once)


if __name__ == "__main__":
    main()

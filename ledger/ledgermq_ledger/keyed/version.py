"""Read and put the versions of a keyed partition: a numbered chain `versions/<number>`, each put
once; the highest number counts (docs/decisions/0022).

    {"attempt": "<32 hex digits>", "checksum": "<8 hex digits>", "cluster": …,
     "earlier": [[end, published ms], …], "end": …,
     "files": [{"key": …, "first": …, "last": …, "rows": …, "tombstones": …, "size": …,
                "timestamp_min_us": …, "timestamp_max_us": …}, …],
     "expired_ms": …, "format": 1, "number": …, "partition": …, "tombstones_to": …, "topic": …, "topic_id": …}

JSON, so that readers of plain Parquet need nothing of ours. The checksum is the CRC-32C of the
whole object with zeros for its digits. Invariants: files ascend and do not overlap; all lie below
`end`; together they hold each key once (that is the tasks' business).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import chain, pairwise
from typing import Any

from crc32c import crc32c

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore

LOOKS_MAX = 100
FORMAT = 1
EARLIER_MAX = 64
NUMBER_MAX = 2**63 - 1
_BLANK = "00000000"
_MARK = b'"checksum": "'


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file of a version: records with offsets from `first` to `last`, with gaps; `size` in bytes;
    timestamps are 0 if no record has one.

    `timestamp_min_us`: that of the records that may still expire; the last record of a version
    stays however old it is.
    """

    key: str
    first: int
    last: int
    rows: int
    tombstones: int
    size: int
    timestamp_min_us: int
    timestamp_max_us: int


@dataclass(frozen=True, slots=True)
class KeyedVersion:
    """The latest record of each key below `end`.

    `earlier`: ends of versions before it, with the store's time of their publication.
    `tombstones_to`: no tombstone is left below it. `expired_ms`: records older than `retention.ms`
    at this time were removed; 0: never yet.
    """

    place: PartitionId
    topic: str
    cluster: str
    number: int
    attempt: bytes
    end: int
    files: tuple[KeyedFile, ...] = ()
    earlier: tuple[tuple[int, int], ...] = ()
    tombstones_to: int = 0
    expired_ms: int = 0

    @property
    def key(self) -> str:
        return keys.keyed_version(self.place, self.number)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def check(self) -> None:
        """Check the fields. Raises ValueError, TypeError."""
        numbers = [self.number, self.end, self.tombstones_to, self.expired_ms, *chain.from_iterable(self.earlier)]
        numbers += chain.from_iterable(astuple(file)[1:] for file in self.files)
        if not all(type(number) is int and -NUMBER_MAX <= number <= NUMBER_MAX for number in numbers):
            raise TypeError("offsets, sizes and times have to be 64-bit integers")
        if not all(type(text) is str for text in (self.topic, self.cluster, *(file.key for file in self.files))):
            raise TypeError("names have to be text")
        for before, after in pairwise(self.files):
            if after.first <= before.last:
                raise ValueError(f"{after.key} overlaps {before.key}")
        if any(file.first > file.last or file.rows < 1 for file in self.files) or (
            self.files and self.files[-1].last >= self.end
        ):
            raise ValueError("its files do not end where it ends")


def nothing_yet(place: PartitionId, topic: str, cluster: str, end: int) -> KeyedVersion:
    """Return the version of number 0, which no object holds."""
    return KeyedVersion(place, topic, cluster, 0, bytes(16), end)


def encode_version(version: KeyedVersion) -> bytes:
    version.check()
    found = {
        "format": FORMAT,
        "checksum": _BLANK,
        "cluster": version.cluster,
        "topic": version.topic,
        "topic_id": version.place.topic_id,
        "partition": version.place.partition,
        "number": version.number,
        "attempt": version.attempt.hex(),
        "end": version.end,
        "earlier": version.earlier,
        "tombstones_to": version.tombstones_to,
        "expired_ms": version.expired_ms,
        "files": [asdict(file) for file in version.files],
    }
    data = json.dumps(found, sort_keys=True).encode() + b"\n"
    return _filled(data, f"{crc32c(data):08x}")


def decode_version(data: bytes, key: str, place: PartitionId) -> KeyedVersion:
    """Decode a version. Raises DataDamaged, FormatNotSupported, naming `key`."""
    try:
        found: Any = json.loads(data)
        if found["format"] != FORMAT:
            raise FormatNotSupported(f"{key}: format {found['format']!r}, this software reads {FORMAT}", object_key=key)
        if f"{crc32c(_filled(data, _BLANK)):08x}" != found["checksum"]:
            raise ValueError("its checksum does not match its fields")
        version = KeyedVersion(
            place=PartitionId(found["topic_id"], found["partition"]),
            topic=found["topic"],
            cluster=found["cluster"],
            number=found["number"],
            attempt=bytes.fromhex(found["attempt"]),
            end=found["end"],
            files=tuple(KeyedFile(**file) for file in found["files"]),
            earlier=tuple((end, published_ms) for end, published_ms in found["earlier"]),
            tombstones_to=found["tombstones_to"],
            expired_ms=found.get("expired_ms", 0),
        )
        version.check()
        if version.place != place or version.key != key:
            raise ValueError(f"it says that it is {version.key}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataDamaged(
            f"{key}: this is not a valid version of a keyed partition: {error!r}", object_key=key
        ) from error
    return version


def _filled(data: bytes, digits: str) -> bytes:
    """Return the bytes with these digits as the checksum. Raises ValueError."""
    at = data.index(_MARK) + len(_MARK)
    return data[:at] + digits.encode() + data[at + len(digits) :]


@dataclass(frozen=True, slots=True)
class Published:
    """A version as read, and when it was put, by the store's clock."""

    version: KeyedVersion
    published_ms: int


async def read_version(store: ObjectStore, place: PartitionId, number: int) -> KeyedVersion:
    """Read one version. Raises ObjectMissing, DataDamaged, FormatNotSupported."""
    key = keys.keyed_version(place, number)
    return decode_version(await store.get(key), key, place)


async def newest_version(store: ObjectStore, place: PartitionId) -> Published | None:
    """Return the newest version by a LIST made now; None if there is none yet. A damaged newest
    version is an error that names it.
    """
    rereads = Rereads(
        LOOKS_MAX,
        f"{keys.keyed_folder(place)}: its versions were removed during each attempt to read them; retry later",
    )
    while True:
        rereads.begin()
        newest = [found async for found in list_numbered(store, keys.keyed_versions(place))][-1:]
        if not newest:
            return None
        number, info = newest[0]
        try:
            return Published(await read_version(store, place, number), info.modified_ms)
        except ObjectMissing:
            continue  # a higher one exists


def earlier_of(base: Published | None, keep_ms: int, now_ms: int) -> tuple[tuple[int, int], ...]:
    """Return `earlier` of the version after `base`: every version that still has to age, and the
    newest that has.
    """
    if base is None:
        return ()
    known = (*base.version.earlier, (base.version.end, base.published_ms))
    aged = [each for each in known if each[1] <= now_ms - keep_ms]
    young = [each for each in known if each[1] > now_ms - keep_ms]
    return (*aged[-1:], *_thinned(young))


def _thinned(young: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return at most `EARLIER_MAX` of them: dropping one only lets tombstones stay longer.

    The oldest is the next to age, so it stays.
    """
    while len(young) > EARLIER_MAX:
        young = [each for i, each in enumerate(young) if i % 2 == 0 or i == len(young) - 1]
    return young


def aged_end(earlier: Sequence[tuple[int, int]], keep_ms: int, now_ms: int) -> int:
    """Return the offset below which tombstones have been in a version for `keep_ms`."""
    return max((end for end, published_ms in earlier if published_ms <= now_ms - keep_ms), default=0)

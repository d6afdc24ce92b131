"""Check that a store keeps what ledgers need of it: each rule once, for the contract's tests and for
`ledgermq store check`.

A check gets two openings of one store, as two processes have them, and a separate prefix, below
which it writes. It returns what it found, and raises Broken for a rule that the store breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ledgermq.errors import LedgerMQError, StoreError
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    Buffer,
    FenceClosed,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
)
from ledgermq_ledger.object_store.names import KEY_LENGTH_MAX
from ledgermq_ledger.object_store.probe import probe_store
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS, StoreWrapper

CHECKED = "parquet/_check-"
"""Beginning of the prefix of a check. Readers of Parquet pass over names that begin with "_", and
stores with real folders remove empty ones there.
"""
ROUNDS = 10
RACERS = 12
LISTED = 30
LARGE_BYTES = 16 << 20
URL_LIFE_MS = 60_000
EXPIRING_MS = 6_000
EXPIRED_S = 8.0
"""When a permission of EXPIRING_MS has certainly ended: clocks count whole seconds."""
CLOCK_ROUNDING_MS = 1000
"""The clocks of some stores have whole seconds."""

T = TypeVar("T")


class Broken(LedgerMQError):
    """The store does not keep a rule."""

    code = "STORE_BREAKS_RULE"


@dataclass(frozen=True, slots=True)
class Place:
    """`prefix`: ends with "/"; the check's own."""

    store: ObjectStore
    other: ObjectStore
    prefix: str
    sources: Sources


@dataclass(frozen=True, slots=True)
class Result:
    """`found`: what the store did, or which rule it broke and how."""

    check: str
    kept: bool
    found: str


Check = Callable[[Place], Awaitable[str]]


async def check_store(store: ObjectStore, other: ObjectStore, sources: Sources) -> list[Result]:
    """Try every check below a fresh prefix, and remove all that was written. `other`: a second opening
    of the same store. An error of the store is the result of its check. Raises Unauthorized and
    Unavailable if the store does not even let one object be created.
    """
    prefix = f"{CHECKED}{sources.new_id().hex()}/"
    first, second = _Noting(store), _Noting(other)
    results = [await _result("create", CHECKS["create"], Place(first, second, f"{prefix}create/", sources), StoreError)]
    try:
        for name, check in CHECKS.items():
            if name != "create":
                results.append(await _result(name, check, Place(first, second, f"{prefix}{name}/", sources)))
    finally:
        written = sorted(first.keys | second.keys)
        cleaned = await _result("clean-up", lambda place: _clean(place, written), Place(store, other, prefix, sources))
    return [*results, cleaned]


async def _clean(place: Place, written: Sequence[str]) -> str:
    await place.store.delete(written)
    left = [info.key async for info in place.other.list(place.prefix)]
    await place.store.delete(left)  # a store that changes names has these under others
    _demand(not left, f"deleted, and still listed: {', '.join(left)}")
    return f"{len(written)} objects were written, and none is left"


async def _result(name: str, check: Check, place: Place, findings: type[LedgerMQError] = LedgerMQError) -> Result:
    """Return the result of a check. `findings`: errors that are one; others are raised."""
    try:
        return Result(name, True, await check(place))
    except findings as error:
        return Result(name, False, error.message)


class _Noting(StoreWrapper):
    """Notes the keys that are put, so that they can be deleted whatever a list shows."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.keys: set[str] = set()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in PUTS:
            self.keys.add(what)
        return await step()


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


async def _put(place: Place, key: str, buffers: Sequence[Buffer]) -> None:
    """Create an object; a put without a clear answer is settled."""
    outcome = await settle_put(place.store, key, buffers, sources=place.sources)
    _demand(outcome is PutOutcome.WON, f"{key}: an object was not created where none was: {outcome.name}")


async def _create(place: Place) -> str:
    await probe_store(place.store, place.sources, below=place.prefix)
    return "the second put of one key is refused, and the first one's content stays"


async def _race(place: Place) -> str:
    key = f"{place.prefix}race"
    stores = (place.store, place.other)
    for _ in range(ROUNDS):
        outcomes = await asyncio.gather(
            *(settle_put(stores[i % 2], key, [b"racer %02d" % i], sources=place.sources) for i in range(RACERS))
        )
        winners = [i for i, outcome in enumerate(outcomes) if outcome is PutOutcome.WON]
        _demand(PutOutcome.UNKNOWN not in outcomes, f"{key}: the store does not say which of {RACERS} puts has won")
        _demand(len(winners) == 1, f"{len(winners)} of {RACERS} puts of one key at the same time have won, not 1")
        found = await place.other.get(key)
        _demand(found == b"racer %02d" % winners[0], f"the object is not the winner's: {found!r}")
        await place.store.delete([key])
    return f"{ROUNDS} times exactly one of {RACERS} puts at the same time has won"


async def _replace(place: Place) -> str:
    key = f"{place.prefix}replaced"
    await place.store.put(key, b"one")
    before = await place.other.head(key)
    await place.store.put(key, b"two")
    after = await place.other.head(key)
    _demand(await place.other.get(key) == b"two", "a reader sees the content from before the put")
    _demand((before.size, after.size) == (3, 3), f"sizes {before.size} and {after.size} of objects of 3 bytes")
    _demand(before.etag != after.etag, f"the etag {after.etag} stays when the content changes")
    return "a put replaces the object at once, and its etag changes"


RANGES = ((0, 10, b"0123456789"), (3, 4, b"3456"), (8, 100, b"89"), (10, 1, b""), (1000, 1, b""), (2, 0, b""))
SUFFIXES = ((3, b"789"), (10, b"0123456789"), (1000, b"0123456789"), (0, b""))


async def _ranges(place: Place) -> str:
    key = f"{place.prefix}ten"
    await _put(place, key, [b"0123456789"])
    for start, length, wanted in RANGES:
        found = bytes(await place.other.get_range(key, start, length))
        _demand(found == wanted, f"{length} bytes from {start} of 10 are {found!r}, not {wanted!r}")
    for length, wanted in SUFFIXES:
        found = await place.other.get_suffix(key, length)
        _demand(found == wanted, f"the last {length} bytes of 10 are {found!r}, not {wanted!r}")
    return "ranges and ends of an object are exact, also beyond its end"


async def _missing(place: Place) -> str:
    await _put(place, f"{place.prefix}a/b", [b"x"])
    for key in (f"{place.prefix}{name}" for name in ("nothing", "a", "a/b/c", "a/c")):
        reads: tuple[partial[Coroutine[Any, Any, Any]], ...] = (
            partial(place.store.get, key),
            partial(place.store.get_range, key, 0, 1),
            partial(place.store.get_range, key, 0, 0),
            partial(place.store.get_suffix, key, 1),
            partial(place.store.get_suffix, key, 0),
            partial(place.store.head, key),
        )
        for read in reads:
            try:
                found = await read()
            except ObjectMissing:
                continue
            raise Broken(f"{read.func.__name__} of {key}, which does not exist, returns {found!r}")
    return "every read of a missing object says so"


async def _listing(place: Place) -> str:
    names = [f"{place.prefix}{i:02d}" for i in range(LISTED)]
    for name in reversed(names):
        await _put(place, name, [b"x"])
        found = [info.key async for info in place.other.list(name)]
        _demand(found == [name], f"a list right after the put of {name} shows {found}")
    found = [info.key async for info in place.other.list(place.prefix)]
    _demand(found == names, f"a list of {LISTED} keys is not all of them in order: {found}")
    found = [info.key async for info in place.other.list(place.prefix, names[9])]
    _demand(found == names[10:], f"a list after {names[9]} is not all that follow: {found}")
    return f"{LISTED} objects were listed right after their puts, in order, from the start and from a key"


async def _delete(place: Place) -> str:
    names = [f"{place.prefix}{i}" for i in range(3)]
    for name in names:
        await _put(place, name, [b"x"])
    await place.store.delete([])
    await place.store.delete([names[0], names[0], f"{place.prefix}nothing"])
    await place.store.delete(names[:2])
    found = [info.key async for info in place.other.list(place.prefix)]
    _demand(found == names[2:], f"a list right after deletions shows {found}, not {names[2:]}")
    await _put(place, names[0], [b"again"])
    _demand(await place.other.get(names[0]) == b"again", f"{names[0]}: a deleted object cannot be created again")
    return "deleted objects are gone at once, may be deleted again, and created again"


async def _clock(place: Place) -> str:
    key = f"{place.prefix}clock"
    here_ms, before_ms = place.sources.now_ms(), await place.store.store_time_ms()
    await _put(place, key, [b"12345"])
    after_ms = await place.other.store_time_ms()
    _demand(after_ms >= before_ms, f"the store's clock went back by {before_ms - after_ms} ms")
    listed = [info async for info in place.other.list(key)]
    _demand(len(listed) == 1, f"a list right after the put of {key} shows {[info.key for info in listed]}")
    for info in (await place.other.head(key), *listed):
        early_ms, late_ms = before_ms - CLOCK_ROUNDING_MS, after_ms + CLOCK_ROUNDING_MS
        _demand(early_ms <= info.modified_ms <= late_ms, "the time of a new object is not that of the store's clock")
        _demand(_facts(info) == _facts(listed[0]), f"head and list disagree: {info}, {listed[0]}")
    return f"the store's clock and this machine's are {abs(before_ms - here_ms)} ms apart"


def _facts(info: ObjectInfo) -> tuple[str, int, str]:
    return info.key, info.size, info.etag


async def _names(place: Place) -> str:
    every = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=-"
    long = place.prefix
    while len(long) < KEY_LENGTH_MAX:
        long += "k" * min(180, KEY_LENGTH_MAX - len(long)) + "/"
    long = long[:KEY_LENGTH_MAX].removesuffix("/")
    for key in (f"{place.prefix}{every}", long):
        await _put(place, key, [key.encode()])
        _demand(await place.other.get(key) == key.encode(), f"{key}: other content than was put")
        _demand([info.key async for info in place.other.list(key)] == [key], f"{key}: a list changes the name")
    return f"keys of up to {len(long)} bytes, and of every character that is used"


async def _large(place: Place) -> str:
    key, quarter = f"{place.prefix}large", LARGE_BYTES // 4
    parts = [bytes([65 + i]) * quarter for i in range(4)]
    began = asyncio.get_running_loop().time()
    await _put(place, key, [*parts, b"end"])
    seconds = asyncio.get_running_loop().time() - began
    _demand(await place.other.get(key) == b"".join(parts) + b"end", "a large object is not read as it was put")
    middle = bytes(await place.other.get_range(key, quarter - 2, 4))
    _demand(middle == b"AABB", f"a range of a large object is {middle!r}, not b'AABB'")
    return f"an object of {LARGE_BYTES >> 20} MiB was put in {seconds:.2f} s, and read whole"


async def _fences(place: Place) -> str:
    fence = f"0001-check-{place.sources.new_id().hex()}"
    key = f"{place.prefix}fenced"
    await place.store.open_fence(fence)
    try:
        puts = await place.store.fenced_puts(fence, [key], URL_LIFE_MS)
        await puts.put_if_absent(key, [b"first"])
        try:
            await puts.put_if_absent(key, [b"second"])
            raise Broken(f"{key}: a put by a permission overwrites an object")
        except AlreadyExists:
            _demand(await place.other.get(key) == b"first", f"{key}: a refused put has changed the object")
    finally:
        await place.other.close_fence(fence)
    return "puts by a permission create, and never overwrite"


async def _expiry(place: Place) -> str:
    """Puts by a permission that has ended: by its age where the store closes no fence."""
    fence, key = f"0001-check-{place.sources.new_id().hex()}", f"{place.prefix}late"
    await place.store.open_fence(fence)
    try:
        puts = await place.store.fenced_puts(fence, [key], EXPIRING_MS)
    finally:
        await place.other.close_fence(fence)
    if not place.store.fences_close_at_once:
        await asyncio.sleep(EXPIRED_S)
    try:
        await puts.put_if_absent(key, [b"late"])
    except FenceClosed:
        return "a put is refused once its permission has ended"
    raise Broken(
        "a put succeeds after its permission has ended, so a compaction that was given up could still write; "
        "the store has to refuse presigned URLs that have expired"
    )


CHECKS: dict[str, Check] = {
    "create": _create,
    "race": _race,
    "replace": _replace,
    "ranges": _ranges,
    "missing": _missing,
    "listing": _listing,
    "delete": _delete,
    "clock": _clock,
    "names": _names,
    "large": _large,
    "fences": _fences,
    "expiry": _expiry,
}

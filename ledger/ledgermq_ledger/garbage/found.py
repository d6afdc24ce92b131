"""Hold what may be removed from a root, as values: what each kind's `find` returns, and what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore


class Kind(StrEnum):
    SEGMENT = "segment"
    PLAN = "plan"
    CHECKPOINT = "checkpoint"
    PAGE = "page"
    SNAPSHOT = "snapshot"
    PARQUET = "parquet"
    KEYED = "keyed"
    MERGED = "merged"
    STAGED = "staged rows"
    FENCE = "fence"
    HEARTBEAT = "heartbeat"
    HELD = "held for cuts"
    CUT = "cut"


@dataclass(frozen=True, slots=True, order=True)
class Removable:
    """An object that nothing needs. `size` in bytes. `modified_ms` by the store's clock; 0 for
    fences, which have no time. `why`: text for operators.

    `age_ms`: the minimum age, whatever the grace of a sweep is.
    """

    kind: Kind
    key: str
    size: int
    modified_ms: int
    why: str
    age_ms: int = 0

    @classmethod
    def of(cls, kind: Kind, info: ObjectInfo, why: str, age_ms: int = 0) -> Removable:
        return cls(kind, info.key, info.size, info.modified_ms, why, age_ms)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An object that nothing needs, and that is within its grace.

    `free_ms`: the earliest time at which it may be removed, by the store's clock.
    """

    kind: Kind
    key: str
    size: int
    free_ms: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a deleted topic that can be brought back keeps: files and versions, `bytes` of them, until `until_ms`.

    What is not compacted yet stands in segments with records of other topics, and is not counted.
    """

    topic: str
    objects: int
    bytes: int
    until_ms: int


@dataclass(slots=True)
class Found:
    """`waiting`: objects that are removed later, so they are not yet in `removable`. `archived`:
    how many of the Parquet files are moved to an archive.

    `fences_kept`: slots below the trim slot that stay forever, because each keeps a fenced writer
    out: claims, void segments. `foreign`: objects that are not LedgerMQ's; never removed.
    `failures`: where the search was incomplete.
    """

    removable: list[Removable] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    archived: int = 0
    fences_kept: int = 0
    foreign: list[str] = field(default_factory=list)
    failures: dict[str, LedgerMQError] = field(default_factory=dict)

    def add(self, candidates: Iterable[Removable], now_ms: int, grace_ms: int) -> set[str]:
        """Divide them by their age; return the keys of those that wait."""
        waiting = set()
        known = {each.key for each in self.removable}
        for each in candidates:
            free_ms = each.modified_ms + max(grace_ms, each.age_ms)
            if each.kind is not Kind.FENCE and now_ms < free_ms:
                self.waiting.append(Waiting(each.kind, each.key, each.size, free_ms))
                waiting.add(each.key)
            elif each.key not in known:
                self.removable.append(each)
        return waiting

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.removable)

    def by_kind(self) -> list[tuple[Kind, int, int]]:
        """Return (kind, objects, bytes) of the kinds that occur."""
        counts = Counter(each.kind for each in self.removable)
        return [
            (kind, counts[kind], sum(each.size for each in self.removable if each.kind is kind))
            for kind in Kind
            if counts[kind]
        ]

    def waiting_by_kind(self) -> list[tuple[Kind, list[Waiting]]]:
        """Return the waiting objects of the kinds that occur."""
        found = [(kind, [each for each in self.waiting if each.kind is kind]) for kind in Kind]
        return [(kind, waiting) for kind, waiting in found if waiting]

    def of(self, kind: Kind, folder: str = "") -> list[Removable]:
        """Return the objects of a kind below a folder, by their keys."""
        found = [each for each in self.removable if each.kind is kind and each.key.startswith(folder)]
        return sorted(found, key=lambda each: each.key)

    def keys(self, kind: Kind) -> list[str]:
        return [each.key for each in self.of(kind)]


async def delete(store: ObjectStore, found: Iterable[Removable], gate: Gate | None = None) -> list[str]:
    """Delete the objects in the given order, as `Gate.delete` does, and return their keys. `gate`: needed for
    objects that hold records of a topic; None: for those of one ledger, the gate of its newest checkpoint.
    """
    wanted = [each.key for each in found]
    if gate is None and wanted and (bundle := keys.parse_ledger(wanted[0])) is not None:
        gate = await Gate.of(store, await newest_checkpoint(store, bundle))
    return await (gate or Gate()).delete(store, wanted)

"""What of a root may be removed, as values: what garbage collection found, and what it leaves
alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from ledgermq.errors import LedgerMQError


class Kind(StrEnum):
    SEGMENT = "segment"
    PLAN = "plan"
    CHECKPOINT = "checkpoint"
    PAGE = "page"
    SNAPSHOT = "snapshot"
    PARQUET = "parquet"
    KEYED = "keyed"
    STAGED = "staged rows"
    FENCE = "fence"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True, order=True)
class Removable:
    """`size` in bytes. `modified_ms` by the store's clock; 0 for fences, which have no time of
    their own. `why`: for people.
    """

    kind: Kind
    key: str
    size: int
    modified_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing needs it, and it is within its grace.

    `free_ms`: from when on it may go, by the store's clock, at the earliest.
    """

    kind: Kind
    key: str
    size: int
    free_ms: int


@dataclass(slots=True)
class Found:
    """`waiting`: what goes later, so it is not yet in `removable`. `archived`: how many of the
    Parquet files are moved to an archive.

    `fences_kept`: slots below the trim slot that stay for ever, for each keeps somebody from
    writing there who must not: claims, void segments. `foreign`: what no LedgerMQ process puts, or
    what cannot be told; never removed. `failures`: where not all could be found.
    """

    removable: list[Removable] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    archived: int = 0
    fences_kept: int = 0
    foreign: list[str] = field(default_factory=list)
    failures: dict[str, LedgerMQError] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.removable)

    def by_kind(self) -> list[tuple[Kind, int, int]]:
        """(kind, objects, bytes), of the kinds that there are."""
        counts = Counter(each.kind for each in self.removable)
        return [
            (kind, counts[kind], sum(each.size for each in self.removable if each.kind is kind))
            for kind in Kind
            if counts[kind]
        ]

    def waiting_by_kind(self) -> list[tuple[Kind, list[Waiting]]]:
        """Of the kinds that there are."""
        found = [(kind, [each for each in self.waiting if each.kind is kind]) for kind in Kind]
        return [(kind, waiting) for kind, waiting in found if waiting]

    def keys(self, kind: Kind) -> list[str]:
        return sorted(each.key for each in self.removable if each.kind is kind)

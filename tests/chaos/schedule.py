"""Draw the troubles of a run, with their times, targets and durations: a pure function of the
seed.

Troubles of the same object follow each other; troubles of different objects overlap, also those of
one broker (a paused process whose line to the store is cut at the same time). Single troubles kill,
pause or stop at most all brokers but one at a time; `KILL_ALL` is a separate trouble. Independent
of processes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    KILL = "broker killed (SIGKILL)"
    KILL_ALL = "all brokers killed at once"
    STOP = "broker stopped (SIGTERM)"
    PAUSE = "broker paused"
    PAUSE_LONG = "broker paused past URL life and garbage collection"
    CLIENTS_CUT = "clients cut off from a broker"
    CLIENTS_HELD = "clients' line to a broker held"
    CLIENTS_SLOW = "clients' line to a broker slow"
    STORE_CUT = "broker cut off from the store"
    STORE_HELD = "broker's line to the store held"
    STORE_SLOW = "broker's line to the store slow"
    STORE_NARROW = "broker's line to the store narrow"
    STORE_FLAKY = "broker's connections to the store cut again and again"
    SERVER_KILL = "store killed (SIGKILL)"
    SERVER_STOP = "store stopped (SIGTERM)"
    SERVER_PAUSE = "store paused"
    COMPACT = "rival compaction"
    COMPACT_KILL = "rival compaction killed"
    COMPACT_PAUSE = "rival compaction paused past URL life"
    MEMBER_KILL = "client program killed (SIGKILL)"
    MEMBER_STOP = "client program stopped (SIGTERM)"
    MEMBER_PAUSE = "client program paused past its session"


class Part(Enum):
    """What a trouble touches."""

    PROCESS = "process"
    CLIENTS = "clients"
    LINE = "line"
    SERVER = "server"
    RIVAL = "rival"
    MEMBER = "member"


class _Shape(NamedTuple):
    part: Part
    weight: int
    least_s: float
    most_s: float


_SHAPES: dict[Kind, _Shape] = {
    Kind.KILL: _Shape(Part.PROCESS, 12, 0.2, 6),
    Kind.KILL_ALL: _Shape(Part.PROCESS, 1, 0.2, 3),
    Kind.STOP: _Shape(Part.PROCESS, 6, 0.2, 4),
    Kind.PAUSE: _Shape(Part.PROCESS, 10, 0.3, 8),
    Kind.PAUSE_LONG: _Shape(Part.PROCESS, 3, 22, 32),
    Kind.CLIENTS_CUT: _Shape(Part.CLIENTS, 5, 0.5, 8),
    Kind.CLIENTS_HELD: _Shape(Part.CLIENTS, 5, 0.5, 12),
    Kind.CLIENTS_SLOW: _Shape(Part.CLIENTS, 3, 2, 10),
    Kind.STORE_CUT: _Shape(Part.LINE, 6, 0.5, 10),
    Kind.STORE_HELD: _Shape(Part.LINE, 6, 0.5, 25),
    Kind.STORE_SLOW: _Shape(Part.LINE, 5, 3, 12),
    Kind.STORE_NARROW: _Shape(Part.LINE, 3, 3, 12),
    Kind.STORE_FLAKY: _Shape(Part.LINE, 5, 3, 12),
    Kind.SERVER_KILL: _Shape(Part.SERVER, 4, 0.1, 4),
    Kind.SERVER_STOP: _Shape(Part.SERVER, 2, 0.1, 4),
    Kind.SERVER_PAUSE: _Shape(Part.SERVER, 3, 0.5, 8),
    Kind.COMPACT: _Shape(Part.RIVAL, 2, 5, 15),
    Kind.COMPACT_KILL: _Shape(Part.RIVAL, 8, 0.0, 0.5),
    Kind.COMPACT_PAUSE: _Shape(Part.RIVAL, 4, 6, 30),
    Kind.MEMBER_KILL: _Shape(Part.MEMBER, 8, 0.1, 6),
    Kind.MEMBER_STOP: _Shape(Part.MEMBER, 5, 0.1, 6),
    Kind.MEMBER_PAUSE: _Shape(Part.MEMBER, 5, 7, 20),
}
ALL_KINDS = frozenset(_SHAPES)
OF_A_REMOTE_STORE = frozenset(kind for kind, shape in _SHAPES.items() if shape.part in (Part.LINE, Part.SERVER))
RESTS_S = {Part.PROCESS: 4.0, Part.RIVAL: 2.0, Part.SERVER: 3.0, Part.CLIENTS: 0.5, Part.LINE: 0.5, Part.MEMBER: 4.0}
"""Between two troubles of the same thing: a process needs some time to start."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`who`: the number of the broker or member; None where it touches no single one. `amount`: how
    bad, from 0 to 1.
    """

    number: int
    at_s: float
    kind: Kind
    who: int | None
    lasts_s: float
    amount: float

    @property
    def part(self) -> Part:
        return _SHAPES[self.kind].part

    def __str__(self) -> str:
        who = "" if self.who is None else f", {'member' if self.part is Part.MEMBER else 'broker'} {self.who}"
        return f"{self.number:3} at {self.at_s:6.1f} s: {self.kind.value}{who}, {self.lasts_s:.1f} s"


def schedule(
    seed: int, events: int, seconds: float, brokers: int, members: int, kinds: frozenset[Kind] = ALL_KINDS
) -> tuple[Trouble, ...]:
    """`events` troubles in order of time, all over by `seconds`, about evenly spread."""
    r = random.Random(f"chaos {seed}")
    free_at: dict[tuple[Part, int | None], float] = {}
    troubles: list[Trouble] = []
    for number in range(events):
        at_s = seconds * (number + r.random()) / events
        possible = _possible(at_s, seconds - at_s, free_at, brokers, members, kinds)
        if not possible:  # everything is busy: the thing that is free first, as soon as it is
            at_s = min(max(at_s, free) for free in free_at.values())
            possible = _possible(at_s, seconds - at_s, free_at, brokers, members, kinds)
        kind, who = r.choices(possible, [_SHAPES[kind].weight for kind, _ in possible])[0]
        shape = _SHAPES[kind]
        lasts_s = min(r.uniform(shape.least_s, shape.most_s), max(0.1, seconds - at_s))
        troubles.append(Trouble(number, round(at_s, 2), kind, who, round(lasts_s, 2), round(r.random(), 3)))
        rest_at = at_s + lasts_s + RESTS_S[shape.part]
        for touched in range(brokers) if kind is Kind.KILL_ALL else (who,):
            free_at[shape.part, touched] = rest_at
    return tuple(sorted(troubles, key=lambda trouble: (trouble.at_s, trouble.number)))


def _possible(
    at_s: float,
    left_s: float,
    free_at: dict[tuple[Part, int | None], float],
    brokers: int,
    members: int,
    kinds: frozenset[Kind],
) -> list[tuple[Kind, int | None]]:
    found: list[tuple[Kind, int | None]] = []
    busy = sum(free_at.get((Part.PROCESS, broker), 0) > at_s for broker in range(brokers))
    for kind in Kind:
        part = _SHAPES[kind].part
        if (
            kind not in kinds
            or (_SHAPES[kind].least_s > left_s and _SHAPES[kind].least_s > 1)
            or (part is Part.PROCESS and busy >= brokers - 1)
            or (kind is Kind.KILL_ALL and busy)
        ):
            continue
        whose: list[int | None] = [None]
        if part not in (Part.SERVER, Part.RIVAL):
            whose = list(range(members if part is Part.MEMBER else brokers))
        targets = [who for who in whose if free_at.get((part, who), 0) <= at_s]
        found += [(kind, None)] if kind is Kind.KILL_ALL and targets else [(kind, who) for who in targets]
    return found

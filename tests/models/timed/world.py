"""Bundles with owners and takeovers, whose appends are in flight for a while.

The ledger below is taken for granted (`tests.models.ledger`): appends land in order; when a bundle
changes hands, some that were in flight have landed and the rest never will; a full store refuses
one and with it all behind it, and the term goes on from what is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.models.terms import NOT_OWNER, LateCall, Term, TermsWorld
from tests.models.timed.clock import TICK, OwnersClock
from tests.models.timed.index import Index
from tests.models.timed.judge import Judge
from tests.models.timed.state import NO_ANSWER, RETRY, State, Topic
from tests.models.walk import Process, Walk

BUNDLES = (0, 1)
LATE_WITHIN = 1500
STEPS = 16_000
STEPS_AT_REST = 16_000
FLIGHT_MAX = 4


@dataclass(slots=True)
class Append:
    """One segment. `answer`: what its caller gets once it is durable."""

    after: State
    answer: Any
    outcome: Any = None


class Owner(Term[State]):
    """A term of a bundle. `state`: what is durable; `issued`: the same and what is in flight."""

    world: World

    def __init__(self, world: World, ledger: int, state: State) -> None:
        super().__init__(world, ledger, state)
        self.issued = state
        self.flight: list[Append] = []
        self.index = Index()
        self.clock = OwnersClock(world.walk.random, world.walk.broken)
        self.is_over = False
        """It has lost an append, so it knows."""

    def issue(self, change: Callable[[State], object], answer: Any = "ok") -> Append | str:
        if self.is_over:
            return NOT_OWNER
        if not self.is_current:
            self.world.over.append(self)
        after = self.issued.copy()
        change(after)
        self.issued = after
        self.flight.append(Append(after, answer))
        return self.flight[-1]

    def is_busy(self) -> bool:
        """What it does in the background waits."""
        return len(self.flight) >= FLIGHT_MAX

    def settle(self) -> None:
        """The store does one thing to what is in flight."""
        if not self.is_current:
            self._lose(NOT_OWNER)
            self.is_over = True
        elif self.flight and not self.world.healed and self.world.walk.chance(self.world.refused):
            self._lose(RETRY)
            self.issued = self.state
            if not self.world.breaks("index-kept-after-refusal"):
                self.index = Index()
            self.world.walk.saw("a term went on after an append was refused")
        elif self.flight:
            landed = self.flight.pop(0)
            self.world.judge.landed(self.ledger, self.state, landed.after)
            self.state, landed.outcome = landed.after, landed.answer

    def _lose(self, outcome: str) -> None:
        for append in self.flight:
            append.outcome = outcome
        self.flight.clear()

    def now(self) -> int:
        return self.clock.estimate(self.world.store_time())


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        self.over: list[Owner] = []
        """terms that will learn that they are over"""
        self.judge = Judge(self)
        self.incarnations: dict[str, int] = {}
        self.trimmed: dict[tuple[int, tuple[int, int]], int] = {}
        """(bundle, slot) -> what is below this offset is deleted"""
        self.chunk = walk.random.choice((1, 1, 2))
        """so many records are delivered or turned in one segment"""
        self.refused = walk.random.choice((0.005, 0.05))
        """how often the store refuses an append"""
        self.usurped = walk.random.choice((0, 0.01, 0.1))
        """how often a bundle is taken over while an append is in flight"""
        self.working = 0
        """how many clients have something left to do"""
        super().__init__(walk, [State() for _ in BUNDLES], late_within=LATE_WITHIN)
        self.terms = [Owner(self, bundle, State()) for bundle in BUNDLES]

    def store_time(self) -> float:
        return self.now / TICK

    def topic(self, name: str) -> Topic:
        return Topic(name, self.incarnations.setdefault(name, 0))

    def successor(self, before: Term[State]) -> Owner:
        """Some of what is in flight has landed, though the owner before does not know."""
        assert isinstance(before, Owner)
        durable = before.state
        for append in before.flight[: self.walk.random.randrange(len(before.flight) + 1)]:
            self.judge.landed(before.ledger, durable, append.after)
            durable = append.after
        self.over.append(before)
        return Owner(self, before.ledger, durable)

    def owner(self, ledger: int) -> Owner:
        found = super().owner(ledger)
        assert isinstance(found, Owner)
        return found

    def owners(self) -> list[Owner]:
        return [term for term in self.terms if isinstance(term, Owner)]

    def call(self, ledger: int, method: Callable[..., Any], *arguments: Any) -> Process:
        """As any call; what waits for an append is answered when its outcome is known."""
        answer = yield from super().call(ledger, method, *arguments)
        while isinstance(answer, Append) and answer.outcome is None:
            yield
        return answer.outcome if isinstance(answer, Append) else answer

    def deliver_within(self, steps: int, ledger: int, method: Callable[..., Any], *arguments: Any) -> None:
        """The network delivers a call again that was answered."""
        if not self.healed:
            self.late.append(LateCall(self.now + self.walk.random.randrange(steps), ledger, method, arguments))

    def until_answered(self, ledger: int, method: Callable[..., Any], *arguments: Any) -> Process:
        while True:
            answer = yield from self.call(ledger, method, *arguments)
            if answer not in NO_ANSWER:
                return answer
            yield

    def at_rest(self) -> bool:
        return (
            self.healed
            and not self.working
            and not self.over
            and all(term.state.holds_nothing() and not term.flight for term in self.owners())
        )


def store(world: World) -> Process:
    """Let appends of all terms land, fail or be refused, one at a time."""
    while not world.at_rest():
        for term in world.owners():
            for _ in range(world.walk.random.randrange(3)):
                term.settle()
            yield
        if world.over and (world.healed or world.walk.chance(0.1)):
            world.over.pop(world.walk.random.randrange(len(world.over))).settle()
        yield


def usurper(world: World, bundle: int) -> Process:
    """Take a bundle over while several of its appends are in flight."""
    while not world.healed:
        yield
        if world.owners()[bundle].flight and world.walk.chance(world.usurped):
            world.claim(bundle)


def clock_reader(world: World, bundle: int) -> Process:
    """Read the store's time for the owner, at the opening of its term and later."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        if not world.healed and world.walk.chance(0.02):
            term.clock.jump(world.walk.random.choice((-30, 10, 100)))
            world.walk.saw("a wall clock jumped")
        if term.clock.now >= 0 and not world.walk.chance(0.02):
            continue
        here = partial(term.clock.monotonic)
        asked_at = here(world.store_time())
        yield from pause(world)
        read = world.store_time()
        yield from pause(world)
        term.clock.take(read, asked_at, here(world.store_time()))
        term.now()


def pause(world: World) -> Process:
    for _ in range(world.walk.random.choice((1, 1, 5))):
        yield

"""Bundles with owners and takeovers, whose appends are in flight for a while.

The ledger below is taken for granted (`tests.models.ledger`): appends land in order; when a bundle
changes hands, some that were in flight have landed and the rest never will; a full store refuses
one and with it all behind it, and the term goes on from what is durable. Decisions wait in a queue
of their own before they are in flight, so blocks of the intake overtake them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.models.terms import NOT_OWNER, LateCall, Term, TermsWorld
from tests.models.timed.clock import TICK, OwnersClock
from tests.models.timed.judge import Judge
from tests.models.timed.memory import Memory
from tests.models.timed.places import Place
from tests.models.timed.state import NO_ANSWER, RETRY, Block, Group, Message, Session, State, Topic
from tests.models.walk import Process, Violation, Walk

BUNDLES = (0, 1)
LATE_WITHIN = 1500
STEPS = 16_000
STEPS_AT_REST = 24_000
FLIGHT_MAX = 5


@dataclass(slots=True, eq=False)
class Append:
    """A block or a group on its way. `answer`: what its caller gets once it is durable."""

    what: Block | Group
    answer: Any = "ok"
    outcome: Any = None
    caller_is_gone: bool = False


class Owner(Term[State]):
    """A term of a bundle. `state`: what is durable; `issued`: the same and what is on its way.

    `memory` is None: the state of the timers has to be loaded.
    """

    world: World

    def __init__(self, world: World, ledger: int, state: State) -> None:
        super().__init__(world, ledger, state)
        self.issued = state
        self.queue: list[Append] = []
        """groups that are not in flight yet"""
        self.flight: list[Append] = []
        self.under_way: list[Append] = []
        """blocks whose rows are not in memory yet"""
        self.landed: deque[Append] = deque()
        """blocks that are durable, and not handled yet"""
        self.timers: Memory | None = None
        self.clock = OwnersClock(world.walk.random, world.walk.broken, world.store_time())
        self.is_over = False
        """It has lost an append, so it knows."""

    def produce(self, session: Session, floor: int, messages: tuple[Message, ...]) -> Append | str:
        """Send a block to the intake, unless its sequence is stored or under way already."""
        if self.is_over:
            return NOT_OWNER
        block = Block(self.issued.intake_end, floor, messages, session)
        append = Append(block, block.offset)
        self._issue(append, self.flight)
        self.under_way.append(append)
        return append

    def write(self, group: Group, answer: Any = "ok") -> Append | str:
        """Append what one decision writes."""
        if self.is_over:
            return NOT_OWNER
        append = Append(group, answer)
        self._issue(append, self.queue)
        return append

    def _issue(self, append: Append, to: list[Append]) -> None:
        if not self.is_current and self not in self.world.over:
            self.world.over.append(self)
        self.issued = self.issued.copy()
        self.issued.add(append.what)
        to.append(append)

    def is_busy(self) -> bool:
        """What it does in the background waits."""
        return len(self.flight) + len(self.queue) >= FLIGHT_MAX

    def settle(self) -> None:
        """The store does one thing to what is in flight."""
        chance = self.world.walk.chance
        if not self.is_current:
            self._lose(0, NOT_OWNER)
            self.under_way.clear()
            self.is_over = True
            return
        if self.queue and (not self.flight or chance(0.5)):
            self.flight += self.queue
            self.queue.clear()
        if self.flight and not self.world.healed and chance(self.world.refused):
            self._lose(self.world.walk.random.randrange(len(self.flight)), RETRY)
            self.world.walk.saw("a term went on after an append was refused")
        elif self.flight:
            append = self.flight.pop(0)
            self.state = self.world.landed(self.ledger, self.state, append)
            append.outcome = append.answer
            if isinstance(append.what, Block):
                self.landed.append(append)

    def abandon(self) -> None:
        """A bug in the timers: their state is dropped. What is in flight may land."""
        for append in self.queue:
            append.outcome = RETRY
        self.queue.clear()
        self._rebuild()
        self.drop_memory()

    def drop_memory(self) -> None:
        self.timers = None
        if self.world.breaks("intake-forgotten-at-reload"):
            self.under_way.clear()

    def _lose(self, begin: int, outcome: str) -> None:
        """Everything in flight from `begin` on, and what waits behind it."""
        lost = self.flight[begin:] + self.queue
        del self.flight[begin:]
        self.queue.clear()
        for append in lost:
            append.outcome = outcome
        self.under_way = [append for append in self.under_way if append not in lost]
        self._rebuild()
        if any(isinstance(append.what, Group) for append in lost) and not self.world.breaks(
            "memory-kept-after-refusal"
        ):
            self.drop_memory()

    def _rebuild(self) -> None:
        self.issued = self.state.copy()
        for append in self.flight:
            self.issued.add(append.what)

    def now(self) -> int:
        return self.clock.estimate(self.world.store_time())


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        self.over: list[Owner] = []
        """terms that will learn that they are over"""
        self.judge = Judge(self)
        self.incarnations: dict[str, int] = {}
        self.trimmed: dict[tuple[int, Place | None], int] = {}
        """(bundle, partition; None: the intake) -> what is below this offset is deleted"""
        self.chunk = walk.random.choice((1, 1, 2, 3))
        """so many rows are delivered, or blocks turned, in one segment"""
        self.refused = walk.random.choice((0.005, 0.05))
        """how often the store refuses an append"""
        self.usurped = walk.random.choice((0, 0.01, 0.1))
        """how often a bundle is taken over while an append is in flight"""
        self.idle = walk.random.choice((1, 1, 1, 20))
        """how much slower producers are: a quiet bundle has other troubles"""
        self.working = 0
        """how many clients have something left to do"""
        super().__init__(walk, [State() for _ in BUNDLES], late_within=LATE_WITHIN)
        self.terms = [Owner(self, bundle, State()) for bundle in BUNDLES]

    def store_time(self) -> float:
        return self.now / TICK

    def topic(self, name: str) -> Topic:
        return Topic(name, self.incarnations.setdefault(name, 0))

    def landed(self, bundle: int, state: State, append: Append) -> State:
        after = state.copy()
        after.add(append.what)
        self.judge.landed(bundle, state, after)
        return after

    def successor(self, before: Term[State]) -> Owner:
        """Some of what is in flight has landed, though the owner before does not know."""
        assert isinstance(before, Owner)
        durable = before.state
        on_its_way = before.flight + before.queue
        for append in on_its_way[: self.walk.random.randrange(len(on_its_way) + 1)]:
            durable = self.landed(before.ledger, durable, append)
        self.over.append(before)
        return Owner(self, before.ledger, durable)

    def owner(self, ledger: int) -> Owner:
        found = super().owner(ledger)
        assert isinstance(found, Owner)
        return found

    def owners(self) -> list[Owner]:
        return [term for term in self.terms if isinstance(term, Owner)]

    def check_kept(self, term: Owner, place: Place | None, offsets: list[int]) -> None:
        """Raise Violation if something that has to be read is deleted."""
        trimmed = self.trimmed.get((term.ledger, place), 0)
        if term.is_current and offsets and min(offsets) < trimmed:
            raise Violation(f"bundle {term.ledger}: {place or 'intake'} is trimmed to {trimmed}, {offsets} are read")

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
            and all(not term.flight and not term.queue and not self.held(term) for term in self.owners())
        )

    def held(self, term: Owner) -> str:
        """Return what is left of a bundle's timers; "": nothing."""
        state = term.state
        starts = {None: state.intake_end, **{place: part.end for place, part in state.parts.items()}}
        for place, end in starts.items():
            if self.trimmed.get((term.ledger, place), 0) != end:
                return f"{place or 'intake'}, {end - self.trimmed.get((term.ledger, place), 0)} blocks not trimmed"
        left = {"ranges": state.ranges, "recalls": state.recalled, "pieces": state.intake_begin != state.intake_end}
        return ", ".join(f"{name}: {what}" for name, what in left.items() if what)


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


def troubles(world: World, bundle: int) -> Process:
    """Take a bundle over while several of its appends are in flight; or its timers have a bug."""
    while not world.healed:
        yield
        term = world.owners()[bundle]
        if (term.flight or term.queue) and world.walk.chance(world.usurped):
            world.claim(bundle)
        elif world.walk.chance(0.04 if term.flight else 0.005):
            term.abandon()
            world.walk.saw("a state was dropped because of a bug")


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

"""A world of ledgers that are taken for granted (`tests.models.ledger`): the newest term of each
appends, older ones live on.

A caller may reach a term that is over, and it answers from what it knew. Calls are lost, doubled,
or lose their answer; processes sleep for long. `run` lets all of that happen, heals the world, and
lets it come to rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.models.walk import Process, Walk

NOT_OWNER, UNKNOWN = "NOT_OWNER", "UNKNOWN"
STALE_OWNER_CHANCE = 0.15
ZOMBIES_MAX = 3
S = TypeVar("S")


class Term(Generic[S]):
    """`state`: the fold of the ledger's log as far as this term knows it.

    `world`: a TermsWorld, with what its model adds.
    """

    def __init__(self, world: Any, ledger: int, state: S) -> None:
        self.world, self.ledger, self.state = world, ledger, state
        self.memory: set[Any] = set()
        """What this term alone knows: it is in no log."""

    @property
    def is_current(self) -> bool:
        """A fence check."""
        return self is self.world.terms[self.ledger]

    def append(self, change: Callable[[S], None]) -> bool:
        """Make a change durable; False: this term is over."""
        if not self.is_current:
            return False
        change(self.state)
        return True

    def final(self, answer: str) -> str:
        """An answer that may not come from a term that is over."""
        return answer if self.is_current else NOT_OWNER


@dataclass(frozen=True, slots=True)
class LateCall:
    at: int
    ledger: int
    method: Callable[..., Any]
    arguments: tuple[Any, ...]


class TermsWorld(Generic[S]):
    def __init__(self, walk: Walk, states: list[S], late_within: int) -> None:
        """`late_within`: the double of a call arrives within so many steps."""
        self.walk = walk
        self.now = 0
        self.healed = False
        self.terms = [Term(self, ledger, state) for ledger, state in enumerate(states)]
        self.late: list[LateCall] = []
        self._late_within = late_within
        self._ids = 0
        self._zombies: list[list[Term[S]]] = [[] for _ in states]

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def claim(self, ledger: int) -> None:
        self.replace(ledger, self.successor(self.terms[ledger]))
        self.walk.saw("a ledger changed hands")

    def replace(self, ledger: int, after: Term[S]) -> None:
        """Callers find the next term from now on; some still take the one before for the owner."""
        self._zombies[ledger] = [*self._zombies[ledger], self.terms[ledger]][-ZOMBIES_MAX:]
        self.terms[ledger] = after

    def successor(self, before: Term[S]) -> Term[S]:
        """Return the next term; the term before it keeps what it knew."""
        after = Term(self, before.ledger, before.state)
        before.state = copy.deepcopy(before.state)
        return after

    def owner(self, ledger: int) -> Term[S]:
        """Whom a caller takes for the owner: now and then a term that is over."""
        zombies = self._zombies[ledger]
        if not self.healed and zombies and self.walk.chance(STALE_OWNER_CHANCE):
            self.walk.saw("an old owner was called")
            return self.walk.random.choice(zombies)
        return self.terms[ledger]

    def call(self, ledger: int, method: Callable[..., Any], *arguments: Any) -> Process:
        """One call: it may be lost, arrive a second time much later, reach an owner that is none,
        or lose its answer.
        """
        walk = self.walk
        yield
        if not self.healed and walk.chance(0.04):
            return UNKNOWN
        if not self.healed and walk.chance(0.05):
            self.late.append(LateCall(self.now + walk.random.randrange(self._late_within), ledger, method, arguments))
        yield
        answer = method(self.owner(ledger), *arguments)
        yield
        return UNKNOWN if not self.healed and walk.chance(0.05) else answer

    def heal(self) -> None:
        """From now on nothing goes wrong; what is late arrives."""
        self.healed = True
        self._deliver(self.late)

    def run(
        self,
        processes: list[Process],
        steps: int,
        steps_at_rest: int,
        sleep: range,
        on_heal: Callable[[], object] = lambda: None,
    ) -> None:
        """`sleep`: for how many steps a process may sleep."""
        awake_at = dict.fromkeys(range(len(processes)), 0)
        for step in range(steps + steps_at_rest):
            if step == steps:
                awake_at = dict.fromkeys(awake_at, 0)
                on_heal()
                self.heal()
            self.now += 1
            self._deliver([late for late in self.late if late.at <= self.now])
            if not awake_at:
                return
            chosen = self.walk.random.choice(sorted(awake_at))
            if awake_at[chosen] > self.now:
                continue
            if not self.healed and self.walk.chance(0.004):
                awake_at[chosen] = self.now + self.walk.random.choice(sleep)
                continue
            if not self.healed and self.walk.chance(0.002):
                self.claim(self.walk.random.randrange(len(self.terms)))
            if next(processes[chosen], "ended") == "ended":
                del awake_at[chosen]

    def _deliver(self, calls: list[LateCall]) -> None:
        for late in list(calls):
            self.late.remove(late)
            self.walk.saw("a late double of a call")
            late.method(self.owner(late.ledger), *late.arguments)

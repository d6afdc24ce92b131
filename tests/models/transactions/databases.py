"""A program that writes to a database and to LedgerMQ: the commit at LedgerMQ decides for both."""

from __future__ import annotations

from tests.models.transactions.bundle import stage
from tests.models.transactions.coordinator import decide, forget_outcome, init, outcome_of
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    DATABASE,
    OK,
    OUTPUTS,
    Part,
    TransactionId,
    World,
    call_some_times,
    call_until_answered,
)
from tests.models.walk import Process, Violation

IN_DOUBT_MAX = 3


class Database:
    """The program's database. What it has prepared is in doubt until LedgerMQ gives the outcome."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_doubt: list[str] = []
        self.settled: dict[str, str] = {}

    def saver(self) -> Process:
        """Stage, prepare the database, commit here, then in the database."""
        world, made = self.world, 0
        while not world.healed:
            yield
            if len(self.in_doubt) >= IN_DOUBT_MAX:
                continue
            made += 1
            name = f"{DATABASE}{made}"
            identity = yield from call_some_times(world, world.coordinator(name), init, name)
            if isinstance(identity, str):
                continue
            transaction = TransactionId(name, identity[0], identity[1], 1)
            whole = True
            for bundle in OUTPUTS:
                whole = (yield from call_some_times(world, bundle, stage, transaction, 0, (made,))) == OK and whole
            if not whole:
                continue
            self.in_doubt.append(name)
            parts = {bundle: Part(1, False) for bundle in OUTPUTS}
            decided = yield from world.call(world.coordinator(name), decide, transaction, COMMIT, parts)
            if decided in (COMMIT, ABORT):
                self._settle(name, decided)

    def recoverer(self) -> Process:
        """A process that starts after a crash: it asks about what the database holds prepared."""
        world, to_forget = self.world, list[str]()
        world.working += 1
        while not world.healed or self.in_doubt:
            yield
            if to_forget and world.walk.chance(0.05):
                name = to_forget.pop(0)
                if (yield from world.call(world.coordinator(name), forget_outcome, name)) != OK:
                    to_forget.append(name)
            if not self.in_doubt or not (world.healed or world.walk.chance(0.02)):
                continue
            name = world.walk.random.choice(self.in_doubt)
            for _ in range(world.walk.random.choice((0, 0, 100))):
                yield  # the database is slow
            self._settle(name, (yield from call_until_answered(world, world.coordinator(name), outcome_of, name)))
            to_forget.append(name)
        world.working -= 1

    def _settle(self, name: str, outcome: str) -> None:
        self.world.walk.saw(f"a database was given: {outcome}")
        if name in self.in_doubt:
            self.in_doubt.remove(name)
            self.settled[name] = outcome

    def check(self) -> None:
        committed = sorted(name for name, outcome in self.settled.items() if outcome == COMMIT)
        for bundle in OUTPUTS:
            shown = sorted(name for name, _ in self.world.visible_once(bundle, DATABASE))
            if shown != committed:
                raise Violation(f"bundle {bundle} shows {shown}, the database has committed {committed}")

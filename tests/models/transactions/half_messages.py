"""Half messages: staged, then decided by their sender, by a check, or by an operator's release."""

from __future__ import annotations

from tests.models.transactions.bundle import stage, unresolved
from tests.models.transactions.coordinator import count_check, decide, init
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    COORDINATORS,
    HALF,
    OK,
    OVER,
    PREPARED,
    UNRESOLVED_LEDGER,
    Part,
    TransactionId,
    World,
    call_some_times,
    call_until_answered,
)
from tests.models.walk import Process, Violation

TARGET = 2
PARTS = {TARGET: Part(1, False)}


class HalfMessages:
    """What the program knows: it has to agree with what the cluster shows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: dict[str, str | None] = {}
        """half messages whose send was acknowledged -> what their producers say; None: nothing"""
        self.committed: set[str] = set()
        self.released: set[str] = set()

    def sender(self) -> Process:
        """Send half messages; decide some of them, and leave the others to checks."""
        world, made = self.world, 0
        while not world.healed:
            yield
            if not world.walk.chance(0.1):
                continue
            made += 1
            name = f"{HALF}{made}"
            identity = yield from call_some_times(world, world.coordinator(name), init, name)
            if isinstance(identity, str):
                continue
            transaction = TransactionId(name, identity[0], identity[1], 1)
            if (yield from call_some_times(world, TARGET, stage, transaction, 0, (made,))) != OK:
                continue
            answer = self.sent[name] = world.walk.random.choice((COMMIT, ABORT, None))
            if answer and world.walk.chance(0.5):
                yield from self._decide(transaction, answer)

    def checker(self) -> Process:
        """Ask producers of the check group; they answer, or they do not."""
        world = self.world
        while not world.at_rest():
            yield
            for ledger in COORDINATORS:
                for name, known in list(world.owner(ledger).state.known.items()):
                    if not name.startswith(HALF) or known.decided != PREPARED or not world.walk.chance(0.2):
                        continue
                    transaction = TransactionId(name, known.producer, known.epoch, known.number)
                    answer = self.sent.get(name)
                    if answer and world.walk.chance(0.6):
                        yield from self._decide(transaction, answer)
                    else:
                        yield from world.call(ledger, count_check, transaction)

    def _decide(self, transaction: TransactionId, outcome: str) -> Process:
        world = self.world
        coordinator = world.coordinator(transaction.name)
        if (yield from world.call(coordinator, decide, transaction, outcome, PARTS)) == COMMIT:
            self.committed.add(transaction.name)

    def operator(self) -> Process:
        """Release copies of unresolved messages. The number after the last is the release's."""
        world, tried = self.world, set[object]()
        world.working += 1
        while not world.healed:
            yield
            copies = unresolved(world.owner(UNRESOLVED_LEDGER))
            if not copies or not world.walk.chance(0.05):
                continue
            place = world.walk.random.randrange(len(copies))
            transaction, values = copies[place]
            key = place if world.breaks("copy-without-key") else transaction
            if key not in tried:
                tried.add(key)
                yield from self._release(transaction, values, place)
        world.working -= 1

    def _release(self, copied: TransactionId, values: tuple[int, ...], place: int) -> Process:
        world, name = self.world, copied.name
        transaction = copied._replace(number=copied.number + 1)
        if world.breaks("copy-without-key"):
            name = f"{HALF}{copied.name.removeprefix(HALF)}-{place}"
            identity = yield from call_until_answered(world, world.coordinator(name), init, name)
            if isinstance(identity, str):
                return
            transaction = TransactionId(name, identity[0], identity[1], 1)
        decided = ABORT
        while decided == ABORT:
            staged = yield from call_until_answered(world, TARGET, stage, transaction, 0, values)
            if staged not in (OK, OVER):
                raise Violation(f"the release of {copied} is answered by {staged}")
            coordinator = world.coordinator(name)
            decided = yield from call_until_answered(world, coordinator, decide, transaction, COMMIT, PARTS)
            transaction = transaction._replace(number=transaction.number + 1)
        if decided == COMMIT:
            self.released.add(copied.name)
            world.walk.saw("a half message was released")

    def check(self) -> None:
        shown = [f"{HALF}{value}" for _, value in self.world.visible_once(TARGET, HALF)]
        copied = {transaction.name for transaction, _ in self.world.terms[UNRESOLVED_LEDGER].state.unresolved}
        for name in shown:
            if shown.count(name) > 1:
                raise Violation(f"{name} is visible {shown.count(name)} times")
        for name in sorted(self.committed | self.released):
            if name not in shown:
                raise Violation(f"{name} is committed or released, and not visible")
        for name, answer in self.sent.items():
            if answer == COMMIT and name not in shown and name not in copied:
                raise Violation(f"the producers of {name} say commit, and it is gone")
            if answer != COMMIT and name in shown and name not in copied:
                raise Violation(f"{name} is visible; its producers say {answer}")
            if answer is None and name not in copied:
                raise Violation(f"the producers of {name} say nothing, and it is gone")

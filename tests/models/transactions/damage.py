"""A staged batch that can no longer be read: it blocks its transaction until it is given up."""

from __future__ import annotations

from tests.models.transactions.coordinator import give_up
from tests.models.transactions.state import COMMIT, COORDINATORS, OK, TransactionId, World, call_until_answered
from tests.models.walk import Process

DAMAGED_IN = 2
DAMAGED_MAX = 3


def vandal(world: World) -> Process:
    while not world.healed:
        yield
        if world.prepared and len(world.damaged) < DAMAGED_MAX and world.walk.chance(0.02):
            world.damaged.add(world.walk.random.choice([transaction for transaction, _ in world.prepared]))


def repairer(world: World) -> Process:
    """Give up, once, what blocks a commit."""
    given_up = set[TransactionId]()
    while not world.at_rest():
        yield
        for ledger in COORDINATORS:
            for name, known in list(world.owner(ledger).state.known.items()):
                transaction = TransactionId(name, known.producer, known.epoch, known.number)
                blocked = transaction in world.damaged and known.decided == COMMIT and not known.complete
                if not blocked or transaction in given_up:
                    continue
                given_up.add(transaction)
                if (yield from call_until_answered(world, ledger, give_up, transaction, DAMAGED_IN)) == OK:
                    world.walk.saw("a part was given up")

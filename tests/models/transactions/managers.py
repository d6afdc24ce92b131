"""Transactions that one process prepares, and another process commits or rolls back."""

from __future__ import annotations

from tests.models.transactions.bundle import stage
from tests.models.transactions.coordinator import decide, forget_outcome, init, outcome_of
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    NO_ANSWER,
    OK,
    OUTPUTS,
    PREPARED,
    XID,
    Part,
    TransactionId,
    World,
    call_some_times,
    call_until_answered,
)
from tests.models.walk import Process, Violation

XIDS_OPEN_MAX = 3
RIVAL = 1_000_000
"""Values of a rival are above it."""


def check_xids(world: World) -> None:
    """What is damaged in bundle 2 may be visible there or not."""
    for bundle in OUTPUTS:
        lost = {transaction.name for transaction in world.damaged} if bundle == 2 else set()
        shown = sorted(pair for pair in world.visible_once(bundle, XID) if pair[0] not in lost)
        if shown != sorted(pair for pair, of in world.committed.items() if bundle in of and pair[0] not in lost):
            raise Violation(f"bundle {bundle} shows xids {shown}, not {sorted(world.committed)}")


def manager(world: World) -> Process:
    """Prepare transactions, each under an xid, and leave them to whichever process resolves them."""
    world.working += 1
    made = 0
    while not world.healed:
        yield
        if len(world.prepared) >= XIDS_OPEN_MAX:
            continue
        made += 1
        name = f"{XID}{made}"
        world.begun.append(name)
        bundles = world.walk.random.choice(((1,), OUTPUTS, OUTPUTS))
        yield from prepare(world, name, made, bundles, nonce=1, number=made if world.breaks("xid-in-order") else 1)
    world.working -= 1


def rival(world: World) -> Process:
    """Another program that begins the same xids, each once, with other records."""
    world.working += 1
    while not world.healed:
        yield
        if world.begun and world.walk.chance(0.1):
            name = world.begun.pop()
            value = RIVAL + int(name.removeprefix(XID))
            yield from prepare(world, name, value, (2,), nonce=2, number=1)
    world.working -= 1


def prepare(world: World, name: str, value: int, bundles: tuple[int, ...], nonce: int, number: int) -> Process:
    coordinator = world.coordinator(name)
    identity = yield from call_some_times(world, coordinator, init, name, nonce)
    if isinstance(identity, str):
        return
    transaction = TransactionId(name, identity[0], identity[1], number)
    for bundle in bundles:
        if (yield from call_some_times(world, bundle, stage, transaction, 0, (value,))) != OK:
            return
    parts = {bundle: Part(1, False) for bundle in bundles}
    decided = yield from call_until_answered(world, coordinator, decide, transaction, PREPARED, parts)
    if decided == PREPARED:
        world.prepared[transaction, value] = bundles


def resolver(world: World) -> Process:
    """Any process that names an xid may commit it, or roll it back."""
    while not world.at_rest():
        yield
        if world.resolved and world.walk.chance(0.02):
            name = world.resolved.pop(0)
            if (yield from world.call(world.coordinator(name), forget_outcome, name)) != OK:
                world.resolved.append(name)
        if not world.prepared or not (world.healed or world.walk.chance(0.02)):
            continue
        (transaction, value), bundles = world.walk.random.choice(list(world.prepared.items()))
        if not world.healed and world.walk.chance(0.3):
            coordinator = world.coordinator(transaction.name)
            if world.walk.chance(0.5):
                yield from world.call(coordinator, init, transaction.name)
                continue
            said = yield from world.call(coordinator, outcome_of, transaction.name)
            if said not in (PREPARED, *NO_ANSWER):
                raise Violation(f"{transaction} is prepared, and its outcome is said to be {said}")
            continue
        outcome = COMMIT if world.walk.chance(0.8) else ABORT
        decided = yield from call_until_answered(
            world, world.coordinator(transaction.name), decide, transaction, outcome, {}
        )
        if decided != outcome:
            raise Violation(f"{transaction} was prepared; {outcome} is answered by {decided}")
        if decided == COMMIT:
            world.committed[transaction.name, value] = bundles
        world.resolved.append(transaction.name)
        del world.prepared[transaction, value]

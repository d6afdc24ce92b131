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


def check_xids(world: World) -> None:
    """What is damaged in bundle 2 may be visible there or not."""
    for bundle in OUTPUTS:
        lost = {transaction.name for transaction in world.damaged} if bundle == 2 else set()
        shown = sorted(pair for pair in world.visible_once(bundle, XID) if pair[0] not in lost)
        if shown != sorted((name, value) for name, value in world.committed.items() if name not in lost):
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
        identity = yield from world.call(world.coordinator(name), init, name)
        if isinstance(identity, str):
            continue
        transaction = TransactionId(name, identity[0], identity[1], made if world.breaks("xid-in-order") else 1)
        whole = True
        for bundle in OUTPUTS:
            whole = (yield from call_some_times(world, bundle, stage, transaction, 0, (made,))) == OK and whole
        if whole:
            parts = {bundle: Part(1, False) for bundle in OUTPUTS}
            decided = yield from call_until_answered(
                world, world.coordinator(name), decide, transaction, PREPARED, parts
            )
            if decided == PREPARED:
                world.prepared[transaction] = made
    world.working -= 1


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
        transaction, value = world.walk.random.choice(list(world.prepared.items()))
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
            world.committed[transaction.name] = value
        world.resolved.append(transaction.name)
        del world.prepared[transaction]

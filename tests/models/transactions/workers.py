"""Members of the group: they read items, write each to both outputs, and commit the input offset."""

from __future__ import annotations

from functools import partial

from tests.models.terms import UNKNOWN
from tests.models.transactions.bundle import stage
from tests.models.transactions.coordinator import decide, init
from tests.models.transactions.group import assign, assignment, commit_plainly, fetch_committed, stage_offset
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    CONFLICT,
    FENCED,
    OK,
    OUTPUTS,
    Part,
    TransactionId,
    World,
    call_some_times,
    call_until_answered,
)
from tests.models.walk import Process

ITEMS_AT_REST = 40


def worker(world: World, name: str, transactional_id: str) -> Process:
    world.working += 1
    yield from work_until_rest(world, name, transactional_id)
    world.working -= 1


def work_until_rest(world: World, name: str, transactional_id: str) -> Process:
    while True:
        identity = yield from world.call(world.coordinator(transactional_id), init, transactional_id)
        if isinstance(identity, str):
            continue
        last = TransactionId(transactional_id, identity[0], identity[1], 0)
        alive = True
        while alive:
            member, group_epoch = yield from call_until_answered(world, 1, assignment)
            if member != name:
                if world.healed:
                    return
                yield
                continue
            at = yield from world.call(1, fetch_committed)
            if isinstance(at, str):
                continue
            last, alive = yield from work(world, name, group_epoch, last, at)
            if world.healed and at >= ITEMS_AT_REST:
                return


def work(world: World, name: str, group_epoch: int, last: TransactionId, at: int) -> Process:
    """Run transactions while the worker assumes that it has its assignment. Return (last transaction,
    whether the worker is alive).
    """
    while not (world.healed and at >= ITEMS_AT_REST):
        last = last._replace(number=last.number + 1)
        decided, end, whole = yield from one_transaction(world, name, group_epoch, last, at)
        if decided == FENCED:
            return last, False
        if not whole:
            return last, True
        at = end if decided == COMMIT else at
        if world.walk.chance(0.1):
            world.walk.saw("a worker died")
            return last, False
        yield
    return last, True


def one_transaction(world: World, name: str, group_epoch: int, transaction: TransactionId, at: int) -> Process:
    """Return (what was decided, end of its items, whether all of it was staged).

    A batch without an answer may be left out, although it may be staged.
    """
    walk = world.walk
    for _ in range(0 if world.healed else walk.random.choice((0, 0, 0, 30))):
        yield  # the program is slow, and the partition may go to another member
    items = tuple(range(at, at + 1 + walk.random.randrange(4)))
    whole, count, end = True, len(items), items[-1] + 1
    repeated = dict.fromkeys(OUTPUTS, 0)
    """batches that a client that breaks a rule sent again under another sequence"""
    for sequence, item in enumerate(items):
        batch: tuple[int, ...] = (item,)
        for bundle in OUTPUTS:
            send = world.call if walk.chance(0.5) else partial(call_some_times, world)
            answer = yield from send(bundle, stage, transaction, sequence + repeated[bundle], batch)
            if answer == UNKNOWN and world.breaks("counts-behind-given-up"):
                again = sequence + repeated[bundle] + 1
                answer = yield from call_some_times(world, bundle, stage, transaction, again, batch)
                repeated[bundle] += answer == OK
            if bundle == 1 and not world.healed and walk.chance(0.8 if answer == UNKNOWN else 0.12):
                # A client that is wrong: no answer in time, so it uses the sequence for another batch.
                batch, count = items[sequence:], sequence + 1
                answer = yield from call_some_times(world, bundle, stage, transaction, sequence, batch)
                walk.saw("a duplicate that is none", answer == CONFLICT)
            if answer != OK and sequence and walk.chance(0.7):
                count, end = sequence, item
                walk.saw("a batch was left out")
            else:
                whole = whole and answer == OK
        if count <= sequence + 1:
            break
    if end > at + 1 and walk.chance(0.5):
        answer = yield from call_some_times(world, 1, stage_offset, transaction, name, group_epoch, at + 1)
        whole = whole and answer == OK
        if not world.healed:
            # The network delivers the first of two offsets again, perhaps behind the second.
            world.deliver_within(200, 1, stage_offset, transaction, name, group_epoch, at + 1)
    answer = yield from call_until_answered(world, 1, stage_offset, transaction, name, group_epoch, end)
    whole = whole and answer == OK
    outcome = COMMIT if whole and (world.healed or walk.chance(0.85)) else ABORT
    parts = {bundle: Part(count + repeated[bundle], bundle == 1) for bundle in OUTPUTS}
    decided = yield from call_until_answered(
        world, world.coordinator(transaction.name), decide, transaction, outcome, parts
    )
    walk.saw(f"decided: {decided}")
    return decided, end, whole


def other_producer(world: World, transactional_id: str) -> Process:
    """Commit the group's offset in force once more, in transactions of a second producer."""
    world.working += 1
    while not world.healed:
        yield
        if not world.walk.chance(0.02):
            continue
        identity = yield from world.call(world.coordinator(transactional_id), init, transactional_id)
        if isinstance(identity, str):
            continue
        transaction = TransactionId(transactional_id, identity[0], identity[1], 1)
        member = assignment(world.owner(1))
        if (yield from world.call(1, stage_offset, transaction, *member, None)) == OK:
            yield from world.call(world.coordinator(transactional_id), decide, transaction, COMMIT, {1: Part(0, True)})
            world.walk.saw("an offset of a second producer")
    world.working -= 1


def plain_committer(world: World) -> Process:
    while not world.healed:
        yield
        if not world.walk.chance(0.1):
            continue
        if (yield from world.call(1, commit_plainly, *assignment(world.owner(1)))) == OK:
            world.walk.saw("a plain commit")


def rebalancer(world: World) -> Process:
    pause = world.walk.random.choice((60, 400))
    while not world.healed:
        for _ in range(world.walk.random.randrange(pause)):
            yield
        yield from world.call(1, assign, world.walk.random.choice("abc"))

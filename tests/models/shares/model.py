"""Model of queues: many members on one partition, each message leased to one of them.

Members fetch, work, and accept, release, reject or renew; they pause, die, and come back late. The
partition changes hands and moves to other ledgers, its former owners live on, the store refuses
appends, retention deletes what is old, and the group is reset. Some messages kill each member that
works on them.

Invariants: a message is not given to two members while a lease holds, within one life of the state; a
message is never given again once the reply to its acknowledgement was sent; of the leases of a message one
at most is told that its acknowledgement counts; a poisonous message comes no
more often than the bound, and once more for each state that was lost; at rest each message was worked on,
and all are finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.models.shares.owner import DELIVERIES_MAX, LEASE, RETRY, Append, Grant, World
from tests.models.terms import NOT_OWNER, UNKNOWN, LateCall
from tests.models.walk import Model, Process, Walk

STEPS, STEPS_AT_REST = 9_000, 30_000
MESSAGES_MAX = 30

MUTANTS = {
    "answered-before-durable": "an acknowledgement is answered when its records are durable",
    "repeat-answered-at-once": "that a message is finished already is answered when that is durable",
    "fetch-without-fence": "messages are sent after a fence check that follows their lease",
    "state-dropped-at-takeover": "the next owner loads the state of all chunks above the start",
    "memory-kept-after-refusal": "after an append was refused, the state is loaded again",
    "lease-not-fenced": "only the lease in force may accept, release, reject or renew",
    "number-without-term": "the numbers of leases are unique over all terms",
    "grant-of-the-leased": "what is leased is leased to nobody else",
    "start-behind-its-chunks": "the end of a chunk's record and the start above it are one append",
    "reset-keeps-chunks": "a reset removes the records of all chunks, in the same append",
    "reset-keeps-leases": "a reset ends all leases",
    "gone-stays": "the start is never below the log start",
    "counts-in-memory": "the number of deliveries is part of what is stored, and written when a lease ends",
    "opened-without-the-groups": "another ledger opens the partition with what is stored of the group",
    "changed-while-it-leaves": "an owner that knows of a move changes nothing of the group any more",
    "sealed-before-it-is-durable": "the partition is sealed when the last change of the group is durable",
    "finished-counts-for-any-lease": "that a message is finished counts only for the lease that finished it",
    "number-without-move": "the numbers of leases are unique over all ledgers",
}


def call(world: World, method: Callable[..., Any], *arguments: Any, owner: Any = None) -> Process:
    """One call of an owner; it may be lost, come twice, and lose its answer."""
    walk = world.walk
    yield
    if not world.healed and walk.chance(0.04):
        return UNKNOWN
    if not world.healed and walk.chance(0.05):
        world.late.append(LateCall(world.now + walk.random.randrange(1200), 0, method, arguments))
    yield
    answer = method(owner or world.owner(0), *arguments)
    while isinstance(answer, Append) and answer.outcome is None:
        if not world.healed and walk.chance(0.005):
            return UNKNOWN  # the caller has waited for long enough
        yield
    yield
    if isinstance(answer, Append):
        answer = answer.outcome
    return UNKNOWN if not world.healed and walk.chance(0.05) else answer


def fetch(world: World, name: str, records_max: int) -> Process:
    owner = world.owner(0)
    found = yield from call(world, type(owner).fetch, name, records_max, owner=owner)
    if not isinstance(found, list):
        return []
    if not owner.is_current and not world.breaks("fetch-without-fence"):
        world.walk.saw("a former owner leased messages and did not send them")
        return []
    world.walk.saw("messages were sent that were leased before their partition moved", owner.leaves)
    return found


def member(world: World, name: str) -> Process:
    walk = world.walk
    for _ in range(walk.random.choice((0, 0, 100, 500))):
        yield
    while not at_rest(world):
        found = yield from fetch(world, name, walk.random.choice((1, 2, 5)))
        world.judge.delivered(found)
        if found and not world.healed and walk.chance(0.1):
            walk.saw("a member died")
            continue
        for grant in found:
            yield from work(world, grant)


def work(world: World, grant: Grant) -> Process:
    walk, kind = world.walk, "accept"
    spent = grant.count > DELIVERIES_MAX
    if grant.offset % 7 == 3 and not spent:
        if walk.chance(0.7):
            walk.saw("a message killed its member")
            return
        kind = "release"
    elif not world.healed and walk.chance(0.15):
        kind = "release"
    for _ in range(walk.random.choice((0, 3, 30, LEASE)) if not world.healed else 0):
        yield
        if walk.chance(0.01):
            yield from call(world, type(world.current).acknowledge, grant, "renew")
    walk.saw("a spent message was rejected", spent)
    if kind == "accept":
        world.judge.tried.add((grant.generation, grant.offset))
    world.judge.let_go(grant)
    delay = walk.random.choice((0, 100)) if kind == "release" else 0
    for _ in range(4):
        answer = yield from call(world, type(world.current).acknowledge, grant, kind, delay)
        if answer in ("ok", "finished") and kind == "accept":
            world.judge.told(grant)
        if answer == "stale":
            walk.saw("an acknowledgement came too late")
        if answer not in (NOT_OWNER, UNKNOWN, RETRY):
            return


def at_rest(world: World) -> bool:
    owner = world.current
    is_quiet = world.healed and not world.busy and not owner.flight
    return is_quiet and owner.held.start is not None and owner.held.start >= owner.state.end


def producer(world: World) -> Process:
    for _ in range(MESSAGES_MAX):
        yield from call(world, type(world.current).produce)
        for _ in range(0 if world.healed else world.walk.random.choice((0, 10, 300))):
            yield
    world.busy.discard("producer")


def store(world: World) -> Process:
    while not at_rest(world):
        yield
        for owner in (*world.over, world.current):
            if world.healed or world.walk.chance(world.pace if owner is world.current else 0.02):
                owner.settle()
        world.over = [owner for owner in world.over if not owner.is_over]


def operator(world: World) -> Process:
    """Resets the group, and lets retention delete."""
    walk = world.walk
    while not world.healed:
        for _ in range(walk.random.randrange(100, 1500)):
            yield
        owner = world.current
        if walk.chance(0.3):
            yield from call(world, type(owner).reset, walk.random.randrange(owner.state.end + 1))
        elif walk.chance(0.2):
            owner.state.log_start = walk.random.randrange(owner.state.log_start, owner.state.end + 1)
            walk.saw("retention deleted messages")
    world.busy.discard("operator")


def mover(world: World) -> Process:
    """Moves the partition to another ledger: its owner learns of that, stops, and seals when all is durable."""
    walk = world.walk
    while not world.healed:
        for _ in range(walk.random.randrange(20, 400)):
            yield
        while not world.healed:
            owner = world.current
            owner.leaves = True
            if not owner.flight or world.breaks("sealed-before-it-is-durable"):
                world.move(owner)
                break
            yield
    world.current.leaves = False  # the walk ends before it moves
    world.busy.discard("mover")


def starter(world: World) -> Process:
    """Notes where the group begins, once that is durable."""
    while world.current.state.generation == 0:
        if (start := world.current.state.records.get("start")) is not None:
            world.judge.firsts.setdefault(0, start)
            return
        yield


def run(walk: Walk) -> None:
    world = World(walk)
    members = [member(world, f"m{number}") for number in range(walk.random.randint(2, 4))]
    processes = [*members, producer(world), store(world), operator(world), mover(world), starter(world)]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(50, 900))
    world.judge.check_rest()


SHARES = Model(
    "shares",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        "an append was refused",
        "a message was acknowledged",
        "a message killed its member",
        "a spent message was rejected",
        "a member died",
        "a lease ended by its time",
        "an acknowledgement came too late",
        "a chunk was dropped",
        "a group was reset",
        "retention deleted messages",
        "a former owner leased messages and did not send them",
        "messages were sent that were leased before their partition moved",
        "a partition moved",
    ),
)

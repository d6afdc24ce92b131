"""Model of timed messages: staged with their target, delivered by its owner, at their time.

Two bundles with owners that come, go and live on as zombies. Producers send blocks of delayed
messages and repeat what has no answer; programs recall, and remove topics. Each bundle has an intake
with the ledger's own sessions, one watermark (due second, id), and ranges of due times in two pools
of hidden partitions (`tests.models.timed.places`). Owners deliver in rounds, flush the intake to
ranges, load near ranges and turn far ones; their appends are refused, and their state is loaded
again. Clocks of owners drift and jump. Invariants: each acknowledged message is delivered once,
unless it was recalled or its topic was removed; none before its time by the store's clock; all in
the order of keys (effective due second, id); *recalled* is never delivered, *too late* was or will
be; nothing that waits is trimmed; retention counts from the due time; once all is quiet everything
is delivered and nothing is left: no range, no tombstone, and log starts at the ends.
"""

from __future__ import annotations

from tests.models.timed.bundle import arrivals, loader
from tests.models.timed.clients import Clients, retention
from tests.models.timed.delivery import deliverer, evictor, trimmer
from tests.models.timed.mover import flusher, range_loader, turner
from tests.models.timed.world import BUNDLES, STEPS, STEPS_AT_REST, World, clock_reader, store, troubles
from tests.models.walk import Model, Walk

MUTANTS = {
    "watermark-apart": "what is delivered and the watermark that covers it are one segment",
    "watermark-passes-unloaded": "the watermark passes only ranges that are loaded",
    "watermark-passes-the-far": "a far range is turned as a whole before its first second is due",
    "watermark-passes-under-way": "a round waits for the blocks under way that are due in it",
    "turn-apart": "what a turn moves and the range's progress are one segment",
    "flush-apart": "what a flush moves and the progress of the flush are one segment",
    "chunk-not-judged-again": "a chunk of a range is judged again, after it was read, in the turn that moves it",
    "stretch-not-judged-again": "a flush is judged again, after blocks were read, by how far flushes have come",
    "turn-ends-at-the-durable": "a range is turned when its whole end, as it was when turning began, is moved",
    "load-misses-what-is-under-way": "a load waits for what is under way to its range",
    "staged-elsewhere": "a message is staged where its target partition lives",
    "recalled-before-durable": "recalled is answered when the tombstone is durable",
    "too-late-from-issued": "too late is answered because of a durable watermark",
    "recall-before-load-only": "a tombstone is looked up in the turn that chooses what is delivered",
    "recall-of-a-chunk": "what is chosen for delivery is not recalled any more",
    "tombstone-goes-with-its-second": "a tombstone is kept for a while, and a later recall is answered: forgotten",
    "tombstone-by-its-due": "a tombstone is kept until the effective due time of its message is over",
    "forgotten-by-the-durable": "forgotten is answered by the same state as that in which tombstones are looked up",
    "removed-topic-not-judged": "what waits for a topic that was removed is dropped",
    "target-by-name": "a waiting message names its topic by its id",
    "duplicate-before-durable": "a duplicate is acknowledged when the original is durable",
    "duplicate-enters-memory": "a duplicate is not taken into memory again",
    "rows-by-the-call": "a block gets into memory whether its caller still waits or not",
    "sequence-of-a-refused-send": "after a refusal the sequence is not used again: a new epoch begins",
    "no-floor": "a late message is due after what was closed before it",
    "floor-of-the-watermark": "the floor is above every second that a round has begun with",
    "placed-by-a-former-clock": "a placement is judged by the clock, and by what is closed, in the turn that appends",
    "placed-while-it-turns": "nothing is placed in a range that turns",
    "placed-while-it-loads": "nothing is placed in a range that is read or loaded",
    "place-used-again-from-its-start": "a range begins at the end of its partition",
    "no-places-for-turns": "a flush leaves as many places free as a turn may need",
    "turned-by-the-clock": "a turn moves to the next narrower width, however late it is",
    "turned-in-any-order": "the earliest range is turned first",
    "loaded-under-a-wider-range": "a range is loaded when no wider range contains it",
    "timestamp-of-the-send": "a delayed record has its due time as its timestamp",
    "delay-at-the-broker": "a delay becomes a due time once, before the message is sent",
    "wall-clock": "owners go by the store's time",
    "clock-from-the-request": "the store's time counts from the moment at which its answer arrived",
    "drift-ignored": "the bound of a monotonic clock's drift is subtracted",
    "memory-kept-after-refusal": "after an append was refused, what is in memory is loaded again",
    "intake-forgotten-at-reload": "a reload waits for the blocks that the state before has under way",
    "log-not-settled-at-reload": "a reload waits for the decisions that the state before has under way",
    "trim-of-the-issued": "only what is below a durable log start is deleted",
    "trim-to-the-watermark": "a near range is trimmed when it is delivered as a whole",
    "intake-trimmed-to-the-flush": "a flushed stretch is kept until its horizon is delivered",
    "finished-inside-a-second": "a range or a flushed stretch is over when nothing is left of its last second",
    "flushed-without-begin": "the state says where the first kept stretch of the intake begins",
    "horizon-of-the-last-piece": "each flushed stretch has a horizon of its own",
    "floor-above-the-horizon": "a horizon is above what is closed, and at least the highest floor of its stretch",
    "nothing-due-nothing-written": "the watermark moves, too, when only a range or a tombstone waits for it",
}


def run(walk: Walk) -> None:
    world = World(walk)
    work = (clock_reader, loader, arrivals, deliverer, flusher, range_loader, turner, trimmer, evictor, troubles)
    processes = [
        *Clients(world).processes(),
        *(process(world, bundle) for process in (*work, flusher, turner) for bundle in BUNDLES),
        *(store(world) for _ in range(walk.random.choice((1, 2, 4)))),
        retention(world),
    ]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(100, 2000))
    world.judge.check_rest()


TIMED = Model(
    "timed",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        "a term went on after an append was refused",
        "a state was dropped because of a bug",
        "a wall clock jumped",
        "a delayed send was a duplicate",
        "a message was late",
        "a message was delivered in its time",
        "a round took several segments",
        "a round waited for blocks under way",
        "an evicted body was read again",
        "messages went to ranges",
        "rows of flushed blocks are in memory",
        "a flush left more in memory",
        "a pool of places was used up",
        "a place was used again",
        "a range was loaded",
        "a load waited for blocks under way",
        "messages were turned",
        "a turn waited for blocks under way",
        "a range was another when its blocks were read",
        "the intake was trimmed",
        "a range was trimmed",
        "a recall was answered: recalled",
        "a recall was answered: too late",
        "a recall was answered: forgotten",
        "a recall waited for a delivery",
        "a recalled message may be due later",
        "a topic was removed, and created again",
        "a send found its topic removed",
        "a delivered message was deleted by its age",
        "messages delivered",
    ),
)

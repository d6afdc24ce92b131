"""Model of timed messages: staged with their target, delivered by its owner, at their time.

Two bundles with owners that come, go and live on as zombies. Producers send delayed messages and
repeat what has no answer; programs recall, commit transactions that hold delayed messages, and
remove topics. Each bundle has one watermark (second, offset) and a wheel of hidden partitions
(`tests.models.timed.wheel`). Clocks of owners drift and jump. Invariants: each acknowledged message
is delivered once, unless it was recalled or its topic was removed; none before its time by the
store's clock; what was loaded comes in the order (due second, staged offset); *recalled* is never
delivered, *too late* was or will be; nothing that waits is trimmed; retention counts from the due
time; once all is quiet everything is delivered and nothing is left.

One rule has no mutant, because too few walks need it (seed 5144 did): only what is durable is read
for turning.
"""

from __future__ import annotations

from tests.models.timed.clients import Clients, retention
from tests.models.timed.delivery import deliverer, trimmer, turner
from tests.models.timed.world import BUNDLES, STEPS, STEPS_AT_REST, World, clock_reader, store, usurper
from tests.models.walk import Model, Walk

MUTANTS = {
    "watermark-apart": "what is delivered and the watermark that covers it are one segment",
    "watermark-passes-unloaded": "the watermark passes only seconds whose minute is loaded",
    "staged-while-loading": "what is staged while a minute is read is in memory, too",
    "watermark-passes-the-wheel": "a slot of the wheel is turned as a whole before its first second is due",
    "turn-apart": "what a turned slot appends again and the slot's progress are one segment",
    "chunk-not-judged-again": "a chunk of a slot is judged again, after it was read, in the turn that appends it",
    "staged-elsewhere": "a message is staged where its target partition lives",
    "recalled-before-durable": "recalled is answered when the tombstone is durable",
    "too-late-from-issued": "too late is answered because of a durable watermark",
    "recall-before-load-only": "a tombstone is looked up in the turn that delivers",
    "tombstone-goes-with-its-second": "a tombstone is kept for a while, and a later recall is answered: forgotten",
    "removed-topic-not-judged": "what waits for a topic that was removed is dropped",
    "target-by-name": "a waiting message names its topic by its id",
    "late-before-session": "the producer's session is judged before anything else",
    "session-of-the-slot": "the session of delayed sends is the bundle's, whatever slot is chosen",
    "at-once-apart": "a late message and its session's progress are one segment",
    "duplicate-before-durable": "a duplicate is acknowledged when the original is durable",
    "gone-from-issued": "a refusal that frees a sequence is final: the removal of the topic is durable",
    "next-lap-early": "a slot takes nothing of its next lap before this lap is closed",
    "slots-from-the-clock": "slots are chosen from the watermark that is in the log",
    "late-below-only": "a message is late if its due second is at or below the watermark's",
    "late-is-staged": "a late message is delivered and not staged",
    "timestamp-of-the-send": "a delayed record has its due time as its timestamp",
    "delay-at-the-broker": "a delay becomes a due time once, before the message is sent",
    "due-before-commit": "a transaction's delayed messages take effect when it completes",
    "completion-apart": "what a transaction stages or delivers and the note about it are one segment",
    "recall-in-transaction": "a recall waits until the message's transaction is complete",
    "wall-clock": "owners go by the store's time",
    "clock-from-the-request": "the store's time counts from the moment at which its answer arrived",
    "drift-ignored": "the bound of a monotonic clock's drift is subtracted",
    "index-kept-after-refusal": "after an append was refused, what is in memory is loaded again",
    "trim-to-the-watermark": "a minute's slot is trimmed when the whole minute is delivered",
    "trim-of-the-issued": "only what is below a durable log start is deleted",
}


def run(walk: Walk) -> None:
    world = World(walk)
    processes = [
        *Clients(world).processes(),
        *(clock_reader(world, bundle) for bundle in BUNDLES),
        *(deliverer(world, bundle) for bundle in BUNDLES),
        *(turner(world, bundle) for bundle in BUNDLES),
        *(trimmer(world, bundle) for bundle in BUNDLES),
        *(store(world) for _ in range(walk.random.choice((1, 2, 4)))),
        *(usurper(world, bundle) for bundle in BUNDLES),
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
        "a wall clock jumped",
        "a delayed send was a duplicate",
        "a message was late, and delivered at once",
        "a message was delivered in its time",
        "a second took several segments",
        "a message lay beyond the wheel of a watermark that lags",
        "records were turned",
        "a slot was another when its records were read",
        "a slot was trimmed",
        "a recall was answered: recalled",
        "a recall was answered: too late",
        "a recall was answered: forgotten",
        "a recall waited for its transaction",
        "a recall waited for a delivery in flight",
        "a transaction was completed",
        "a transaction was aborted",
        "a topic was removed, and created again",
        "a send found its topic removed",
        "a delivered message was deleted by its age",
        "messages delivered",
    ),
)

"""Model of transactions: staged batches, one decision record, copies at completion.

The ledger below is assumed to be correct (`tests.models.ledger`): only a bundle's newest term appends,
while an older one may still answer from its outdated state. Ledgers 0 and 3 have the coordinators,
bundle 1 has output 0 and the group's offsets, and bundle 2 has output 1.

Workers read items 0, 1, … of one input partition, write each to both outputs and commit the input
offset, in one transaction. Two workers share a transactional id; all workers pause, die and come back
as zombies. A bundle completes a commit chunk by chunk, one batch in each; batches that are staged for
long are carried forward. A manager prepares transactions, each with a separate id, and resolves them
later. The group's member also commits without a transaction, and with a second producer. Idle ids
expire, and the notes about them are forgotten.

Invariants: each item below the committed offset is visible once in each output, in order; no item
above it is; prepared transactions are committed or rolled back as the manager decided, each with the
records of the program that was told so; no part of an aborted transaction ever becomes visible; at the
end nothing is staged, pending or undecided.
`tests.models.transactions.late_decisions` walks the same rules with other processes.
"""

from __future__ import annotations

from tests.models.transactions.background import background, thief
from tests.models.transactions.group import assign
from tests.models.transactions.managers import check_xids, manager, resolver, rival
from tests.models.transactions.state import OUTPUTS, STEPS, World
from tests.models.transactions.workers import other_producer, plain_committer, rebalancer, worker
from tests.models.walk import Model, Violation, Walk

STEPS_AT_REST = 40_000

MUTANTS = {
    "init-during-commit": "a new epoch waits until the commit of the epoch before is complete",
    "ask-without-fence": "a coordinator answers a bundle only after a fence check",
    "ask-does-not-decide": "an abort that is answered to a question is recorded first",
    "order-without-epoch": "the order of transactions is that of pairs (epoch, number)",
    "no-finished-memory": "a bundle remembers the last transaction of each producer that it has completed",
    "offsets-not-fenced": "staged offsets are fenced by the group's member and epoch",
    "no-count": "completion links just as many batches as the decision counted",
    "pending-ignored": "a committed offset is not answered while another is pending",
    "complete-after-one": "a transaction is complete when all of its bundles are",
    "done-when-begun": "a bundle says done once the last chunk of a completion is durable",
    "copied-not-counted": "a decision's counts are compared with what is copied and what is staged",
    "resume-from-memory": "the next owner resumes a completion from its log",
    "chunk-not-judged-again": "a chunk is judged again, after its bytes were read, in the turn that admits it",
    "carry-of-the-dead": "carry-forward replaces only references that are alive in the turn that admits it",
    "leftovers-stay": "a completion at or below the note drops leftovers before it says done",
    "xid-in-order": "each xid is a transactional id of its own, with a producer id of its own",
    "init-aborts-prepared": "a new epoch never aborts what is prepared",
    "age-aborts-prepared": "a question about age never aborts what is prepared",
    "expire-prepared": "an id with something prepared never expires",
    "plain-over-pending": "a plain commit waits while an offset of its partition is pending",
    "offset-key-without-epoch": "keys of pending offsets carry the pair (epoch, number)",
    "duplicate-by-sequence": "a duplicate is a batch that equals the one stored, else the transaction can only abort",
    "note-by-age": "a note goes only when the coordinator says that the id expired",
    "expiry-without-fence": "a coordinator says that an id expired only after a fence check",
    "expire-incomplete": "an id with an incomplete commit never expires",
    "note-by-abort": "an abort moves a note on, and writes none where there is none: that one would confirm commits",
    "commit-unconfirmed": "a commit for a producer without a note is confirmed with the coordinator",
    "confirmed-before": "a confirmation counts only while no note has gone since it was asked for",
    "note-after-chunk": "a chunk's copies, the end of their references and the note are one segment",
    "modulus-of-the-topic": "the number of coordinators is fixed when their topic is created",
    "stage-when-begun": "a commit that has begun stages nothing more",
    "counts-behind-given-up": "a batch that was given up ends its stream: nothing behind it is counted",
    "pending-of-others": "staged offsets of other producers wait while one of their partition is pending",
    "two-ids-of-a-producer": "a producer id belongs to one transactional id; a call beside another one drops nothing",
    "begun-by-another": "an id that is used once belongs to the object that began it",
    "staged-offset-goes-back": "a call that arrives late takes no offset of its transaction back",
}


def run(walk: Walk) -> None:
    world = World(walk)
    processes = [
        *(worker(world, name, transactional_id) for name, transactional_id in (("a", "t1"), ("b", "t1"), ("c", "t2"))),
        *background(world),
        *((thief(world),) if walk.chance(0.4) else ()),
        other_producer(world, "t3"),
        rebalancer(world),
        plain_committer(world),
        *((manager(world), rival(world), resolver(world)) if walk.chance(0.4) else ()),
    ]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(200, 4000), on_heal=lambda: assign(world.terms[1], "a"))
    world.check_rest()
    check_xids(world)
    check_items(world)


def check_items(world: World) -> None:
    committed = world.terms[1].state.group.committed
    for bundle in OUTPUTS:
        visible = world.terms[bundle].state.visible
        if visible != list(range(committed)):
            raise Violation(f"bundle {bundle} shows {len(visible)} items, {committed} are committed: {visible[-12:]}")
    world.walk.saw("items committed", committed)


TRANSACTIONS = Model(
    "transactions",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        "decided: commit",
        "decided: abort",
        "decided: fenced",
        "a batch was left out",
        "a transaction timed out",
        "a worker died",
        "a chunk was copied",
        "xid: prepared",
        "xid: commit",
        "xid: abort",
        "a duplicate that is none",
        "a plain commit",
        "an id expired",
        "a note went",
        "a thief has staged",
        "a late commit was not confirmed",
        "a batch was carried forward",
        "a reference died while its bytes were read",
        "an offset of a second producer",
        "items committed",
    ),
)

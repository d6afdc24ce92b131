"""Model of transactions that another process decides, by the rules of `tests.models.transactions.model`.

Half messages wait for the answers of their producers. Those that stay without an answer are copied for
operators, and two operators release copies. A program prepares its database, and LedgerMQ's commit
decides for both: a process that starts later asks for the outcome. A manager prepares transactions,
another process resolves them, and a batch of some is damaged.

Invariants: a database has committed exactly the transactions that are visible; a half message whose
send was acknowledged becomes visible once, or was aborted by its producers, or is among the unresolved
ones; at the end each committed transaction is complete, except for parts that an operator gave up.
"""

from __future__ import annotations

from tests.models.transactions.background import background
from tests.models.transactions.damage import repairer, vandal
from tests.models.transactions.databases import Database
from tests.models.transactions.half_messages import HalfMessages
from tests.models.transactions.managers import check_xids, manager, resolver, rival
from tests.models.transactions.state import STEPS, World
from tests.models.walk import Model, Walk

STEPS_AT_REST = 40_000

MUTANTS = {
    "used-twice": "the id of a two-phase transaction or a half message is used once: a second init begins no epoch",
    "outcome-without-record": "the outcome of an undecided transaction is ABORT, which is recorded first",
    "outcome-by-age": "the outcome of a committed two-phase transaction is kept until it is forgotten",
    "outcome-aborts-prepared": "the outcome of a prepared transaction is PREPARED",
    "age-aborts-half": "age alone never aborts a half message: its producers are asked",
    "expire-unused-half": "the id of a half message does not expire before it is decided",
    "unresolved-not-final": "UNRESOLVED is durable and final",
    "unresolved-is-abort": "a bundle that asks about an unresolved message waits until its copy is durable",
    "gone-before-copied": "what is staged of an unresolved message goes after its copy is durable",
    "copy-without-key": "a copy carries the transaction as its key, and its release is one decision under that key",
    "give-up-in-memory": "a part that was given up counts as done, durably",
}


def run(walk: Walk) -> None:
    world = World(walk)
    halves, database = HalfMessages(world), Database(world)
    processes = [
        *background(world),
        halves.sender(),
        halves.checker(),
        halves.operator(),
        halves.operator(),
        database.saver(),
        database.recoverer(),
        manager(world),
        rival(world),
        resolver(world),
        vandal(world),
        repairer(world),
    ]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(200, 4000))
    world.check_rest()
    check_xids(world)
    halves.check()
    database.check()


LATE_DECISIONS = Model(
    "late-decisions",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        "half: commit",
        "half: abort",
        "half: prepared",
        "half: unresolved",
        "a half message was released",
        "database: commit",
        "database: abort",
        "a database was given: commit",
        "a database was given: abort",
        "a part was given up",
        "an id expired",
    ),
)

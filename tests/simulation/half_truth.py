"""Judge half messages by the database of their programs, by the log, and by the copies for operators.

visible without commit  a half message is visible, and its local transaction was not committed before
half message lost       it was acknowledged, and it never ended, or it was dropped although its local transaction
                        is committed
unresolved too early    it was declared UNRESOLVED before its last check
copied wrongly          one that is UNRESOLVED has not one copy for operators, or another one has a copy. A copy may be
                        there again after its ledger forgot its session
dropped before copied   what was staged of an UNRESOLVED one went before its copy was durable
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.client.transactions.checks import Resolution
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as stored
from tests.judges.violation import Violation
from tests.simulation.transactions_truth import COMMITS, Named, TransactionTruth

CHECK_GROUP = "checkers"
PREFIX = "half/"
"""Of the values of half messages."""


class Row(NamedTuple):
    """`moment`: the number of objects that had been stored by then."""

    resolution: Resolution
    moment: int


@dataclass
class LocalDatabase:
    """What the programs of the check group share. The first who writes a row decides, as under a unique key."""

    rows: dict[str, Row] = field(default_factory=dict)
    """transactional id -> what became of the local transaction"""
    silent: set[str] = field(default_factory=set)
    """Local transactions of which no program ever learns."""
    acknowledged: set[str] = field(default_factory=set)

    def settle(self, name: str, wanted: Resolution, moment: int) -> Resolution:
        return self.rows.setdefault(name, Row(wanted, moment)).resolution


def judge_half(truth: TransactionTruth, names: Iterable[str], database: LocalDatabase, checks_max: int) -> None:
    """`names`: the transactional ids of all half messages that were begun; value: PREFIX and the id."""
    decided = {transaction.transactional_id: transaction for transaction in truth.decided}
    for name in names:
        _judge_visible(truth, name, database.rows.get(name))
        transaction = decided.get(name)
        state = stored.UNDECIDED if transaction is None else truth.decided[transaction][0]
        row = database.rows.get(name)
        if state == stored.UNDECIDED and name in database.acknowledged:
            truth.report("half message lost", f"{name} was acknowledged, and nothing was ever decided about it")
        elif state == stored.ABORTED and row is not None and row.resolution == "commit":
            truth.report("half message lost", f"{name} is committed by its program, and was dropped")
        elif state == stored.ABORTED and name in database.acknowledged and row is None:
            truth.report("half message lost", f"{name} was dropped, and no program has said so")
        truth.violations += _judge_copies(truth, name, transaction, state, checks_max)


def _judge_visible(truth: TransactionTruth, name: str, row: Row | None) -> None:
    for seen in truth.visible.get(PREFIX + name, ()):
        if row is None or row.resolution != "commit" or seen.moment < row.moment:
            truth.report("visible without commit", f"{name} is visible at {seen}; its program has {row}")


def _judge_copies(
    truth: TransactionTruth, name: str, transaction: Named | None, state: int, checks_max: int
) -> Iterator[Violation]:
    copies = truth.copies.get(PREFIX + name, [])
    count = 1 if PREFIX + name in truth.repeatable else len(copies)
    if count != (state == stored.UNRESOLVED):
        yield Violation("copied wrongly", f"{name} is {stored.State.Name(state)}, and has {len(copies)} copies")
    if state != stored.UNRESOLVED or transaction is None:
        return
    if truth.checks[transaction] < checks_max:
        yield Violation("unresolved too early", f"{name} is UNRESOLVED after {truth.checks[transaction]} checks")
    dropped = truth.dropped.get(transaction.producer_id.hex())
    if dropped is not None and any(copy.moment > dropped for copy in copies):
        yield Violation("dropped before copied", f"{name} went at {dropped}, its copies are {copies}")


def coverage_of(truth: TransactionTruth, names: Iterable[str]) -> dict[str, int]:
    """Return what the log says of half messages, for the coverage."""
    known = set(names)
    states = [state for transaction, (state, _) in truth.decided.items() if transaction.transactional_id in known]
    return {
        "a half message was committed": sum(state in COMMITS for state in states),
        "a half message was rolled back": states.count(stored.ABORTED),
        "a half message was unresolved": states.count(stored.UNRESOLVED),
    }

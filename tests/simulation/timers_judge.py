"""Judge what clients were told about timed messages, and those that were sent in transactions."""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.client.delayed import RecallOutcome
from tests.judges.violation import Violation
from tests.simulation.history import Outcome
from tests.simulation.timers_rows import PREFIX, Recall, Row, Sent, TimersTruth
from tests.simulation.transactions_truth import COMMITS, TransactionTruth


def judge(truth: TimersTruth, sent: Iterable[Sent], kept_us: int) -> list[Violation]:
    """What clients were told is so."""
    for each in sent:
        row = truth.rows.get(each.value)
        if each.told is Outcome.OK and (row is None or row.moment >= each.told_moment):
            truth.report("told before durable", f"{each.value} was acknowledged at {each.told_moment}; {row}")
        elif each.told is Outcome.FAIL and row is not None:
            truth.report("failed write staged", f"{each.value} is staged: {row}")
        if row is None:
            continue
        if each.told is Outcome.OK and each.due_us != row.due_us:
            truth.report("changed due time", f"{each.value} was due at {each.due_us}, and is at {row.due_us}")
        is_gone = row.topic_id in truth.topics.removed
        if not row.delivered and row.recalled is None and not is_gone:
            truth.report("lost message", f"{each.value} is not visible: {row}")
        for recall in each.recalls:
            _judge_recall(truth, row, recall, kept_us, is_gone=is_gone)
    return truth.violations


def _judge_recall(truth: TimersTruth, row: Row, told: Recall, kept_us: int, *, is_gone: bool) -> None:
    truth.coverage[f"a recall was told: {told.outcome}"] += 1
    if told.outcome is RecallOutcome.RECALLED:
        if row.delivered:
            truth.report("recalled and visible", f"{row}: {told}")
        if row.recalled is None or row.recalled >= told.moment:
            truth.report("told before durable", f"{row}: {told}")
    elif told.outcome is RecallOutcome.TOO_LATE:
        if not row.delivered and not is_gone:
            truth.report("too late and not visible", f"{row}: {told}")
        elif row.delivered and not row.is_late and row.delivered[0].moment >= told.moment:
            truth.report("told too late early", f"{row}: {told}")
    elif told.at_us - row.due_us < kept_us:
        truth.report("forgotten early", f"{row}: {told}")


def judge_together(truth: TimersTruth, together: TransactionTruth) -> list[Violation]:
    """What was sent in transactions waits for delivery from the commit on, and not otherwise (W17)."""
    found, coverage = [], truth.coverage
    for value, transaction in together.staged.items():
        if not value.startswith(PREFIX):
            continue
        row, (state, moment) = truth.rows.get(value), together.decided.get(transaction, (None, 0))
        coverage["a timed message of a transaction was delivered"] += row is not None and bool(row.delivered)
        coverage["a timed message was staged, and not committed"] += row is None
        if row is None:
            continue
        coverage["a timed message of a transaction was due before its commit"] += row.is_late
        if state not in COMMITS:
            found.append(Violation("not committed", f"{row}: {transaction} is {state}"))
        elif row.moment <= moment:
            found.append(Violation("before its commit", f"{row}: {transaction} was decided at {moment}"))
    return found

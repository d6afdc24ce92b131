"""Count how transactions end, and measure how long their completion takes and why it fails. The numbers of
open and staged transactions are read at each scrape (`scrape.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.owner_metrics import LONG_SECONDS
from ledgermq_broker.transactions.counts import TransactionCounts
from ledgermq_broker.transactions.state.types import State

BEGIN = (
    (State.COMMITTED, "producer"),
    (State.ABORTED, "producer"),
    (State.ABORTED, "asked"),
    (State.ABORTED, "timeout"),
    (State.ABORTED, "fenced"),
    (State.ABORTED_BY_OPERATOR, "operator"),
    (State.COMMITTED_BY_OPERATOR, "operator"),
    (State.PREPARED, "producer"),
    (State.UNRESOLVED, "checks"),
)
"""Series that exist from the start."""


class TransactionMetrics(TransactionCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            names.TRANSACTIONS_ENDED,
            "Decisions about transactions, by outcome and by cause: producer, asked (a question for the outcome aborted"
            " it), timeout, fenced (a new epoch had begun), checks (no check had an answer), operator",
            ("outcome", "cause"),
            registry=registry,
        )
        self._seconds = Histogram(
            names.COMPLETION_SECONDS,
            "Time from a decision until a bundle has made its part of the transaction visible, or dropped it",
            buckets=LONG_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            names.COMPLETION_FAILURES,
            "Failed attempts of a bundle to complete its part of a transaction; they are repeated",
            ("code",),
            registry=registry,
        )
        self._carried = Counter(
            names.CARRIED_BYTES,
            "Staged bytes that were appended again, so that old segments can be trimmed",
            registry=registry,
        )
        for outcome, cause in BEGIN:
            self._ended.labels(outcome.name.lower(), cause)

    def ended(self, partition: int, state: State, cause: str) -> None:
        self._ended.labels(state.name.lower(), cause).inc()

    def completed(self, bundle: int, seconds: float) -> None:
        self._seconds.observe(seconds)

    def completion_failed(self, bundle: int, code: str) -> None:
        self._failures.labels(code).inc()

    def carried(self, bundle: int, size_bytes: int) -> None:
        self._carried.inc(size_bytes)

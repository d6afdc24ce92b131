"""Define what a broker counts about transactions for its metrics, where every method may be overridden, and the values
that are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ledgermq_broker.internal.feature import Gauge, Serving, by_bundle, refused
from ledgermq_broker.transactions.state.types import State

CAUSES = ("producer", "asked", "timeout", "fenced", "checks", "operator")
"""Why a transaction was decided. asked: a call of `outcome` aborted an undecided one. fenced: a later
epoch of its id has begun. checks: the last check of a half message had no answer.
"""


class TransactionSizes(NamedTuple):
    """Sizes of one partition of `__transactions`, and of what is staged in its bundle. An age is 0.0 if
    there is nothing.
    """

    ids: int
    prepared: int
    incomplete: int
    incomplete_s: float
    """Seconds since the decision, or since the last "done" of a bundle, of the incomplete transaction
    that waits longest.
    """
    staged: int
    """Transactions that have batches in the bundle."""
    staged_batches: int
    staged_bytes: int
    staged_s: float
    """Seconds since the oldest batch or offset was staged."""


class TransactionCounts:
    """Methods are called on the event loop and must return at once."""

    def ended(self, partition: int, state: State, cause: str) -> None:
        """Count a decision of a coordinator. `cause`: one of CAUSES."""

    def completed(self, bundle: int, seconds: float) -> None:
        """Count a part that a bundle has made visible or dropped, `seconds` after the coordinator began
        to complete it.
        """

    def completion_failed(self, bundle: int, code: str) -> None:
        """Count a failed call to complete a part; the call is repeated."""

    def carried(self, bundle: int, size_bytes: int) -> None:
        """Count staged bytes that were carried forward."""


SIZES = {
    "ids": ("transactional_ids", "Transactional ids of the coordinator in this bundle"),
    "prepared": (
        "prepared_transactions",
        "Two-phase transactions and half messages that are prepared and not decided yet",
    ),
    "incomplete": (
        "incomplete_transactions",
        "Transactions that are decided and not complete in all their bundles",
    ),
    "incomplete_s": (
        "incomplete_transactions_seconds",
        (
            "Time since the last change of the incomplete transaction that waits longest; `ledgermq transaction list`"
            " shows why it waits"
        ),
    ),
    "staged": ("staged_transactions", "Transactions that have staged batches in the bundle"),
    "staged_batches": ("staged_batches", "Batches that are staged in the bundle: invisible until a commit"),
    "staged_bytes": ("staged_bytes", "Bytes of the batches that are staged in the bundle"),
    "staged_s": ("staged_seconds", "Age of the oldest batch or offset that is staged in the bundle"),
}


def gauges(transactions: Serving[Any] | None) -> Iterator[Gauge]:
    yield from by_bundle("ledgermq_", SIZES, transactions)
    yield refused(
        "ledgermq_refused_transaction_partitions",
        "Partitions of __transactions whose records cannot be read: nothing is staged or completed in their bundles;"
        " the label says why",
        transactions,
    )

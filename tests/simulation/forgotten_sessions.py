"""Find the copies of unresolved half messages that may be stored again: the ledger has forgotten their sessions.

A ledger remembers a bounded count of producers (`producer_states_max`), and the oldest goes first. So a session is
forgotten after so many other producers, not earlier. This is counted from the log, without the ledger's own fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tests.simulation.transactions_truth import StoredIn, TransactionTruth, valid_segments
from tests.simulation.watch import WatchedStore

Producer = tuple[bytes, int, int]
"""A producer id, and the partition that it writes to: topic id and number."""


def repeatable_copies(
    truth: TransactionTruth, store: WatchedStore, bundles: Iterable[int], states_max: int
) -> frozenset[str]:
    """Return the values of copies that lie in the log several times, each time after their session was forgotten."""
    several = {value: copies for value, copies in truth.copies.items() if len(copies) > 1 and value in truth.staged}
    if not several:
        return frozenset()
    ledgers = [list(valid_segments(store, (bundle,))) for bundle in bundles]
    return frozenset(
        value
        for value, copies in several.items()
        if all(
            any(
                is_forgotten(_between(ledger, first, second), truth.staged[value].producer_id, states_max)
                for ledger in ledgers
            )
            for first, second in pairwise(sorted(seen.moment for seen in copies))
        )
    )


def is_forgotten(others: Iterable[Producer], session: bytes, states_max: int) -> bool:
    """Return whether a ledger that took batches of these producers after one of `session` has forgotten it."""
    return len({producer for producer in others if producer[0] and producer[0] != session}) >= states_max


def _between(ledger: Iterable[StoredIn], first: int, second: int) -> Iterator[Producer]:
    for segment in ledger:
        if first <= segment.moment <= second:
            for entry in segment.index.batches:
                yield entry.producer_id, entry.topic_id, entry.partition
            for opened in segment.index.opens:
                for state in opened.producers:
                    yield state.producer_id, state.topic_id, state.partition

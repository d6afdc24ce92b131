"""Which filter of a queue group counts in a partition."""

from __future__ import annotations

import pytest

from ledgermq.errors import FilterConflict
from ledgermq_broker.queues.state.filters import FILTER_S, QueueFilters
from ledgermq_broker.queues.state.records import ShareKey

KEY = ShareKey("g", 1, 0)


def test_the_first_counts_until_its_members_are_silent_and_hold_nothing() -> None:
    filters = QueueFilters()
    filters.announce(KEY, "A", 0.0, is_leased=False)
    filters.announce(KEY, "A", 10.0, is_leased=True)
    filters.announce(ShareKey("g", 1, 1), "B", 10.0, is_leased=False)
    with pytest.raises(FilterConflict, match="group g has members with the filter 'A', and this one has 'B'"):
        filters.announce(KEY, "B", 10.0 + FILTER_S - 0.1, is_leased=False)
    with pytest.raises(FilterConflict):
        filters.announce(KEY, "B", 1000.0, is_leased=True)
    filters.announce(KEY, "B", 10.0 + FILTER_S, is_leased=False)
    with pytest.raises(FilterConflict, match="'B'"):
        filters.announce(KEY, "A", 11.0 + FILTER_S, is_leased=False)


def test_no_filter_is_one_too() -> None:
    filters = QueueFilters()
    filters.announce(KEY, "", 0.0, is_leased=False)
    filters.announce(KEY, "*", 1.0, is_leased=False)
    with pytest.raises(FilterConflict, match=r"\* \(all messages\), and this one has 'AAA.*…'"):
        filters.announce(KEY, "A" * 4096, 2.0, is_leased=False)
    filters.keep([])
    filters.announce(KEY, "A", 2.0, is_leased=False)

"""Cursors: round trips, and input of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.cursors import CHARS_MAX, PARTITIONS_MAX, cursor_of, parse_cursor

OFFSETS = st.dictionaries(st.integers(0, 9_999), st.integers(0, OFFSET_MAX), max_size=PARTITIONS_MAX)


@given(st.integers(0, OFFSET_MAX), OFFSETS)
def test_a_cursor_is_read_as_it_was_made(topic_id: int, offsets: dict[int, int]) -> None:
    text = cursor_of(topic_id, offsets)
    assert parse_cursor(text) == (topic_id, offsets)


def test_the_largest_cursor_fits_into_a_header() -> None:
    assert len(cursor_of(OFFSET_MAX, {9_999 - number: OFFSET_MAX for number in range(PARTITIONS_MAX)})) <= CHARS_MAX


@given(st.text() | st.text("c1.AQ_-=", max_size=40).map("c1.".__add__))
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="cursor"):
        parse_cursor(text)


@given(OFFSETS, st.data())
def test_a_changed_sign_is_noticed(offsets: dict[int, int], data: st.DataObject) -> None:
    text = cursor_of(7, offsets)
    at = data.draw(st.integers(3, len(text) - 1))
    sign = data.draw(st.sampled_from("ABCxyz019_-"))
    changed = text[:at] + sign + text[at + 1 :]
    try:
        found = parse_cursor(changed)
    except Problem:
        return
    assert found == (7, offsets), "only the unused bits of the last sign may differ"

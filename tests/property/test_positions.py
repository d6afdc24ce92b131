"""Positions in Spark's checkpoint: a golden file that stays readable forever, a round trip through
JSON, shares of a rate limit.
"""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.errors import FormatNotSupported, InvalidConfig
from ledgermq_spark.source.streaming.positions import Position, TopicPosition, decode, encode, share

GOLDEN = Path(__file__).parents[1] / "golden" / "spark-position-v1.json"

offsets = st.integers(0, 2**63 - 1)
topics = st.dictionaries(
    st.text(min_size=1),
    st.builds(TopicPosition, offsets, st.dictionaries(st.integers(0, 10**6), offsets, max_size=4)),
    max_size=4,
)
positions = st.builds(Position, st.text(), topics, st.none() | topics, st.booleans())


def test_the_golden_file_is_readable_for_ever() -> None:
    expected = Position(
        "4f6b0e1c9d2a4b7e8c5d3f2a1b0c9d8e",
        {"123": TopicPosition(9, {0: 7}), "flights": TopicPosition(17, {0: 120, 1: 98, 10: 0})},
        begun={"flights": TopicPosition(17, {0: 100, 1: 98, 10: 0})},
    )
    text = GOLDEN.read_text().strip()
    assert decode(json.loads(text)) == expected
    assert json.dumps(encode(expected)) == text


@given(positions)
def test_round_trip(position: Position) -> None:
    assert decode(json.loads(json.dumps(encode(position)))) == position


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["", "version", "cluster", "topics", "from"]))
@example({"t": {"id": 1, "offsets": {"0": True}}}, "topics")
def test_every_value_in_a_checkpoint_is_read_or_refused(value: object, at: str) -> None:
    whole = encode(Position("c", {"t": TopicPosition(1, {0: 5})}))
    try:
        decode({**whole, at: value} if at else value)
    except (InvalidConfig, FormatNotSupported):
        pass


@given(
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), st.integers(0, 1000), max_size=8),
    st.integers(1, 3000),
)
def test_a_rate_limit_is_used_up_and_never_overdrawn(lags: dict[tuple[str, int], int], rows_max: int) -> None:
    found = share(lags, rows_max)
    assert found.keys() == lags.keys()
    assert all(0 <= found[part] <= lag for part, lag in lags.items())
    assert sum(found.values()) == min(rows_max, sum(lags.values()))

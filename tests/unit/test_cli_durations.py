"""Every command reads durations by one rule."""

from __future__ import annotations

import pytest

from ledgermq.durations import find_duration_ms, parse_duration_ms
from ledgermq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("2 m", 120_000),
        ("1.5h", 5_400_000),
        ("7D", 604_800_000),
        ("0.5ms", 0),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text, "--grace") == ms


@pytest.mark.parametrize("text", ["", "5", "-1s", "1w", "s", "1e3s", "1.s", ".5s", "99999999999d", "1h30m", "١s"])
def test_texts_that_are_no_duration(text: str) -> None:
    assert find_duration_ms(text) is None
    with pytest.raises(InvalidRequest, match=r"--grace .* give a number and its unit"):
        parse_duration_ms(text, "--grace")


def test_the_least() -> None:
    assert parse_duration_ms("100ms", "--every", 100) == 100
    with pytest.raises(InvalidRequest, match="the minimum is 100 ms"):
        parse_duration_ms("99ms", "--every", 100)

"""The demo's proofs can fail: a lost, doubled, late or changed flight, and a mean that differs in
its last bit.
"""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import ledgermq

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


@pytest.fixture
def consuming(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return demo_module("consuming", monkeypatch)


def demo_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo is a folder of scripts, not a package."""
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module(name)


def flight(number: int, offset: int, *, partition: int = 0, key: bytes = b"UA") -> ledgermq.Message:
    return ledgermq.Message("flights", partition, offset, key, json.dumps({"number": number}).encode(), (), 0, None)


GOOD = [flight(0, 0), flight(2, 1), flight(1, 0, partition=1, key=b"AA")]


def check(consuming: Any, messages: list[ledgermq.Message], expected: int = 3) -> None:
    proof = consuming.Check(expected)
    for message in messages:
        proof.add(message)
    proof.finish()


def test_each_flight_once_and_in_order_passes(consuming: Any) -> None:
    check(consuming, GOOD)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (GOOD[:2], "never came"),
        ([*GOOD, flight(2, 2)], "came twice"),
        ([flight(2, 0), flight(0, 1), GOOD[2]], "came after"),
        ([flight(0, 0), flight(2, 2), GOOD[2]], "gap before offset 2"),
    ],
)
def test_anything_else_fails(consuming: Any, messages: list[ledgermq.Message], problem: str) -> None:
    with pytest.raises(consuming.WrongData, match=problem):
        check(consuming, messages)


def test_means_are_compared_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = demo_module("delays", monkeypatch)
    table = pd.DataFrame({"carrier": ["AA", "UA", "UA"], "hour": [5, 5, 6], "dep_delay": [1.0, math.nan, 7.0]})
    answer = delays.ask_pandas(table)
    assert (answer.flights, answer.departed) == (3, 2)
    assert delays.difference(answer, delays.ask_pandas(table)) is None
    other = delays.ask_pandas(table)
    other.by_carrier.loc[0, "mean_delay"] = math.nextafter(1.0, 2.0)
    assert "by_carrier" in delays.difference(answer, other)
    assert delays.difference(delays.ask_pandas(table[:2]), answer) is not None


def test_figures_say_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction of so little data measures the start of Spark's tasks, and is no rate; a member's
    gap goes with the demo's time-out.
    """
    main, producing, compacting, sharing = (
        demo_module(name, monkeypatch) for name in ("main", "producing", "compacting", "sharing")
    )
    outage = producing.Outage("127.0.0.1:9650", {1}, 0.0, {})
    produced = producing.Produced(336_776, 28_000_000, 9.0, outage)
    shared = sharing.Shared(336_776, 12, "b", 1, 3.4, 0)
    consumed = main.Consumed(336_776, 2.0)
    table = main.figures(
        produced, consumed, shared, compacting.Compacted(8, 336_776, 28_800_000, 5_000_000, 12.5), 60.0
    )
    rows = dict(zip(*(list(column.cells) for column in table.columns), strict=True))
    (compaction,) = (label for label in rows if "compaction" in label)
    assert "28.8 MB" in compaction
    assert "Spark's start of tasks" in compaction
    assert rows[compaction] == "12.5 s"
    (gap,) = (label for label in rows if "group member" in label)
    assert "time-out 3 s; by default 45 s" in gap

"""Results: rounds, ratios, targets, the file that keeps them, the page and the plots."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import distances, latency, limits, many, plots
from bench.measures import Curve, Results, alternate
from bench.page import markdown
from bench.store_bill import Bill
from bench.targets import TARGETS, Target, reached
from bench.throughput import KAFKA, OURS


def results(**values: Sequence[float]) -> Results:
    found = Results("2 cores", "2026-11-21", "abc", 0.1)
    for subject, rounds in values.items():
        for value in rounds:
            found.add("P1", "produce", subject, "records/s", value)
    return found


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    found = results(ours=[10.0, 90.0, 30.0], theirs=[10.0, 30.0, 20.0])
    assert found.ratio("P1", "produce", "ours", "theirs") == 1.5
    assert found.ratio("P1", "produce", "ours", "nobody") is None
    assert found.ratio("P2", "produce", "ours", "theirs") is None


def test_a_round_that_divides_by_nothing_is_left_out() -> None:
    assert results(ours=[10.0, 20.0], theirs=[0.0, 10.0]).ratio("P1", "produce", "ours", "theirs") == 2.0
    assert results(ours=[10.0], theirs=[0.0]).ratio("P1", "produce", "ours", "theirs") is None


def test_who_is_first_changes_with_every_round() -> None:
    found, order = Results(), list[str]()

    def subject(name: str) -> float:
        order.append(name)
        return float(len(order))

    alternate(found, "P1", "x", "s", {"a": lambda: subject("a"), "b": lambda: subject("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [(m.subject, m.values) for m in found.measures] == [("a", [1.0, 4.0, 5.0]), ("b", [2.0, 3.0, 6.0])]


@pytest.mark.parametrize(
    ("most", "value", "met"), [(False, 2.5, True), (False, 2.4, False), (True, 2.5, True), (True, 2.6, False)]
)
def test_a_bound_is_met_at_least_or_at_most(most: bool, value: float, met: bool) -> None:
    absolute = Target("P1", "produce", "ours", None, 2.5, most)
    ratio = Target("P1", "produce", "ours", "theirs", 2.5, most)
    found = results(ours=[value * 2], theirs=[2.0])
    assert [each.met for each in reached(found, [ratio])] == [met]
    assert [each.met for each in reached(results(ours=[value]), [absolute])] == [met]


def test_absolute_targets_have_units_and_ratios_have_none() -> None:
    found = results(ours=[1500.0], theirs=[1000.0])
    [absolute, ratio] = reached(
        found, [Target("P1", "produce", "ours", None, 1000, most=True), Target("P1", "produce", "ours", "theirs", 2)]
    )
    assert (absolute.value, absolute.bound, absolute.target.name()) == (
        "1,500.00 records/s",
        "≤ 1000 records/s",
        "produce: ours",
    )
    assert (ratio.value, ratio.bound, ratio.target.name()) == ("1.50", "≥ 2", "produce: ours / theirs")


def test_targets_of_what_was_not_measured_are_not_shown() -> None:
    assert reached(Results(), TARGETS) == []


def test_rows_that_are_not_measured_again_are_kept_with_their_date(tmp_path: Path) -> None:
    first = Results("2 cores", "monday", "abc", 0.1)
    for row in ("P1", "P4", "P10"):
        first.add(row, "x", "ours", "ms", 1.0)
    second = Results("2 cores", "tuesday", "def", 0.2)
    second.add("P4", "x", "ours", "ms", 2.0)
    second.keep(first)
    third = Results("2 cores", "wednesday", "fed", 0.9)
    third.add("P1", "x", "ours", "ms", 3.0)
    third.keep(second)
    assert [(m.row, m.values) for m in third.measures] == [("P1", [3.0]), ("P4", [2.0]), ("P10", [1.0])]
    assert [(run.rows, run.date, run.commit) for run in third.kept] == [
        (["P10"], "monday", "abc"),
        (["P4"], "tuesday", "def"),
    ]
    assert third.own_rows == ["P1"]
    third.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == third
    page = markdown(third, [])
    assert "* P4: 2 cores; tuesday; commit def; load before the run 0.2\n" in page
    assert "* P1: 2 cores; wednesday; commit fed; load before the run 0.9 (other processes were busy" in page


def test_results_survive_their_file(tmp_path: Path) -> None:
    found = results(ours=[1.0, 2.0])
    found.curves.append(Curve("GC", "x", "file", [(1.0, 2.0), (3.0, 4.0)], ["0 ms", "10 ms"]))
    found.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == found


def filled() -> Results:
    """Something of every plot."""
    found = Results("2 cores", "2026-11-21", "abc", 3.0)
    for number in (1.0, 1.1):
        found.add("P1", "produce 1000 B", f"{OURS} send", "records/s", 200_000 * number)
        found.add("P1", "produce 1000 B", KAFKA, "records/s", 100_000)
        found.add("P9", "broker's memory, single records", many.MANY, "MiB", 2000)
    found.curves += [
        Curve("P4", "MinIO", latency.OURS, [(1.0, 0.1), (10.0, 1.0)]),
        Curve("GC", "throughput against latency", "MinIO", [(5.0, 50.0), (60.0, 90.0)], ["0 ms", "100 ms"]),
        Curve("P11", "produce 1000 B", "LedgerMQ", [(1.0, 100.0), (2.0, 150.0)]),
        Curve("P5", "dollars a TB", "LedgerMQ", [(1.0, 0.5), (10_000.0, 0.6)]),
    ]
    return found


def test_the_page_says_what_was_met_and_what_was_not() -> None:
    page = markdown(filled(), ["latency.png"])
    assert f"| P1 | produce 1000 B: {OURS} send / {KAFKA} | 2.10 | ≥ 2.5 | **no** |" in page
    assert "| P9 | broker's memory, single records: 10,000 partitions | 2,000.00 MiB | ≤ 1024 MiB | **no** |" in page
    assert f"| P1 | produce 1000 B | {OURS} send | 210,000 | 200,000 to 220,000 | records/s |" in page
    assert "other processes were busy" in page
    assert "**P1 to P3**: records a second" in page
    assert "**P4**" not in page  # for it was not measured
    assert "images/latency.png" in page
    assert "images/cost.png" not in page


def test_every_plot_is_drawn_from_results_and_none_from_nothing(tmp_path: Path) -> None:
    assert plots.draw(Results(), tmp_path) == []
    assert plots.draw(filled(), tmp_path) == list(plots.PLOTS)
    for name in plots.PLOTS:
        width, height = struct.unpack(">II", (tmp_path / name).read_bytes()[16:24])
        assert width > 300
        assert height > 100


def test_a_bill_is_the_difference_of_two_readings() -> None:
    before = Bill({"put": 5.0, "put_if_absent": 1.0}, 0.5, 1.0)
    bill = Bill({"put": 9.0, "put_if_absent": 4.0, "list": 4.0, "get": 6.0, "get_suffix": 2.0}, 0.75, 3.0).since(before)
    assert bill == Bill({"put": 4.0, "put_if_absent": 3.0, "list": 4.0, "get": 6.0, "get_suffix": 2.0}, 0.25, 2.0)
    assert (bill.heartbeats, bill.beside_heartbeats) == (12.0, 7.0)
    assert Bill({"put": 4.0, "list": 4.0, "get": 3.0}, 0.0, 0.0).beside_heartbeats == 0.0


def test_a_distance_says_how_much_better_the_limit_is() -> None:
    found = Results("2 cores", "2026-11-21", "abc", 0.1)
    found.add("P3", "consume 100 B", f"{OURS} arrow", "records/s", 1e6)
    found.add("P1", limits.DECODES[100].what, limits.SUBJECT, "records/s", 4e6)
    found.add("P11", "brokers' CPU, end to end", "1 broker process", "ms/MB", 4.0)
    found.add("P11", limits.ECHOES.what, limits.SUBJECT, "ms/MB", 1.6)
    found.add("P4", "acknowledgement at 100/s, MinIO, p50", OURS, "ms", 6.0)  # its limit was not measured
    by_row = {at.row: (named, limit, times) for at, _, named, limit, times in distances.measured(found)}
    assert by_row == {
        "P3": (limits.DECODES[100].what, 4e6, 4.0),
        "P11": (limits.ECHOES.what, 1.6, 2.5),
    }
    assert f"| P3 | consume 100 B: {OURS} arrow | 1,000,000 records/s | {limits.DECODES[100].what} |" in markdown(
        found, []
    )


def test_every_row_with_a_target_has_a_distance_or_a_reason_why_not() -> None:
    bounded = {at.row for at in distances.DISTANCES}
    assert not bounded & set(distances.UNBOUND)
    assert {target.row for target in TARGETS} <= bounded | set(distances.UNBOUND)


@pytest.mark.parametrize(
    "limit", sorted({each for row in limits.LIMITS.values() for each in row}, key=lambda each: each.what)
)
def test_every_limit_can_be_measured(limit: limits.Limit) -> None:
    assert limit.measured(2 * limits.AT_ONCE) > 0

"""Each test of librdkafka's suite stands in one list, and docs/kafka.md says what the lists say."""

from __future__ import annotations

import re
from pathlib import Path

from tests.librdkafka.suite import LOCAL, LOGIN, NOT_RUN, PARTS, PASS, RUNS, WITHOUT_CREATION

TESTS = 168
PAGE = Path(__file__).resolve().parents[3] / "docs" / "kafka.md"


def test_each_stands_in_one_list() -> None:
    listed = [*PASS.split(), *WITHOUT_CREATION.split(), *LOGIN.split(), *PARTS, *NOT_RUN, *LOCAL.split()]
    assert len(set(listed)) == len(listed) == TESTS
    assert {name for run in RUNS for name in run.names} == {*listed} - {*NOT_RUN} - {*LOCAL.split()}


def test_the_page_says_what_the_lists_say() -> None:
    whole = [*PASS.split(), *WITHOUT_CREATION.split(), *LOGIN.split()]
    local = LOCAL.split()
    text = PAGE.read_text().partition("| of librdkafka's 168 tests |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert rows[0] == [f"{len(whole)} pass", " ".join(_numbers(whole))]
    assert rows[1] == [f"{len(local)} take no broker", " ".join(_numbers(local))]
    reasons = {name: part.without for name, part in PARTS.items()} | NOT_RUN
    said = {number: reason for cell, reason in rows[2:] for number in re.findall(r"\d{4}", cell)}
    assert said == {name[:4]: reason for name, reason in reasons.items()}
    parts = [number for cell, _ in rows[2:] for number in re.findall(r"\d{4}", cell) if "in part" in cell]
    assert parts == _numbers([*PARTS])


def _numbers(names: list[str]) -> list[str]:
    return sorted({name[:4] for name in names})

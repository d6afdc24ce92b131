"""Names and patterns as programs write them, and as coordinators match them."""

from __future__ import annotations

import re

import pytest

from ledgermq import errors
from ledgermq.client.groups.assignment import check_group, topics_of


@pytest.mark.parametrize(
    ("given", "names", "pattern"),
    [
        ("t", ["t"], ""),
        (["t", "u", "t"], ["t", "u"], ""),
        (("t",), ["t"], ""),
        ("^a.*", [], "^a.*"),
        (re.compile("a.*"), [], "a.*"),
        (re.compile("a.*", re.IGNORECASE | re.DOTALL), [], "(?is)a.*"),
    ],
)
def test_topics(given: object, names: list[str], pattern: str) -> None:
    assert topics_of(given) == (names, pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [[], [5], re.compile(b"a"), re.compile("a", re.VERBOSE), "\ud800"])
def test_what_cannot_be_sent_is_refused(given: object) -> None:
    with pytest.raises(errors.InvalidRequest):
        topics_of(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", None, 5, "\ud800"])
def test_names_of_groups(group: object) -> None:
    with pytest.raises(errors.InvalidGroupName):
        check_group(group)

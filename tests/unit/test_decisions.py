"""Each decision says whether it holds, so that a reader knows without reading the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DECISIONS = sorted((Path(__file__).parents[2] / "docs" / "decisions").glob("*.md"))
NUMBERS = {int(path.name[:4]): path for path in DECISIONS}
SUPERSEDED = re.compile(r"Superseded by \[decision (\d+)\]\((\S+)\)")


def status_of(path: Path) -> str:
    lines = path.read_text().splitlines()
    assert lines[0].startswith(f"# {int(path.name[:4])}. "), "the number of the file, then the title"
    assert lines[1] == ""
    assert lines[2].startswith("**Status.** "), "the status is the first paragraph"
    return " ".join(lines[2 : lines.index("", 2)]).removeprefix("**Status.** ")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_each_has_a_status(path: Path) -> None:
    status = status_of(path)
    if (found := SUPERSEDED.match(status)) is None:
        assert re.match(r"In force[.:]? ?", status), "In force, or Superseded by [decision N](file)"
        return
    successor = NUMBERS[int(found[1])]
    assert successor.name == found[2]
    assert not SUPERSEDED.match(status_of(successor))
    assert path.name in status_of(successor), "the one that replaces it says so"


def test_no_number_is_used_twice() -> None:
    assert len(NUMBERS) == len(DECISIONS)

"""Plain Parquet: a reader that knows nothing of the product sees one gapless run of offsets in a partition's files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tests.judges.violation import Violation

Span = tuple[int, int]
"""First and last offset of a file."""


def judge_files(name: str, files: Sequence[Span], live: Iterable[Span] = ()) -> list[Violation]:
    """`files`: as they are read. `live`: those that the plan named before and after the read.

    parquet gap, parquet doubled    two files do not follow each other
    live file missing               the read lacks a file
    """
    found = []
    for (a_first, a_last), (b_first, b_last) in itertools.pairwise(files):
        if b_first != a_last + 1:
            kind = "parquet gap" if b_first > a_last + 1 else "parquet doubled"
            found.append(Violation(kind, f"{name}: {a_first}-{a_last}, then {b_first}-{b_last}"))
    return found + [
        Violation("live file missing", f"{name}: {first}-{last}") for first, last in live if (first, last) not in files
    ]


def is_whole(files: Sequence[Span], end: int, *, from_beginning: bool) -> bool:
    """Return whether files reach to the end of a log; with `from_beginning`, from offset 0."""
    reaches = (files[-1][1] + 1 if files else end) == end
    return reaches and (not from_beginning or not end or bool(files and files[0][0] == 0))

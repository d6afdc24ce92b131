"""Nothing lost: a log has every offset from its beginning to its end, and a reader who came to rest has seen them."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""First and last offset."""


def missing(spans: Iterable[Span], first: int, end: int) -> list[Span]:
    """Return what lacks of the offsets from `first` up to, without, `end`. `spans`: what is there, ascending."""
    found = []
    for begins, ends in spans:
        if begins > first:
            found.append((first, min(begins, end) - 1))
        first = max(first, ends + 1)
        if first >= end:
            break
    return found + ([(first, end - 1)] if first < end else [])


def unseen(position: int, known_end: int, log_start: int) -> bool:
    """Return whether a reader who found no more at `position` has not seen what was known to be there."""
    return position < known_end and known_end > log_start

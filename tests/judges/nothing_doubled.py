"""Nothing doubled: what must be stored once is not there twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping


def doubled(records: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the values that are stored more than once, with their offsets."""
    counted = Counter(records.values())
    found: dict[str, list[int]] = {value: [] for value, count in counted.items() if count > 1}
    for offset, value in records.items() if found else ():
        if value in found:
            found[value].append(offset)
    return found


def overlaps(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what two of these spans, first and last number, have both."""
    for (_, a_last), (b_first, b_last) in itertools.pairwise(sorted(spans)):
        if b_first <= a_last:
            yield b_first, min(a_last, b_last)

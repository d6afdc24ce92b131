"""Compute percentiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence


def at(sorted_values: Sequence[float], part: float) -> float:
    """Return the value that `part` (0 to 1) of the sorted values do not exceed, by nearest rank.

    Raises ValueError if there is no value.
    """
    if not sorted_values:
        raise ValueError("no values")
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]

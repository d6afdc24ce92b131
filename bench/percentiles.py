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


def latencies_within(latencies: Sequence[Sequence[float]], begin_s: float, end_s: float) -> list[float]:
    """Return the sorted latencies (ms) of records that were to be sent at or after `begin_s` and before `end_s`.

    `latencies`: (when it was to be sent, latency) of each record.
    """
    return sorted(latency_ms for sent_s, latency_ms in latencies if begin_s <= sent_s < end_s)

"""Decide when a broker that does not answer is suspected of standing still.

A caller that waits then queries another broker about the present owner of the partitions.

A stopped process keeps its connections open, so only its silence reveals it. The queries become
rarer the longer the wait.
"""

from __future__ import annotations

SUSPICION_S = 2.0
AGAIN_S = 0.5
AGAIN_PART = 0.25


def ask_at_s(waits_since_s: float, asked_s: float) -> float:
    """`asked_s`: when other brokers were last queried.

    The first query comes after two seconds without an answer, the next after half a second or a
    quarter of the wait.
    """
    if asked_s < waits_since_s:
        return waits_since_s + SUSPICION_S
    return asked_s + max(AGAIN_S, AGAIN_PART * (asked_s - waits_since_s))

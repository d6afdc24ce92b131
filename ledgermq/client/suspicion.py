"""When a broker that does not answer is suspected of standing still.

A caller that waits then asks another broker which one owns the partitions now.

A process that was stopped keeps its connections, so nothing else tells. The questions become rarer
the longer the wait.
"""

from __future__ import annotations

SUSPICION_S = 2.0
AGAIN_S = 0.5
AGAIN_PART = 0.25


def ask_at_s(waits_since_s: float, asked_s: float) -> float:
    """`asked_s`: when others were asked the last time.

    Two seconds without an answer, then half a second or a quarter of the wait later.
    """
    if asked_s < waits_since_s:
        return waits_since_s + SUSPICION_S
    return asked_s + max(AGAIN_S, AGAIN_PART * (asked_s - waits_since_s))

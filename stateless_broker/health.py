"""Whether a process is alive and ready, and why not: one value, read by the gRPC health service and by /readyz.

    starting ──> ready ──> draining
       └── waiting for something, with the reason ──┘

Once ready, a process stays ready until it drains, also while the store is away: it still answers every call with a typed error that says
when to come back, and a load balancer that dropped all brokers at once would only turn that into a refused connection.
"""

from __future__ import annotations

from collections.abc import Callable

STARTING = "the process is starting"
DRAINING = "the process is stopping"


class Health:
    """`why_not`: why it is not ready, "" when it is. `notes`: what is amiss although it is ready, told by /readyz."""

    def __init__(self, notes: Callable[[], list[str]] = list) -> None:
        self.why_not = STARTING
        self.notes = notes

    @property
    def is_ready(self) -> bool:
        return not self.why_not

    def waits(self, why: str) -> None:
        """Not ready before this has passed."""
        if self.why_not != DRAINING:
            self.why_not = why

    def ready(self) -> None:
        self.waits("")

    def drains(self) -> None:
        """For good."""
        self.why_not = DRAINING

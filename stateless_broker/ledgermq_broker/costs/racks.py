"""Count the bytes of clients by whether they cross racks. Most clouds charge for traffic between availability zones.

Counted are requests and answers as gRPC carries them. A client says in which rack it runs, which decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

SAME, OTHER, UNKNOWN = "same", "other", "unknown"
KINDS = (SAME, OTHER, UNKNOWN)
"""Where the client runs, seen from the broker; unknown: one of both has not said its rack."""


@dataclass(slots=True)
class Traffic:
    """Bytes that clients sent (`bytes_in`) and received."""

    bytes_in: int = 0
    bytes_out: int = 0


class RackTraffic:
    """`rack`: of this broker, "" if it has none."""

    def __init__(self, rack: str = "") -> None:
        self.rack = rack
        self.by_kind = {kind: Traffic() for kind in KINDS}

    def of(self, rack: str) -> Traffic:
        """Return what counts the bytes of a client in this rack, "" if it says none."""
        if not rack or not self.rack:
            return self.by_kind[UNKNOWN]
        return self.by_kind[SAME if rack == self.rack else OTHER]

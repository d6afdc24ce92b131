"""`CallMeter`: what a gRPC server tells of its calls.

Knows no metrics library; this one counts nothing.
"""

from __future__ import annotations

CANCELLED = "CANCELLED"
OK = "OK"


class CallMeter:
    """Every method may be overridden. Called on the event loop, must return at once."""

    def begun(self, method: str) -> None: ...

    def ended(self, method: str, code: str, seconds: float) -> None:
        """`code`: OK, CANCELLED (the caller has gone) or an error's wire code."""

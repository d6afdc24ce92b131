"""Measure the calls of a gRPC server: `CallMeter`.

This class must not know a metrics library; it counts nothing.
"""

from __future__ import annotations

CANCELLED = "CANCELLED"
OK = "OK"


class CallMeter:
    """Hooks that may be overridden. They are called on the event loop and must return at once."""

    def begun(self, method: str) -> None: ...

    def ended(self, method: str, code: str, seconds: float) -> None:
        """`code`: OK, CANCELLED (the caller disconnected) or an error's wire code."""

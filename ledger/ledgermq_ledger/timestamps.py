"""Format times for reports: ISO 8601, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_us(microseconds: int) -> str | None:
    """Return the time, or None for 0 and for times outside the calendar."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if microseconds else None


def from_ms(milliseconds: int) -> str | None:
    return from_us(milliseconds * 1000)

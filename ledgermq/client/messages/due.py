"""Due times: what `delay`, `deliver_at` and `delay_level` of a record mean.

A delay is added to the brokers' time. A record with a delay gets a due time by this machine's clock
at once, marked as `AfterDelay`; the difference to the brokers' time is added when the record's batch
is encoded, because a broker has reported its time by then (`ledgermq.client.messages.broker_clock`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.record import microseconds_of
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.records import TIMESTAMP_MIN_US

HORIZON = timedelta(days=366)
"""Longest time that a message may wait."""
LEVELS = (
    "1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h",
)  # fmt: skip
"""Levels 1 to 18, those of RocketMQ."""

_US = timedelta(microseconds=1)
_NUMBER = int | float
_HORIZON_US = HORIZON // _US
_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_LEVELS_US = tuple(int(level[:-1]) * _UNIT_US[level[-1]] for level in LEVELS)


class AfterDelay(int):
    """A due time in microseconds since the epoch, computed by this machine's clock."""


def due_of(delay: Any, deliver_at: Any, delay_level: Any, timestamp: Any, clock: BrokerClock) -> int | None:
    """Return when a record is due, in microseconds since the epoch; None: it is not delayed.

    Raises InvalidRecord.
    """
    if timestamp is None:  # most records take the first way, so there are no loops
        if delay is None and delay_level is None:
            return None if deliver_at is None else _checked_time(deliver_at, clock)
        if deliver_at is None and delay_level is None:
            return AfterDelay(clock.local_us() + _delay_us(delay))
        if deliver_at is None and delay is None:
            return AfterDelay(clock.local_us() + _level_us(delay_level))
    elif delay is None and deliver_at is None and delay_level is None:
        return None
    times = {"delay": delay, "deliver_at": deliver_at, "delay_level": delay_level, "timestamp": timestamp}
    given = " and ".join(name for name, value in times.items() if value is not None)
    raise InvalidRecord(
        f"{given} are given: give only one of delay, deliver_at and delay_level, and no timestamp,"
        " which is the due time of a delayed record"
    )


def _checked_time(deliver_at: Any, clock: BrokerClock) -> int:
    if not isinstance(deliver_at, datetime):
        raise InvalidRecord(f"deliver_at must be a datetime with a time zone, not {type(deliver_at).__name__}")
    due_us = microseconds_of(deliver_at)
    if clock.is_ahead(due_us, _HORIZON_US):
        raise InvalidRecord(f"deliver_at {deliver_at.isoformat()} is more than {HORIZON.days} days ahead")
    if due_us < TIMESTAMP_MIN_US:
        raise InvalidRecord(f"deliver_at {deliver_at.isoformat()} is before the year 1 in UTC")
    return due_us


def _delay_us(delay: Any) -> int:
    if isinstance(delay, timedelta):
        delay_us = delay // _US
    elif isinstance(delay, bool) or not isinstance(delay, _NUMBER) or not isfinite(delay):
        raise InvalidRecord(f"delay must be a number of seconds or a timedelta, not {delay!r:.100}")
    else:
        delay_us = round(delay * 1_000_000)
    if not 0 <= delay_us <= _HORIZON_US:
        shown = str(delay) if isinstance(delay, timedelta) else f"{delay!r:.100} s"
        raise InvalidRecord(f"delay must be between 0 and {HORIZON.days} days, not {shown}")
    return delay_us


def _level_us(level: Any) -> int:
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= len(LEVELS):
        levels = ", ".join(f"{number} = {text}" for number, text in enumerate(LEVELS, 1))
        raise InvalidRecord(f"delay_level must be 1 to {len(LEVELS)}, not {level!r:.100}: {levels}")
    return _LEVELS_US[level - 1]

"""The timeout of one call that sends: its check, and when it ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from math import isnan
from typing import Any

from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import InvalidRecord


def timeout_of(timeout: Any, settings: ProducerSettings) -> float | None:
    """Return the timeout of a call in seconds; None: the setting `delivery_timeout_s` counts, which bounds it.

    Raises InvalidRecord.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or (isinstance(timeout, float) and isnan(timeout)):
        raise InvalidRecord(f"timeout must be a number of seconds or a timedelta, not {timeout!r:.100}")
    if timeout < 0:
        raise InvalidRecord(f"timeout must be 0 or more seconds, not {timeout!r:.100}: 0 if the time is over already")
    if settings.spill is not None:
        raise InvalidRecord(
            "a producer with spill takes no timeout: its records are kept in the file after delivery_timeout_s"
        )
    return None if timeout >= settings.delivery_timeout_s else float(timeout)


def deadline_of(timeout_s: float | None) -> float | None:
    """Return the loop time at which a call ends that begins now; None: it has no timeout."""
    return None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

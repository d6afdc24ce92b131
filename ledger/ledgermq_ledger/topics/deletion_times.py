"""Compute when a topic's records may be deleted: at the times of a cron expression (`delete.when`),
or at any time.

Retention is judged as of the last of these times. So every process gets the same answer whenever it
looks, a time at which no process ran takes effect in the next run, and nothing is deleted in
between.

An expression has five fields as in cron (minute hour day month weekday), or six, with seconds
first, as in the MetaQ line and Quartz; "?" stands for "*" there. With six, days of the week are
names, because Quartz counts them from 1 = Sunday, cron from 0. When clocks change for summer,
five-field times that are skipped or repeated happen once, as in Debian's cron.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

ZONE = "UTC"
_PROBE = datetime(2024, 1, 1, tzinfo=UTC)


def check_cron(text: str) -> str:
    """Return the expression unchanged; empty: at any time.

    Raises ValueError with the reason, also for an expression without any time.
    """
    if text:
        try:
            next(CronSim(_cron(text), _PROBE))
        except (CronSimError, StopIteration) as error:
            why = str(error) or "it matches no time within fifty years"
            raise ValueError(f'{why}; use a cron expression, such as "0 6,18 * * *" or "0 0 6,18 * * ?"') from error
    return text


def check_zone(name: str) -> str:
    """Check the name of a time zone. Raises ValueError."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("use the name of a time zone, such as UTC or Europe/Berlin") from error
    return name


@lru_cache(maxsize=1024)
def last_time_ms(text: str, zone: str, now_ms: int) -> int:
    """Return the last time of the expression, up to and including now. Both arguments have been
    checked.
    """
    now = datetime.fromtimestamp(now_ms // 1000, ZoneInfo(zone))
    found = next(CronSim(_cron(text), now + timedelta(seconds=1), reverse=True))
    return int(found.timestamp()) * 1000


def _cron(text: str) -> str:
    fields = text.upper().split()
    if len(fields) == 6:
        if re.search(r"(?<!#)\d", fields[5]):
            raise CronSimError("in an expression with seconds, write days of the week by name, such as MON-FRI")
        fields = ["*" if field == "?" and place in (3, 5) else field for place, field in enumerate(fields)]
    return " ".join(fields)

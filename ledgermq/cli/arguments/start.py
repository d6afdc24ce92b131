"""Parse the starting point of `ledgermq consume --from` and `ledgermq group reset --to`.

earliest | latest              the first record that is kept | only what comes from now on
2026-11-21, 2026-11-21T07:30   the first record at or after this time (UTC unless it names a zone)
15m, 2h, 1d                    the first record of the last 15 minutes, 2 hours, 1 day
4711                           this offset, in every partition that is read
0:15,3:20                      partition 0 from offset 15, partition 3 from offset 20, others from
                               earliest, as start={0: 15, 3: 20}
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from ledgermq.durations import find_duration_ms
from ledgermq.errors import InvalidRequest

Start = Literal["earliest", "latest"] | datetime | int | dict[int, int]

_OFFSETS = re.compile(r"\d{1,19}:\d{1,19}(,\d{1,19}:\d{1,19})*\Z")


def parse_start(text: str, now: datetime, option: str = "--from") -> Start:
    """Parse the text. Raises InvalidRequest, naming `option`."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if re.fullmatch(r"\d{1,19}", text):
        return int(text)
    if _OFFSETS.match(text):
        return {int(partition): int(offset) for partition, offset in (pair.split(":") for pair in text.split(","))}
    if (age_ms := find_duration_ms(text)) is not None:
        from ledgermq.client.consuming.start import moment_before  # late: it needs Arrow

        return moment_before(now, timedelta(milliseconds=age_ms))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{option} {text!r}: give earliest, latest, a time, an age like 15m, an offset, or partition:offset,…"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

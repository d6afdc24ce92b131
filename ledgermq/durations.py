"""Parse durations: a number and its unit, like 500ms, 30s, 5m, 1.5h or 7d.

The command line and programs accept the same texts.
"""

from __future__ import annotations

import re

from ledgermq.errors import InvalidRequest

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def find_duration_ms(text: str) -> int | None:
    """Return milliseconds, rounded down; None: the text is not a duration."""
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else int(float(found[1]) * _UNIT_MS[found[2]])


def parse_duration_ms(text: str, option: str, least_ms: int = 0) -> int:
    """Return milliseconds. Raises InvalidRequest, naming `option`."""
    found = find_duration_ms(text)
    if found is None:
        raise InvalidRequest(f"{option} {text!r}: give a number and its unit, like 30s, 5m, 1.5h or 7d")
    if found < least_ms:
        raise InvalidRequest(f"{option} {text!r}: the minimum is {least_ms} ms")
    return found

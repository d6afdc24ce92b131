"""The filter of a queue group in each partition: which one counts, and until when.

Members settle what their filter leaves out, so members with another filter would miss it. A filter is in force
while a member with it asks for messages, for FILTER_S after the last of these calls, and as long as messages are
leased. It is in memory: after a change of owners, whatever a member announces first is in force. What the former
filter has left out is settled then, and no lease is left.
"""

from __future__ import annotations

from collections.abc import Collection

from ledgermq.errors import FilterConflict
from ledgermq_broker.queues.state.records import ShareKey

ALL = "*"
"""The text of a member that wants all messages; so do members that announce none."""
FILTER_S = 15.0
"""Longer than the longest pause between two calls of a member that waits for messages."""
CHARS_SHOWN = 100


class QueueFilters:
    """Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._in_force: dict[ShareKey, tuple[str, float]] = {}
        """The filter, and when a member last announced it."""

    def announce(self, key: ShareKey, text: str, now_s: float, *, is_leased: bool) -> None:
        """Note the filter of a member that asks for messages. `is_leased`: whether any are leased now. Raises
        FilterConflict if another one is in force.
        """
        text = text or ALL
        known, seen_s = self._in_force.get(key, (text, now_s))
        if known != text and (is_leased or now_s - seen_s < FILTER_S):
            raise FilterConflict(
                f"queue group {key.group} has members with the filter {_shown(known)}, and this one has {_shown(text)}:"
                f" give all the same, or stop the others and wait {FILTER_S:g} s, or use another group"
            )
        self._in_force[key] = (text, now_s)

    def keep(self, keys: Collection[ShareKey]) -> None:
        """Forget all other keys."""
        self._in_force = {key: found for key, found in self._in_force.items() if key in keys}


def _shown(text: str) -> str:
    if text == ALL:
        return "* (all messages)"
    return repr(text if len(text) <= CHARS_SHOWN else text[:CHARS_SHOWN] + "…")

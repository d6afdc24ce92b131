"""What an owner holds in memory of the minutes that it has loaded. It ends with the term."""

from __future__ import annotations

from tests.models.timed.state import Message, Record
from tests.models.timed.wheel import MINUTE, Watermark


class Index:
    """`tracked`: minutes whose newly staged records are added, from before the slot is read."""

    def __init__(self) -> None:
        self.tracked: set[int] = set()
        self.loaded: set[int] = set()
        self._waiting: dict[int, dict[Watermark, Message]] = {}

    def add(self, minute: int, record: Record) -> None:
        """The same record may be added twice: staged while its slot is read."""
        key = Watermark(record.message.due, record.offset)
        self._waiting.setdefault(minute, {})[key] = record.message

    def due(self, minute: int, watermark: Watermark, last_second: int) -> list[Watermark]:
        """Return what is due above the watermark, in the order of delivery."""
        waiting = self._waiting.get(minute, {})
        return sorted(key for key in waiting if key > watermark and key.second <= last_second)

    def take(self, key: Watermark) -> Message:
        return self._waiting[key.second // MINUTE].pop(key)

    def close(self, minute: int) -> None:
        self.tracked.discard(minute)
        self.loaded.discard(minute)
        self._waiting.pop(minute, None)

"""What a table holds: the latest message of each key, its size, and what has changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ledgermq.client.consuming.message import Message
from ledgermq.errors import ResourceExhausted

ROW_BYTES = 500
"""Of a message beside its key, value and headers: an object, and an entry of a dictionary."""


class Change(NamedTuple):
    """`message` is what brought it; its value is None where the key was removed.

    None: a reload found that the key is gone.
    """

    key: bytes
    value: bytes | None
    message: Message | None


class Rows:
    """By key; `size_bytes` is about what they take in memory.

    Raises ResourceExhausted where that would be above `bytes_max`.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.messages: dict[bytes, Message] = {}
        self.size_bytes = 0

    def apply(self, message: Message) -> Change | None:
        """None: it changes nothing (no key, or a tombstone of a key that is not there)."""
        if message.key is None:
            return None
        before = self.messages.get(message.key)
        if message.value is None:
            if before is None:
                return None
            del self.messages[message.key]
        else:
            size_bytes = self.size_bytes + _size_of(message) - (_size_of(before) if before is not None else 0)
            if size_bytes > max(self.bytes_max, self.size_bytes):
                raise ResourceExhausted(
                    f"the table of {message.topic!r} would take {size_bytes} bytes of memory, more than table_bytes_max = {self.bytes_max}"
                )
            self.messages[message.key] = message
            self.size_bytes += _size_of(message)
        self.size_bytes -= _size_of(before) if before is not None else 0
        return Change(message.key, message.value, message)

    def changes_to(self, new: Mapping[bytes, Message]) -> Iterator[Change]:
        """What has to happen for these rows to become `new`."""
        for key in self.messages.keys() - new.keys():
            yield Change(key, None, None)
        for key, message in new.items():
            known = self.messages.get(key)
            if known is None or (known.partition, known.offset) != (message.partition, message.offset):
                yield Change(key, message.value, message)


def _size_of(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return ROW_BYTES + len(message.key or b"") + len(message.value or b"") + headers

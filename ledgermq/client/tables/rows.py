"""The rows of a table: the latest message of each key, and their size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple

from ledgermq.client.consuming.message import Message, Opened
from ledgermq.client.settings.serializers import B
from ledgermq.errors import ResourceExhausted

ROW_BYTES = 500
"""Memory of a message besides key, value and headers: an object and an entry of a dictionary."""


class Change(NamedTuple, Generic[B]):
    """One change of a table. `value` is None where the key was removed.

    `message` brought the change; None: a reload found that the key no longer exists. With a deserializer, reading
    `value` raises BadValue if the bytes cannot be converted.
    """

    key: bytes
    value: B | None
    message: Message[B] | None


class OpenedChange(Change[Any]):
    """A change of a table with a deserializer: `value` is made when the program reads it, so that a bad value ends
    no table. The tuple holds bytes.
    """

    __slots__ = ()

    @property
    def value(self) -> Any:
        return None if self[1] is None or self.message is None else self.message.value


def change_of(message: Message[B]) -> Change[B]:
    """Return the change that a message with a key brings."""
    kind: type[Change[Any]] = OpenedChange if issubclass(type(message), Opened) else Change
    return kind(message.key or b"", message.raw, message)


class Rows(Generic[B]):
    """Messages by key. `size_bytes` estimates their memory, which is at most `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.messages: dict[bytes, Message[B]] = {}
        self.size_bytes = 0

    def apply(self, message: Message[B]) -> Change[B] | None:
        """Apply a message, and return the change.

        None: it has no key, or is a tombstone of a key that does not exist. Raises
        ResourceExhausted where the rows would take more than `bytes_max`.
        """
        if message.key is None:
            return None
        before = self.messages.get(message.key)
        if message.raw is None:  # a deserializer may make None of bytes
            if before is None:
                return None
            del self.messages[message.key]
        else:
            size_bytes = self.size_bytes + _size_of(message) - (_size_of(before) if before is not None else 0)
            if size_bytes > max(self.bytes_max, self.size_bytes):
                raise ResourceExhausted(
                    f"the table of {message.topic!r} would take {size_bytes} bytes of memory, more than table_bytes_max"
                    f" = {self.bytes_max}"
                )
            self.messages[message.key] = message
            self.size_bytes += _size_of(message)
        self.size_bytes -= _size_of(before) if before is not None else 0
        return change_of(message)

    def changes_to(self, new: Mapping[bytes, Message[B]]) -> Iterator[Change[B]]:
        """Return the changes that turn these rows into `new`."""
        for key in self.messages.keys() - new.keys():
            yield Change(key, None, None)
        for key, message in new.items():
            known = self.messages.get(key)
            if known is None or (known.partition, known.offset) != (message.partition, message.offset):
                yield change_of(message)


def _size_of(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return ROW_BYTES + len(message.key or b"") + len(message.raw or b"") + headers

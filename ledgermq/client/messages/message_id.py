"""The id of a message: its place, which no other message of the topic ever has."""

from __future__ import annotations

import re
from typing import NamedTuple

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.naming.names import NAME_CHARS_MAX

_ID = re.compile(rf"([A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}):([0-9]{{1,9}}):([0-9]{{1,19}})")


class MessageId(NamedTuple):
    """The id of a message. Its text is `topic:partition:offset`, as in "orders:3:4711".

    A topic that was deleted and created again under its name begins at offset 0: an id does not say which of
    the two it means.
    """

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: object) -> MessageId:
        """Return the id that a text names. Raises InvalidRequest."""
        found = _ID.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[3]) > OFFSET_MAX:
            raise InvalidRequest(
                f"{text!r:.300} is not the id of a message: give TOPIC:PARTITION:OFFSET, as in orders:3:4711"
            )
        return cls(found[1], int(found[2]), int(found[3]))

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

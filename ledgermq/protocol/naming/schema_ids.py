"""How a value names its schema by the id of this, for those who write and for those who read."""

from __future__ import annotations

CONFLUENT, HEADERS, NONE = "confluent", "header", "none"
FRAMINGS = (CONFLUENT, HEADERS, NONE)
MAGIC = b"\x00"
ID_BYTES = 4
HEAD_BYTES = len(MAGIC) + ID_BYTES
"""Of Confluent's frame, without the message indexes of Protobuf."""
HEADER = "ledgermq.schema-id"
"""The header of a record whose value is bare: the id as a decimal number."""
FIRST_MESSAGE = b"\x00"
"""Message indexes in a frame: the first message of the file."""

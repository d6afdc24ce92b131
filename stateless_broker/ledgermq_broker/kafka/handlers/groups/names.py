"""Names of groups and members: any text in Kafka, `[A-Za-z0-9._-]` here (`ledgermq_offsets.names`)."""

from __future__ import annotations

from ledgermq.errors import InvalidGroupName
from ledgermq.protocol.naming.names import NAME_CHARS_MAX
from ledgermq_offsets.names import kept_name, kept_text


def inside(name: str) -> str:
    """Return the name of a client's group as LedgerMQ has it. Raises InvalidGroupName."""
    encoded = kept_name(name)
    if not name or len(encoded) > NAME_CHARS_MAX:
        raise InvalidGroupName(
            f"group id {name[:300]!r} is empty or too long: with characters other than letters, digits, '.', '_' and"
            f" '-' it takes {len(encoded)} characters as it is stored, and {NAME_CHARS_MAX} are allowed"
        )
    return encoded


def outside(name: str) -> str:
    """Return a group's or member's name as clients of the Kafka protocol know it."""
    return kept_text(name)

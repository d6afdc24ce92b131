"""Names of groups: any text in Kafka, `[A-Za-z0-9._-]` here.

Other names, and those that begin like an encoded one, are kept as a prefix and base64url, so no two have the same.
"""

from __future__ import annotations

import base64
import binascii

from ledgermq.errors import InvalidGroupName
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name

PREFIX = "__kafka."


def inside(name: str) -> str:
    """Return the name of a client's group as LedgerMQ has it. Raises InvalidGroupName."""
    if is_name(name) and not name.startswith(PREFIX):
        return name
    encoded = PREFIX + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    if not name or len(encoded) > NAME_CHARS_MAX:
        raise InvalidGroupName(
            f"group id {name[:300]!r} is empty or too long: with characters other than letters, digits, '.', '_' and"
            f" '-' it takes {len(encoded)} characters as it is stored, and {NAME_CHARS_MAX} are allowed"
        )
    return encoded


def outside(name: str) -> str:
    """Return a group's name as clients of the Kafka protocol know it."""
    if not name.startswith(PREFIX):
        return name
    encoded = name.removeprefix(PREFIX)
    try:
        found = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return name
    try:
        return found if inside(found) == name else name
    except InvalidGroupName:
        return name

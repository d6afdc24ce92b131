"""Check the names of groups and members.

They allow the letters of topic names, so that a key of the log needs no escapes. Clients of the Kafka protocol may use
any text: other names than ours, and those that begin like an encoded one, are kept as a prefix and base64url, so no
two texts have one name.
"""

from __future__ import annotations

import base64
import binascii

from ledgermq.errors import InvalidGroupName, InvalidRequest
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name, is_new_name

KAFKA_PREFIX = "__kafka."


def kept_name(text: str) -> str:
    """Return the name by which a text of a Kafka client is kept. It may be empty or too long for a name."""
    if is_name(text) and not text.startswith(KAFKA_PREFIX):
        return text
    return KAFKA_PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") if text else ""


def kept_text(name: str) -> str:
    """Return the text that is kept under a name."""
    if not name.startswith(KAFKA_PREFIX):
        return name
    encoded = name.removeprefix(KAFKA_PREFIX)
    try:
        found = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return name
    return found if kept_name(found) == name else name


def check_group_name(name: str) -> str:
    """Return the name, which has 1 to 249 of ``[A-Za-z0-9._-]``. Raises InvalidGroupName."""
    if not is_name(name):
        raise InvalidGroupName(
            f"group name {name[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return name


def check_new_group_name(name: str) -> str:
    """Return the name of a group that is not known yet. Raises InvalidGroupName for "." and "..", too: groups that
    an earlier release has made may have these names.
    """
    if not is_new_name(check_group_name(name)):
        raise InvalidGroupName(f"group name {name!r}: paths of URLs cannot name '.' and '..', choose another name")
    return name


def check_member_name(name: str, what: str = "member id") -> str:
    """Check a member id or instance id by the same rule. Raises InvalidRequest."""
    if not is_name(name):
        raise InvalidRequest(
            f"{what} {name[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return name

"""Check the names of groups and members.

They allow the letters of topic names, so that a key of the log needs no escapes.
"""

from __future__ import annotations

from ledgermq.errors import InvalidGroupName, InvalidRequest
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name, is_new_name


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

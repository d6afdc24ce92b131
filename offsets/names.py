"""Legal names of groups and members.

The same letters as in topic names, so that a key of the log needs no escapes.
"""

from __future__ import annotations

import re

from ledgermq.errors import InvalidGroupName, InvalidRequest

NAME_CHARS_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")


def check_group_name(name: str) -> str:
    """1 to 249 of ``[A-Za-z0-9._-]``. Raises InvalidGroupName."""
    if not _NAME.match(name):
        raise InvalidGroupName(
            f"group name {name[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return name


def check_member_name(name: str, what: str = "member id") -> str:
    """The same rule for member ids and instance ids. Raises InvalidRequest."""
    if not _NAME.match(name):
        raise InvalidRequest(
            f"{what} {name[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return name

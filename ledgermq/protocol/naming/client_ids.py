"""Name the program behind a call: the client id, which each call carries and quotas may name."""

from __future__ import annotations

import re

from ledgermq.errors import InvalidConfig

CLIENT_ID = "ledgermq-client-id"
"""The key of a client id in the metadata of a call."""
CLIENT_ID_CHARS_MAX = 249

_SENDABLE = re.compile(rf"[\x21-\x7e]{{1,{CLIENT_ID_CHARS_MAX}}}\Z")


def check_client_id(text: str) -> str:
    """Return the id. Raises InvalidConfig."""
    if text == "*" or not _SENDABLE.match(text):
        raise InvalidConfig(
            f"client id {text[:100]!r}: write 1 to {CLIENT_ID_CHARS_MAX} ASCII letters, digits and signs, without"
            " spaces, and not only an asterisk"
        )
    return text

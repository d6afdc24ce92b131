"""The one rule for names of topics, groups and members: letters, digits, '.', '_' and '-', so that
keys of the store and logs need no escapes. Kafka's rule.
"""

from __future__ import annotations

import re

NAME_CHARS_MAX = 249
NAME_PATTERN = rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}"
"""The rule as part of a larger regular expression."""
RETRY_SUFFIX, DEAD_LETTER_SUFFIX = ".retry", ".dlq"
"""A group with retry levels keeps its failed messages in the topics `<group>.retry` and `<group>.dlq`."""
HOST_PATTERN = r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{0,45}:[0-9A-Fa-f:.]{0,45}"
"""A host name or an IP address, as certificates name them."""
_NAME = re.compile(NAME_PATTERN + r"\Z")
_HOST = re.compile(HOST_PATTERN)


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def is_new_name(text: str) -> bool:
    """Return whether a topic or group may be made with this name: paths of URLs cannot name "." and ".."."""
    return text not in (".", "..") and is_name(text)


def is_host(given: object) -> bool:
    return isinstance(given, str) and _HOST.fullmatch(given) is not None

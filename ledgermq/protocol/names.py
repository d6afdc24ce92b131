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
_NAME = re.compile(NAME_PATTERN + r"\Z")


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None

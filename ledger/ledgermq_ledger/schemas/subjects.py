"""Names of subjects. Pure."""

from __future__ import annotations

import re

SUBJECT_CHARS_MAX = 255
SUBJECT = re.compile(r"[A-Za-z0-9._-]+\Z")


def is_subject(name: str) -> bool:
    return len(name) <= SUBJECT_CHARS_MAX and SUBJECT.match(name) is not None


def check_subject_name(name: str) -> str:
    """Return the name of a subject, or "" for none. Raises ValueError."""
    if name and not is_subject(name):
        raise ValueError(f"a subject has 1 to {SUBJECT_CHARS_MAX} letters, digits and signs of ._-")
    return name

"""The tags of records in level cluster: each follows from the value, so that a log of values says which passes."""

from __future__ import annotations

from zlib import crc32

TAGS = ("rare", "often", "mostly")
_TAG_OF = (TAGS[0], TAGS[1], TAGS[1], TAGS[2], TAGS[2], TAGS[2], None)


def tag_of(value: str) -> str | None:
    return _TAG_OF[crc32(value.encode()) % len(_TAG_OF)]

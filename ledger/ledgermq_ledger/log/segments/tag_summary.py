"""Summary of the tags of a batch, in the index of its segment: 64 bits that say which tags it surely lacks.

    bit 63: the summary is known      bits 0 to 62: a Bloom filter of the tags, two bits for each

A summary of 0 is not known: of a batch that an earlier release stored, or that was copied without being
decoded. Records without a tag set no bits, because no filter by tag lets them pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ledgermq.protocol.batches.records import FEW_ROWS_MAX

KNOWN = 1 << 63
BITS = 63
ALL_BITS = (1 << 64) - 1
TAGS_SUMMARIZED_MAX = 256
"""A batch with more tags has nearly all bits set, so they are not computed."""


def tag_bits(tag: str) -> int:
    """Return the bits of a tag: a batch with this tag has all of them, if its summary is known."""
    hashed = crc32c(tag.encode())
    return 1 << hashed % BITS | 1 << (hashed // BITS) % BITS


def masks_of(tags: Iterable[str]) -> tuple[int, ...]:
    """Return what `may_have` needs of these tags."""
    return tuple(tag_bits(tag) for tag in tags)


def summary_of(tags: pa.StringArray) -> int:
    """Return the summary of a batch. `tags`: of its records, validated."""
    count = len(tags)
    if tags.null_count == count:
        return KNOWN
    distinct = tags if count <= FEW_ROWS_MAX else pc.unique(tags)
    if len(distinct) > TAGS_SUMMARIZED_MAX:
        return ALL_BITS
    summary = KNOWN
    for tag in set(distinct.to_pylist()):
        if tag is not None:
            summary |= tag_bits(tag)
    return summary


def may_have(summary: int, masks: Sequence[int]) -> bool:
    """Return whether a batch may have one of the tags."""
    return not summary or any(mask & summary == mask for mask in masks)

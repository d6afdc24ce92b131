"""Choose the compression of a partition's batches.

Compression "auto" is lz4 as long as it saves space, judged by its results:

    compress each batch ──a tenth or less saved──> leave the next n as they are, n = 4, 8 … 64
        ──> compress one ──more saved──> each again

A compressed batch shows what compression saves, so nothing is compressed twice; of incompressible
data, one batch of 65 is tried. A partition's first batches are left as they are if the topic's last
try saved nothing, because a producer may send only a few batches to each of many partitions. A
batch of a few small records is never compressed: its message would grow, not shrink.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ledgermq.client.settings.producers import ChosenCompression
from ledgermq.protocol.batches.records import Compression, encode_batch

SMALL_BYTES_MAX = 1024
WORTH_MAX = 0.9
"""If a compressed batch is larger than this fraction of its size, compression was not worth the
time, neither here nor where the batch is decompressed.
"""
LEFT_FIRST, LEFT_MAX = 4, 64


@dataclass(slots=True)
class TopicExperience:
    """Whether compression was worth its time when it was last tried in any partition of a topic."""

    is_worth: bool = True


class Compressor:
    """Chooses the compression of one partition's batches. `experience`: of its topic, with which it begins."""

    def __init__(self, chosen: ChosenCompression, experience: TopicExperience | None = None) -> None:
        self._fixed: Compression | None = None if chosen == "auto" else chosen
        self._experience = experience or TopicExperience()
        self._has_begun = False
        self._left = 0
        """Number of batches to leave uncompressed before one is tried again."""
        self._left_next = LEFT_FIRST

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """Encode rows as `encode_batch` does, with the chosen compression."""
        if self._fixed is not None:
            return encode_batch(rows, self._fixed)
        if rows.nbytes <= SMALL_BYTES_MAX:
            return encode_batch(rows)
        if not self._has_begun:
            self._has_begun = True
            if not self._experience.is_worth:
                self._leave_some()
        if self._left:
            self._left -= 1
            return encode_batch(rows)
        data = encode_batch(rows, "lz4")
        self._experience.is_worth = len(data) <= WORTH_MAX * pa.ipc.get_record_batch_size(rows)
        if self._experience.is_worth:
            self._left_next = LEFT_FIRST
        else:
            self._leave_some()
        return data

    def _leave_some(self) -> None:
        self._left, self._left_next = self._left_next, min(2 * self._left_next, LEFT_MAX)

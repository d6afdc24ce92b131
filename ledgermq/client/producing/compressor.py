"""How the batches of one partition are compressed; "auto" is lz4 for as long as that pays, judged
by what it gave.

    compress each batch ──a tenth or less saved──> leave the next n as they are, n = 4, 8 … 64 ──> compress one ──more saved──> each again

A batch that is compressed tells what compressing gives, so nothing is done twice; of what does not
compress one batch of 65 is tried. A batch of a few small records is left as it is: its message
would grow, not shrink.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from ledgermq.protocol.records import Compression, encode_batch

Chosen = Compression | Literal["auto"]

SMALL_BYTES_MAX = 1024
WORTH_MAX = 0.9
"""Above this part of its size a compressed batch was not worth the time, neither here nor where it
is decompressed.
"""
LEFT_FIRST, LEFT_MAX = 4, 64


class Compressor:
    def __init__(self, chosen: Chosen) -> None:
        self._fixed: Compression | None = None if chosen == "auto" else chosen
        self._left = 0
        """Batches to leave as they are before one is tried again."""
        self._left_next = LEFT_FIRST

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """As `encode_batch`."""
        if self._fixed is not None:
            return encode_batch(rows, self._fixed)
        if rows.nbytes <= SMALL_BYTES_MAX:
            return encode_batch(rows)
        if self._left:
            self._left -= 1
            return encode_batch(rows)
        data = encode_batch(rows, "lz4")
        if len(data) > WORTH_MAX * pa.ipc.get_record_batch_size(rows):
            self._left, self._left_next = self._left_next, min(2 * self._left_next, LEFT_MAX)
        else:
            self._left_next = LEFT_FIRST
        return data

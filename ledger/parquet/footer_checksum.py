"""The checksum of a Parquet footer, inside of it.

Parquet has none, and pyarrow's reader ends the whole process on some damaged footers, so nobody hands it one that was not checked.
The note of a footer (`columns.FooterNote`) holds `"checksum": "<8 hexadecimal digits>"`: the CRC-32C of the footer, from its first byte to
the end of the file, with zeros for these digits. Other readers of Parquet never look at it.
"""

from __future__ import annotations

import pyarrow as pa
from crc32c import crc32c

from ledger.object_store.contract import Buffer
from ledgermq.errors import DataDamaged

MAGIC = b"PAR1"
ENDING_BYTES = 8
"""Length of the footer and magic."""
BLANK = "00000000"
_MARK = b'"checksum": "'


def footer_bytes(ending: Buffer | pa.Buffer, key: str) -> int:
    """Length of footer and ending, told by the last bytes of a file. Raises DataDamaged."""
    view = memoryview(ending).cast("B")
    if len(view) < ENDING_BYTES or view[-4:] != MAGIC:
        raise DataDamaged(f"{key}: does not end as a Parquet file does", object_key=key)
    return int.from_bytes(view[-8:-4], "little") + ENDING_BYTES


def write_checksum(file: pa.Buffer) -> None:
    """Fill in the digits of a whole file that was just written with a blank checksum, in place."""
    footer = memoryview(file).cast("B")[-footer_bytes(file, "new file") :]
    at = _digits_at(footer)
    if at is None or footer[at : at + len(BLANK)] != BLANK.encode():
        raise AssertionError("the note of the footer has no room for a checksum")
    footer[at : at + len(BLANK)] = f"{crc32c(footer):08x}".encode()


def check_footer(data: Buffer | pa.Buffer, key: str) -> memoryview:
    """The footer, with its ending, at the end of `data`, which may begin anywhere before it. Raises DataDamaged."""
    needed = footer_bytes(data, key)
    footer = memoryview(data).cast("B")[-needed:]
    if len(footer) < needed:
        raise DataDamaged(f"{key}: a Parquet footer of {needed} bytes in {len(footer)}", object_key=key)
    at = _digits_at(footer)
    if at is None:
        raise DataDamaged(f"{key}: its Parquet footer has no checksum of LedgerMQ", object_key=key)
    crc = crc32c(footer[at + len(BLANK) :], crc32c(BLANK.encode(), crc32c(footer[:at])))
    if footer[at : at + len(BLANK)] != f"{crc:08x}".encode():
        raise DataDamaged(f"{key}: the checksum of its Parquet footer does not fit", object_key=key)
    return footer


def _digits_at(footer: memoryview) -> int | None:
    """The last mark is the note's: statistics, which may hold a record's bytes, stand before the notes, and JSON escapes quotes."""
    found = bytes(footer).rfind(_MARK)
    return found + len(_MARK) if found >= 0 else None

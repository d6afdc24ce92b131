"""Write and check the checksums of a Parquet file, inside its footer.

Parquet has no checksum for its footer, and pyarrow's reader crashes the whole process on some
damaged ones, so an unchecked footer never reaches it. The note of a footer (`columns.FooterNote`)
holds `"checksum": "<8 hexadecimal digits>"`: the CRC-32C of the footer, from its first byte to the
end of the file, with zeros for these digits. It also holds `"body_checksum"`, that of all bytes
before the footer. Parquet's own checksums leave out the headers of pages, the page index and Bloom
filters, and a reader that trusts a damaged one skips records.

Code that reads a whole file checks it (`fsck`). Files of early releases have no checksums. Other
readers of Parquet ignore both.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import DataDamaged
from ledgermq_ledger.object_store.contract import Buffer

MAGIC = b"PAR1"
ENDING_BYTES = 8
"""The footer's length field and the magic."""
BLANK = "00000000"
_MARK = b'"checksum": "'
_BODY_MARK = b'"body_checksum": "'


def footer_bytes(ending: Buffer | pa.Buffer, key: str) -> int:
    """Return the length of footer and ending, read from the last bytes of a file. Raises
    DataDamaged.
    """
    view = memoryview(ending).cast("B")
    if len(view) < ENDING_BYTES or view[-4:] != MAGIC:
        raise DataDamaged(f"{key}: its end is not that of a Parquet file", object_key=key)
    return int.from_bytes(view[-8:-4], "little") + ENDING_BYTES


def write_checksums(parts: Sequence[Buffer], ending: bytearray) -> None:
    """Fill in the checksums of a file that was just written with blank ones: these parts, and an
    ending that holds all of the footer.
    """
    start = len(ending) - footer_bytes(ending, "new file")
    footer = memoryview(ending)[start:]
    body = 0
    for part in (*parts, memoryview(ending)[:start]):
        body = crc32c(part, body)
    _fill_in(footer, _BODY_MARK, body)
    _fill_in(footer, _MARK, crc32c(footer))


def _fill_in(footer: memoryview, mark: bytes, checksum: int) -> None:
    at = _digits_at(footer, mark)
    if at is None or footer[at : at + len(BLANK)] != BLANK.encode():
        raise AssertionError("the note of the footer has no room for a checksum")
    footer[at : at + len(BLANK)] = f"{checksum:08x}".encode()


def check_footer(data: Buffer | pa.Buffer, key: str) -> memoryview:
    """Return the footer, with its ending, at the end of `data`, which may begin anywhere before it.

    Raises DataDamaged.
    """
    needed = footer_bytes(data, key)
    footer = memoryview(data).cast("B")[-needed:]
    if len(footer) < needed:
        raise DataDamaged(
            f"{key}: its Parquet footer would have {needed} bytes, but only {len(footer)} are there", object_key=key
        )
    at = _digits_at(footer, _MARK)
    if at is None:
        raise DataDamaged(f"{key}: its Parquet footer has no checksum of LedgerMQ", object_key=key)
    crc = crc32c(footer[at + len(BLANK) :], crc32c(BLANK.encode(), crc32c(footer[:at])))
    if footer[at : at + len(BLANK)] != f"{crc:08x}".encode():
        raise DataDamaged(f"{key}: the checksum of its Parquet footer does not match", object_key=key)
    return footer


def check_whole(data: Buffer | pa.Buffer, key: str) -> None:
    """Check every byte of a file. Raises DataDamaged."""
    footer = check_footer(data, key)
    at = _digits_at(footer, _BODY_MARK)
    if at is None:
        return  # written before there was one
    body = memoryview(data).cast("B")[: -len(footer)]
    if footer[at : at + len(BLANK)] != f"{crc32c(body):08x}".encode():
        raise DataDamaged(f"{key}: the checksum of the bytes before its Parquet footer does not match", object_key=key)


def _digits_at(footer: memoryview, mark: bytes) -> int | None:
    """Return where the digits begin. The last mark is the note's: statistics, which may hold a
    record's bytes, are before the notes, and JSON escapes quotes.
    """
    found = bytes(footer).rfind(mark)
    return found + len(mark) if found >= 0 else None

"""A damaged footer is found before pyarrow parses it: its reader ends the process on some of
them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.files.columns import SCHEMA_BEFORE, FooterNote, ParquetBuilder, note_of_file
from ledgermq_ledger.parquet.files.footer_checksum import check_footer, check_whole, footer_bytes
from ledgermq_ledger.parquet.files.stored_file import parse_footer
from tests.worlds.batches import batch_of

PLAN = fmt.CompactionPlan(bundle=1, number=4, put_id=b"\x01" * 16)


def parquet(keys: list[bytes]) -> bytes:
    file = fmt.PlannedFile(topic_id=7, topic="flights", first_offset=0, last_offset=len(keys) - 1, key="k")
    builder = ParquetBuilder(file)
    builder.add(batch_of([{"key": key, "value": b"v" * 50} for key in keys]), 0)
    return bytes(builder.finish(note_of_file(file, PLAN, "cluster")))


WHOLE = parquet([b"a", b"b"])
FOOTER = footer_bytes(WHOLE, "k")


@pytest.mark.parametrize("begin", [0, 1, len(WHOLE) - FOOTER])
def test_a_footer_is_found_at_the_end_of_a_read_of_any_length(begin: int) -> None:
    assert bytes(check_footer(WHOLE[begin:], "k")) == WHOLE[-FOOTER:]
    assert parse_footer(WHOLE[begin:], "k").num_rows == 2


@given(st.integers(0, FOOTER - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_footer_is_found(at: int, flip: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[len(WHOLE) - FOOTER + at] ^= flip
    with pytest.raises(DataDamaged) as caught:
        parse_footer(bytes(damaged), "some/key")
    assert caught.value.object_key == "some/key"


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_file_is_found_by_who_reads_all_of_it(at: int, flip: int) -> None:
    """Parquet's own checksums leave out page headers and the page index, which readers obey."""
    check_whole(WHOLE, "k")
    damaged = bytearray(WHOLE)
    damaged[at] ^= flip
    with pytest.raises(DataDamaged):
        check_whole(bytes(damaged), "k")


def test_a_file_of_before_there_was_a_checksum_of_the_body_is_read() -> None:
    old = bytearray(WHOLE.replace(b'"body_checksum"', b'"once_was_here"'))
    footer = memoryview(old)[-FOOTER:]
    at = bytes(footer).index(b' "checksum": "') + len(b' "checksum": "')
    footer[at : at + 8] = b"0" * 8
    footer[at : at + 8] = f"{crc32c(footer):08x}".encode()
    check_whole(bytes(old), "k")


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_that_was_cut_off_is_found(length: int) -> None:
    with pytest.raises(DataDamaged):
        parse_footer(WHOLE[:length], "k")


def test_records_that_look_like_a_checksum_do_not_pass_for_one() -> None:
    """Keys are user bytes, and the smallest and the largest stand in the footer as statistics."""
    looks = [b'"checksum": "00000000"', b'z"checksum": "ffffffff"']
    footer = parse_footer(parquet(looks), "k")
    assert footer.row_group(0).column(0).statistics.max_raw == looks[1]
    note = FooterNote.decode(footer.metadata)
    assert note is not None
    assert note.cluster == "cluster"


def test_a_reason_for_a_failure_that_looks_like_a_checksum_does_not_pass_for_one() -> None:
    file = fmt.PlannedFile(topic_id=7, topic="flights", first_offset=0, last_offset=0, key="k")
    builder = ParquetBuilder(file)
    builder.add(batch_of([{}]), 0)
    whole = bytes(builder.finish(note_of_file(file, PLAN, "cluster", failed='said "checksum": "00000000" and fell')))
    assert parse_footer(whole, "k").num_rows == 1


def test_a_parquet_file_that_ledgermq_did_not_write_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(SCHEMA_BEFORE.empty_table(), sink)
    with pytest.raises(DataDamaged, match="no checksum of LedgerMQ"):
        parse_footer(sink.getvalue(), "k")


def test_plain_readers_of_parquet_see_nothing_of_it() -> None:
    table = pq.read_table(pa.BufferReader(WHOLE))
    assert table.column("key").to_pylist() == [b"a", b"b"]
    assert table.schema.remove_metadata() == SCHEMA_BEFORE

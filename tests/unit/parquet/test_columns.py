"""The Parquet files that users read: schema, encodings and footer are held to a golden text."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgermq.errors import DataDamaged
from ledgermq.protocol.batches.records import SCHEMA as RECORD_SCHEMA
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.files import columns
from ledgermq_ledger.parquet.files.columns import FooterNote, ParquetBuilder, empty_file, note_of_file
from ledgermq_ledger.parquet.files.stored_file import describe, parse_footer

GOLDEN = Path(__file__).parents[2] / "golden"
PLAN = fmt.CompactionPlan(bundle=1, number=4, put_id=b"\x01" * 16)
FILE = fmt.PlannedFile(
    topic_id=7, topic="flights", partition=2, first_offset=10, last_offset=19, key="k", bloom_columns=["key"]
)


def _batch(rows: int) -> pa.RecordBatch:
    when = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    row = {
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "h", "value": b"x"}],
        "timestamp": when,
        "timestampType": 0,
        "tag": "t",
    }
    return pa.RecordBatch.from_pylist([row] * rows, RECORD_SCHEMA)


NEW_FILE = fmt.PlannedFile()
NEW_FILE.CopyFrom(FILE)
NEW_FILE.has_appended, NEW_FILE.appended_floor_us = True, 5_000_000


def _file(*batches: tuple[int, int], file: fmt.PlannedFile = FILE, stored_us: Sequence[int] = ()) -> bytes:
    builder = ParquetBuilder(file)
    for i, (base, rows) in enumerate(batches):
        builder.add(_batch(rows), base, stored_us[i] if stored_us else 7_000_000)
    return bytes(builder.finish(note_of_file(file, PLAN, "cluster")))


def _describe(data: bytes) -> str:
    footer = pq.read_metadata(pa.BufferReader(data))
    group = footer.row_group(0)
    lines = [
        str(footer.schema).split("\n", 1)[1].strip(),
        "",
        str(footer.schema.to_arrow_schema().remove_metadata()),
        "",
    ]
    for i in range(group.num_columns):
        c = group.column(i)
        stats = "statistics" if c.statistics is not None and c.statistics.has_min_max else "no statistics"
        indexes = f"column index {c.has_column_index}, offset index {c.has_offset_index}"
        lines.append(f"{c.path_in_schema}: {c.compression}, {', '.join(sorted(c.encodings))}, {stats}, {indexes}")
    lines += ["", f"sorted by: {[FOOTER_NAMES[s.column_index] for s in group.sorting_columns]}"]
    assert footer.metadata is not None
    note = re.sub('checksum": "[0-9a-f]{8}"', 'checksum": "…"', footer.metadata[b"ledgermq"].decode())
    lines.append(f"ledgermq: {note}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


FOOTER_NAMES = columns.SCHEMA.names


def test_the_files_are_as_the_golden_text_says() -> None:
    assert _describe(_file((10, 10), file=NEW_FILE)) == (GOLDEN / "parquet-schema-v2.txt").read_text()


def test_a_plan_of_the_release_before_makes_files_as_that_release_did() -> None:
    assert _describe(_file((10, 10))) == (GOLDEN / "parquet-schema-v1.txt").read_text()


def test_times_of_appends_never_fall_nor_go_below_the_floor() -> None:
    data = _file((10, 3), (13, 3), (16, 4), file=NEW_FILE, stored_us=[4_000_000, 9_000_000, 8_000_000])
    table = pq.read_table(pa.BufferReader(data))
    assert table.column("appended").cast(pa.int64()).to_pylist() == [5_000_000] * 3 + [9_000_000] * 7
    stored = describe(parse_footer(data, "k"), "k", len(data), note_of_file(NEW_FILE, PLAN, "cluster"))
    assert (stored.appended_min_us, stored.appended_max_us) == (5_000_000, 9_000_000)
    before = _file((10, 10))
    stored = describe(parse_footer(before, "k"), "k", len(before), note_of_file(FILE, PLAN, "cluster"))
    assert (stored.appended_min_us, stored.appended_max_us) == (0, 0)


def test_a_plan_says_how_large_row_groups_are() -> None:
    file = fmt.PlannedFile()
    file.CopyFrom(NEW_FILE)
    file.row_group_bytes = 1
    footer = pq.read_metadata(pa.BufferReader(_file((10, 3), (13, 3), (16, 4), file=file)))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [3, 3, 4]
    times = [footer.row_group(i).column(footer.num_columns - 1).statistics for i in range(3)]
    assert all(each.has_min_max for each in times)


def test_only_the_planned_range_is_written_with_its_offsets() -> None:
    table = pq.read_table(pa.BufferReader(_file((8, 5), (13, 3), (16, 40))))
    assert table.column("offset").to_pylist() == list(range(10, 20))
    assert set(table.column("topic").to_pylist()) == {"flights"}
    assert set(table.column("partition").to_pylist()) == {2}
    assert table.schema.remove_metadata() == columns.SCHEMA_BEFORE


@pytest.mark.parametrize("batches", [[(10, 3), (14, 6)], [(10, 3), (12, 8)], [(10, 9)], [(11, 9)], [(0, 5)]])
def test_a_gap_an_overlap_or_a_missing_end_is_an_assertion(batches: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        _file(*batches)


def test_tiny_batches_are_joined_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them would take gigabytes before a row group is full."""
    monkeypatch.setattr(columns, "SMALL_BATCH_ROWS", 4)
    monkeypatch.setattr(columns, "SMALL_BATCHES_MAX", 3)
    sizes = [1, 1, 1, 3, 5, 1, 1, 4, 2, 2, 2, 2, *[1] * 20]
    file = fmt.PlannedFile(topic_id=7, topic="flights", first_offset=0, last_offset=sum(sizes) - 1, key="k")
    builder, at, waiting = ParquetBuilder(file), 0, []
    for size in sizes:
        rows = [{"value": b"%d" % offset} for offset in range(at, at + size)]
        builder.add(pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA), at)
        at += size
        waiting.append([batch.num_rows for batch in builder._waiting])
    assert waiting[:9] == [
        [1],
        [1, 1],
        [3],
        [3, 3],
        [3, 3, 5],
        [3, 3, 5, 1],
        [3, 3, 5, 1, 1],
        [3, 3, 5, 1, 1, 4],
        [3, 3, 5, 1, 1, 4, 2],
    ]
    assert waiting[10] == [3, 3, 5, 1, 1, 4, 6]
    assert len(waiting[-1]) == 7 + 7
    table = pq.read_table(pa.BufferReader(bytes(builder.finish(note_of_file(file, PLAN, "cluster")))))
    assert table.column("value").to_pylist() == [b"%d" % offset for offset in range(at)]
    assert table.column("offset").to_pylist() == list(range(at))


def test_row_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROW_GROUP_BYTES", 1)
    footer = pq.read_metadata(pa.BufferReader(_file((10, 4), (14, 4), (18, 2))))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [4, 4, 2]


def test_a_footer_tells_the_plans_file_from_any_other() -> None:
    data = _file((10, 10))
    note = note_of_file(FILE, PLAN, "cluster")
    stored = describe(parse_footer(data, "k"), "k", len(data), note)
    assert (stored.rows, stored.timestamp_min_us) == (10, 1767323045000006)
    for other in (
        note_of_file(FILE, PLAN, "another cluster"),
        note_of_file(FILE, fmt.CompactionPlan(bundle=1, number=4, put_id=b"\x02" * 16), "cluster"),
        note_of_file(FILE, fmt.CompactionPlan(bundle=2, number=4, put_id=b"\x01" * 16), "cluster"),
    ):
        with pytest.raises(DataDamaged, match="not the file of this plan"):
            describe(parse_footer(data, "k"), "k", len(data), other)


def test_a_failed_file_says_why_and_has_no_rows() -> None:
    note = note_of_file(FILE, PLAN, "cluster", "batch at byte 7: bad", "ledgers/0001/segments/1")
    data = bytes(empty_file(note, has_appended=True))
    stored = describe(parse_footer(data, "k"), "k", len(data), note_of_file(FILE, PLAN, "cluster"))
    assert (stored.rows, stored.note.failed, stored.note.damaged_object) == (
        0,
        "batch at byte 7: bad",
        "ledgers/0001/segments/1",
    )
    assert pq.read_table(pa.BufferReader(data)).schema.remove_metadata() == columns.SCHEMA


def test_files_of_others_have_no_note() -> None:
    assert FooterNote.decode(None) is None
    assert FooterNote.decode({b"ledgermq": b"{}"}) is None
    assert FooterNote.decode({b"ledgermq": b"[1]"}) is None


def test_a_file_says_to_spark_which_calendar_its_times_are_in() -> None:
    """Spark looks for this key, and compares its value with 3.0.0 as text (DataSourceUtils.datetimeRebaseSpec)."""
    metadata = pq.read_metadata(pa.BufferReader(_file((10, 10)))).metadata
    assert metadata is not None
    assert metadata[b"org.apache.spark.version"] == b"3.0.0"
    assert b"org.apache.spark.legacyDateTime" not in metadata

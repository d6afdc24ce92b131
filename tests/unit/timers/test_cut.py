"""Rows of many blocks are cut into one batch for each target, and into blocks of ranges, in order."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_broker.timed.state.blocks import START, Block, Key, Source, decode_block, encode_block
from ledgermq_broker.timed.state.memory import cut
from ledgermq_broker.timed.state.memory.cut import batches, range_blocks
from ledgermq_broker.timed.state.memory.rows import rows_of
from ledgermq_broker.timed.state.places import Group, Range, RangeId
from ledgermq_ledger.keys import PartitionId
from tests.property.timer_log import batch_of

TARGETS = [PartitionId(5, 0), PartitionId(5, 1), PartitionId(9, 0)]
Drawn = list[tuple[int, list[int]]]
drawn = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(1, 9), min_size=1, max_size=20)), max_size=8)


def blocks_of(found: Drawn) -> list[tuple[Source, Block]]:
    """Return blocks of the intake; the value of each row is its number in all of them."""
    blocks, count = [], 0
    for offset, (target, dues) in enumerate(found):
        data = encode_batch(batch_of(range(count, count + len(dues)), dues))
        record = encode_block(TARGETS[target], 1, data)
        blocks.append((Source(None, offset), decode_block(record.key, record.value)))
        count += len(dues)
    return blocks


def expected_of(found: Drawn) -> list[tuple[Key, PartitionId, bytes]]:
    rows, count = [], 0
    for offset, (target, dues) in enumerate(found):
        for row, due in enumerate(dues):
            rows.append((Key(due, offset, row), TARGETS[target], b"%d" % count))
            count += 1
    return sorted(rows)


@given(drawn, st.sampled_from([0, 1 << 20]))
def test_each_target_gets_its_rows_in_order(found: Drawn, copied_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "COPIED_BYTES_MAX", copied_bytes)
        got = {
            target: batch["value"].to_pylist() for target, batch in batches(rows_of(blocks_of(found), START)).items()
        }
    expected: dict[PartitionId, list[bytes]] = {}
    for _, target, value in expected_of(found):
        expected.setdefault(target, []).append(value)
    assert got == expected


@given(drawn, st.integers(1, 9), st.sampled_from([0, 1 << 20]))
def test_blocks_of_ranges_keep_the_ids(found: Drawn, boundary_us: int, copied_bytes: int) -> None:
    rows = rows_of(blocks_of(found), START)
    dues = rows.dues.to_pylist()
    middle = sum(due < boundary_us for due in dues)
    near, far = RangeId(False, 1), RangeId(True, 0)
    spans = ((near, 0, 0, middle // 2), (near, 0, middle // 2, middle), (far, boundary_us, middle, len(dues)))
    groups = [Group(i, Range(begin, begin + 60_000_000, 4, False, 10, 100), a, b) for i, begin, a, b in spans if a < b]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "COPIED_BYTES_MAX", copied_bytes)
        moved = range_blocks(rows, groups)
    got = {}
    for range_id, after in moved.items():
        blocks = [decode_block(record.key, record.value) for record in after.blocks]
        got[range_id] = sorted(_rows_of(blocks))
        assert after.range.records == 10 + sum(block.records.num_rows for block in blocks)
        assert after.range.size_bytes == 100 + sum(block.size_bytes for block in blocks)
        topics: Counter[int] = Counter()
        for block in blocks:
            topics[block.topic_id] += block.records.num_rows
        assert after.range.topics == topics
        assert all(block.floor_us == 0 for block in blocks)
        for block in blocks:
            keys = [key for key, _, _ in _rows_of([block])]
            assert keys == sorted(keys)
    expected = expected_of(found)
    assert got.get(near, []) == [row for row in expected if row[0].due_us < boundary_us]
    assert got.get(far, []) == [row for row in expected if row[0].due_us >= boundary_us]


def _rows_of(blocks: list[Block]) -> list[tuple[Key, PartitionId, bytes]]:
    rows = []
    for block in blocks:
        assert block.ids is not None
        dues = block.records["timestamp"].view(pa.int64()).to_pylist()
        keys = map(Key, dues, block.ids.offsets.to_pylist(), block.ids.rows.to_pylist())
        rows += [
            (key, block.target, value) for key, value in zip(keys, block.records["value"].to_pylist(), strict=True)
        ]
    return rows


@pytest.mark.parametrize("copied_bytes", [0, 1 << 20])
def test_columns_come_through_as_they_are(copied_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "COPIED_BYTES_MAX", copied_bytes)
    whole = pa.RecordBatch.from_pylist(
        [
            {"key": None, "value": b"a", "headers": [{"key": "h", "value": b"1"}], "timestamp": 3, "timestampType": 0},
            {"key": b"k", "value": None, "headers": [], "timestamp": 2, "timestampType": 1, "tag": "t"},
            {"key": b"", "value": b"", "headers": None, "timestamp": 1, "timestampType": None, "tag": ""},
        ],
        schema=SCHEMA,
    )
    blocks = [(Source(None, n), Block(5, 0, 0, whole, 1000)) for n in range(2)]
    [batch] = batches(rows_of(blocks, START)).values()
    assert batch.to_pylist() == [row for row in reversed(whole.to_pylist()) for _ in range(2)]

"""The rows in memory against a plain sorted list: chunks, dropped bodies, flushes, ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.timed.state.blocks import START, Block, Id, Ids, Key, Source, decode_block, encode_block, end_of
from ledgermq_broker.timed.state.memory import merged, waiting
from ledgermq_broker.timed.state.memory.cut import batches
from ledgermq_broker.timed.state.memory.merged import MISSING_MAX, Chunk
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_broker.timed.state.sizes import BLOCK_BYTES
from ledgermq_ledger.keys import PartitionId
from tests.property.timer_log import batch_of, keys_of

RANGE = RangeId(False, 3)


def intake_block(dues: Sequence[int], floor_us: int = 1, topic_id: int = 5) -> Block:
    record = encode_block(PartitionId(topic_id, 0), floor_us, encode_batch(batch_of(range(len(dues)), dues)))
    return decode_block(record.key, record.value)


def ids_of(keys: Sequence[Key]) -> Ids:
    return Ids(pa.array([key.offset for key in keys], pa.int64()), pa.array([key.row for key in keys], pa.uint32()))


def range_block(keys: Sequence[Key]) -> Block:
    data = encode_batch(batch_of(range(len(keys)), [key.due_us for key in keys]))
    record = encode_block(PartitionId(5, 1), 0, data, ids_of(keys))
    return decode_block(record.key, record.value)


def values_of(chunk: Chunk) -> list[bytes]:
    """Of a chunk for one target."""
    [batch] = batches(chunk.rows).values()
    found: list[bytes] = batch["value"].to_pylist()
    return found


def all_keys(found: Waiting, to_us: int, chunk_bytes: int = 1) -> list[Key]:
    keys = []
    while (chunk := found.due(to_us, chunk_bytes)) is not None:
        keys += [chunk.rows.key(at) for at in range(len(chunk.rows))]
        assert keys[-1] <= chunk.to
        found.taken(chunk.to)
    return keys


def test_rows_come_in_order_of_due_time_and_id() -> None:
    found = Waiting()
    found.add(Source(None, 1), intake_block([30, 10, 10]), above=START)
    found.add(Source(None, 0), intake_block([10, 20]), above=START)
    assert found.next_due_us == 10
    expected = [Key(10, 0, 0), Key(10, 1, 1), Key(10, 1, 2), Key(20, 0, 1)]
    assert all_keys(found, 29) == expected
    assert (found.rows, found.blocks, found.next_due_us) == (1, 1, 30)


def test_a_message_that_came_late_is_due_at_its_floor() -> None:
    found = Waiting()
    found.add(Source(None, 7), intake_block([30, 5], floor_us=20), above=START)
    assert [found.due_of(Id(7, row)) for row in range(3)] == [30, 20, None]
    assert found.due_of(Id(8, 0)) is None
    found.taken(Key(20, 7, 1))
    assert [found.due_of(Id(7, row)) for row in range(2)] == [30, None], "what is delivered is no longer in memory"


def test_the_last_chunk_finishes_the_time() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10, 20, 40]), above=START)
    first = found.due(30, 1)
    assert first is not None
    assert first.to == Key(10, 0, 0)
    found.taken(first.to)
    last = found.due(30, 1_000_000)
    assert last is not None
    assert last.to == end_of(30)
    found.taken(last.to)
    assert found.due(30, 1) is None


def test_a_chunk_changes_nothing_until_it_is_taken() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10, 20]), above=START)
    one, same = found.due(30, 1), found.due(30, 1)
    assert one is not None
    assert same is not None
    assert one.to == same.to
    assert found.rows == 2


def test_a_chunk_has_about_as_many_bytes_as_asked_for() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10] * 100), above=START)
    chunk = found.due(10, 500)
    assert chunk is not None
    assert 400 < chunk.rows.size_bytes <= 500


def test_rows_at_or_below_the_watermark_or_above_the_horizon_are_not_taken_in() -> None:
    found = Waiting()
    assert found.add(Source(None, 7), intake_block([10, 20, 20, 30]), above=Key(20, 7, 1), horizon_us=29) == 1
    assert all_keys(found, 100) == [Key(20, 7, 2)]
    assert found.add(Source(None, 8), intake_block([10]), above=end_of(10)) == 0
    assert found.blocks == 0


def test_a_block_is_added_once() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10]), above=START)
    with pytest.raises(AssertionError, match="in memory already"):
        found.add(Source(None, 0), intake_block([10]), above=START)


def test_a_row_that_comes_below_others_is_delivered_before_them() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10, 30]), above=START)
    assert found.due(50, 1) is not None
    found.add(Source(None, 1), intake_block([20, 5]), above=START)
    assert all_keys(found, 50) == [Key(5, 1, 1), Key(10, 0, 0), Key(20, 1, 0), Key(30, 0, 1)]


def test_dropped_bodies_are_named_and_read_again() -> None:
    found = Waiting()
    blocks = {Source(None, n): intake_block([10 + n, 100 + n]) for n in range(4)}
    for source, block in blocks.items():
        found.add(source, block, above=START)
    assert found.evict(found.body_bytes) == 0
    held = found.body_bytes
    assert found.evict(held - 1) > 0
    chunk = found.due(11, 10_000)
    assert chunk is not None
    assert chunk.missing == ()  # those that are due last are dropped first
    found.evict(0)
    assert found.body_bytes == 0
    chunk = found.due(200, 10_000)
    assert chunk is not None
    assert set(chunk.missing) == set(blocks)
    for source in chunk.missing:
        found.restore(source, blocks[source])
    assert found.body_bytes == held
    chunk = found.due(200, 10_000)
    assert chunk is not None
    assert chunk.missing == ()
    assert [batch.num_rows for batch in batches(chunk.rows).values()] == [8]


def test_blocks_whose_rows_come_in_turns_are_read_once_for_many_chunks() -> None:
    found = Waiting()
    count, rows = 100, 40
    blocks = {Source(None, n): intake_block([10 + n + count * row for row in range(rows)]) for n in range(count)}
    for source, block in blocks.items():
        found.add(source, block, above=START)
    found.evict(found.body_bytes // 2)
    held, read = found.body_bytes, Counter[Source]()
    keys, seen, chunks = [], list[bytes](), 0
    while (chunk := found.due(10**6, 500)) is not None:
        assert len(chunk.missing) <= MISSING_MAX
        for source in chunk.missing:
            read[source] += 1
            found.restore(source, blocks[source])
        if not chunk.missing:
            chunks += 1
            keys += [chunk.rows.key(at) for at in range(len(chunk.rows))]
            seen += values_of(chunk)
            found.taken(chunk.to)
            assert found.body_bytes <= held, "a block that is read for its rows is not kept"
    assert keys == [Key(10 + n + count * row, n, row) for row in range(rows) for n in range(count)]
    assert seen == [b"%d" % key.row for key in keys]
    assert chunks > 200
    assert set(read.values()) == {1}
    assert 30 < len(read) < count


def test_a_look_at_the_first_rows_keeps_what_was_read_for_a_delivery() -> None:
    found = Waiting()
    count, rows = 100, 40
    blocks = {Source(None, n): intake_block([10 + n + count * row for row in range(rows)]) for n in range(count)}
    for source, block in blocks.items():
        found.add(source, block, above=START)
    found.evict(0)
    read = Counter[Source]()
    while (chunk := found.due(10**6, 10**6)) is not None and chunk.missing:
        for source in chunk.missing:
            read[source] += 1
            found.restore(source, blocks[source])
        look = found.first(500)
        assert look is not None
        assert look.rows.key(0) == Key(10, 0, 0)
        assert len(look.missing) < 20, "only what these rows need"
    assert chunk is not None
    assert len(chunk.rows) == count * rows
    assert read == dict.fromkeys(blocks, 1)


def test_rows_that_are_cut_out_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged, "CUT_BLOCKS", 8)
    found = Waiting()
    blocks = {Source(None, n): intake_block([10 + n + 50 * row for row in range(20)]) for n in range(50)}
    for source, block in blocks.items():
        found.add(source, block, above=START)
    found.evict(0)
    chunk = found.due(10**6, 10**6)
    assert chunk is not None
    assert len(chunk.missing) == 8
    for source in chunk.missing:
        found.restore(source, blocks[source])
    chunk = found.due(10**6, 10**6)
    assert chunk is not None
    assert [chunk.rows.key(at).offset for at in range(len(chunk.rows))] == list(range(8))


def test_a_body_that_no_row_needs_is_not_kept() -> None:
    found = Waiting()
    found.restore(Source(None, 0), intake_block([10]))
    assert found.body_bytes == 0


def test_sizes_count_rows_and_blocks() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10] * 10), above=START)
    assert found.index_bytes == 160 + BLOCK_BYTES
    found.add(Source(RANGE, 0), range_block([Key(10, 1, n) for n in range(10)]), above=START)
    assert found.index_bytes == 160 + 280 + 2 * BLOCK_BYTES
    all_keys(found, 10)
    assert (found.index_bytes, found.body_bytes, found.rows) == (0, 0, 0)


def test_a_flush_takes_what_is_due_after_the_horizon() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10, 50, 20]), above=START)
    found.add(Source(None, 1), intake_block([60]), above=START)
    found.add(Source(None, 2), intake_block([70]), above=START)
    piece = found.flush(2, 20, 10_000)
    assert [piece.rows.key(at) for at in range(len(piece.rows))] == [Key(50, 0, 1), Key(60, 1, 0)]
    assert piece.end_offset == 2
    found.flushed(2, 20)
    assert all_keys(found, 100) == [Key(10, 0, 0), Key(20, 0, 2), Key(70, 2, 0)]


def test_a_flush_goes_on_where_it_ended() -> None:
    found = Waiting()
    for offset in (0, 3, 5):
        found.add(Source(None, offset), intake_block([50, 60]), above=START)
    ends = []
    while not ends or ends[-1] < 9:
        piece = found.flush(9, 20, 1)
        assert len(piece.rows) == (0 if ends and len(ends) == 3 else 2)
        found.flushed(piece.end_offset, 20)
        ends.append(piece.end_offset)
    assert ends == [3, 5, 9]
    assert found.blocks == 0
    assert found.flush(12, 20, 1).end_offset == 12


def test_a_flush_covers_blocks_that_are_delivered() -> None:
    found = Waiting()
    found.add(Source(None, 0), intake_block([10]), above=START)
    all_keys(found, 10)
    piece = found.flush(4, 20, 1)
    assert (len(piece.rows), piece.end_offset) == (0, 4)


def test_a_flush_covers_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FLUSHED_BLOCKS_MAX", 2)
    found = Waiting()
    for offset in range(5):
        found.add(Source(None, offset), intake_block([10]), above=START)
    assert found.flush(5, 20, 1000).end_offset == 2


def test_loaded_blocks_are_not_flushed() -> None:
    found = Waiting()
    found.add(Source(RANGE, 0), range_block([Key(50, 1, 1)]), above=START)
    found.add(Source(None, 0), intake_block([15, 50]), above=START, horizon_us=20)
    assert len(found.flush(9, 20, 1000).rows) == 0
    found.flushed(9, 20)
    assert found.rows == 2


dues = st.integers(1, 30)
intake_blocks = st.lists(st.tuples(st.lists(dues, min_size=1, max_size=30), st.integers(1, 20)), max_size=12)
id_rows = st.lists(st.tuples(dues, st.integers(20, 25), st.integers(0, 5)), max_size=40, unique_by=lambda row: row[1:])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(intake_blocks, id_rows, st.data())
def test_chunks_are_those_of_a_sorted_list(
    blocks: list[tuple[list[int], int]], moved: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged, "MERGED_ROWS", data.draw(st.sampled_from([1, 4, 65_536])))
        patch.setattr(merged, "TURNS_OF_BLOCK", data.draw(st.sampled_from([-1, 0, 4])))
        patch.setattr(merged, "CUT_BYTES", data.draw(st.sampled_from([1, 500, 10**6])))
        patch.setattr(merged, "CUT_BLOCKS", data.draw(st.sampled_from([1, 3, 2_048])))
        patch.setattr(merged, "MISSING_MAX", data.draw(st.sampled_from([1, 2, 64])))
        found = Waiting()
        stored = {Source(None, n): intake_block(dues, floor) for n, (dues, floor) in enumerate(blocks)}
        keys = [Key(*row) for row in moved]
        while keys:
            count = data.draw(st.integers(1, len(keys)))
            stored[Source(RANGE, len(stored))] = range_block(keys[:count])
            keys = keys[count:]
        watermark = START
        expected: list[Key] = []
        for source, block in data.draw(st.permutations(list(stored.items()))):
            expected += keys_of(source, block, watermark)
            assert found.add(source, block, above=watermark) == len(keys_of(source, block, watermark))
            if data.draw(st.booleans()):
                watermark = _take_some(found, stored, expected, watermark, data)
        while expected:
            watermark = _take_some(found, stored, expected, watermark, data)
        assert (found.rows, found.blocks, found.index_bytes, found.body_bytes) == (0, 0, 0, 0)


def _take_some(
    found: Waiting, stored: dict[Source, Block], expected: list[Key], watermark: Key, data: st.DataObject
) -> Key:
    """Take one chunk, as the sorted list has it. Return the watermark after it."""
    expected.sort()
    assert found.rows == sum(found.topics.values()) == len(expected)
    assert found.next_due_us == (expected[0].due_us if expected else None)
    if data.draw(st.booleans()):
        found.evict(data.draw(st.sampled_from([0, 500, 5000])))
    to_us, chunk_bytes = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 100, 400, 100_000]))
    chunk = found.due(to_us, chunk_bytes)
    due = [key for key in expected if key.due_us <= to_us]
    if chunk is None:
        assert not due
        return watermark
    while chunk.missing:
        for source in chunk.missing:
            found.restore(source, stored[source])
        chunk = found.due(to_us, chunk_bytes)
        assert chunk is not None
    count = len(chunk.rows)
    assert [chunk.rows.key(at) for at in range(count)] == due[:count]
    assert chunk.to == due[count - 1] or (count == len(due) and chunk.to == end_of(to_us))
    rows = {
        key: (block.target, row)
        for source, block in stored.items()
        for row, key in enumerate(keys_of(source, block, START))
    }
    by_target: dict[PartitionId, list[bytes]] = {}
    for key in due[:count]:
        target, row = rows[key]
        by_target.setdefault(target, []).append(b"%d" % row)
    assert {target: batch["value"].to_pylist() for target, batch in batches(chunk.rows).items()} == by_target
    found.taken(chunk.to)
    del expected[:count]
    return max(watermark, chunk.to)

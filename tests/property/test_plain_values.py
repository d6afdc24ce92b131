"""A batch keeps plain values by a shorter way: what comes out is what rows alone would have given,
whatever comes when.
"""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Row, row_bytes
from ledgermq.client.producing.delivery import Deliveries, Delivery, Place
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.protocol.batches.records import decode_batch

plain = st.builds(
    lambda value, moment: (None, value, None, moment, None), st.binary(max_size=20), st.integers(0, 10**15)
)
other = st.builds(
    lambda key, value, headers, moment, tag: (key, value, headers, moment, tag),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=20),
    st.none() | st.just([("h", b"1"), ("n", None)]),
    st.integers(0, 10**15),
    st.none() | st.text(max_size=3),
)

AT = TopicPartition("t", 0)


@given(st.lists(plain | other, min_size=1, max_size=30))
def test_a_batch_holds_its_records_in_order_and_counts_their_bytes(rows: list[Row]) -> None:
    batch = Batch(AT, 1, 0.0, Compressor("none"), 100_000)
    assert [batch.add(row, row_bytes(row)) for row in rows] == list(range(len(rows)))
    size = sum(map(row_bytes, rows))
    assert (batch.record_count, batch.data_bytes, batch.buffer_bytes) == (
        len(rows),
        size,
        size + len(rows) * ROW_OVERHEAD_BYTES,
    )
    only_plain = all(row == (None, row[1], None, row[3], None) and row[1] is not None for row in rows)
    assert (batch.plain_bytes_max == 100_000) == only_plain, "other records end the short way"
    assert decode_batch(batch.encode()).equals(rows_to_arrow(rows))


@given(st.lists(st.binary(max_size=20), min_size=1), st.booleans())
def test_what_is_closed_or_given_up_takes_no_more_plain_values(values: list[bytes], given_up: bool) -> None:
    batch = Batch(AT, 1, 0.0, Compressor("none"), 100_000)
    for moment, value in enumerate(values):
        batch.deliver_plain(value, len(value), moment)
    held = batch.buffer_bytes
    if given_up:
        batch.drop()
    else:
        batch.close()
    assert batch.plain_bytes_max < 0 <= batch.data_bytes
    assert batch.buffer_bytes == held, "what it held is released once"


@given(st.lists(st.lists(st.binary(max_size=20), max_size=9) | other, min_size=1, max_size=9))
def test_values_that_join_together_are_as_those_that_join_one_by_one(pieces: list[list[bytes] | Row]) -> None:
    together, alone = (Batch(AT, 1, 0.0, Compressor("none"), 100_000) for _ in range(2))
    for moment, piece in enumerate(pieces):
        if isinstance(piece, tuple):
            assert together.add(piece, row_bytes(piece)) == alone.add(piece, row_bytes(piece))
        elif together.plain_bytes_max >= 0:  # no caller adds plain values to a batch that is closed to them
            place = alone.record_count
            for value in piece:
                alone.deliver_plain(value, len(value), moment)
            assert together.add_plain_values(piece, sum(map(len, piece)), moment) == place
        assert (together.record_count, together.buffer_bytes) == (alone.record_count, alone.buffer_bytes)
    assert not together.record_count or together.encode() == alone.encode()


@given(
    st.lists(st.integers(1, 5), max_size=9),
    st.integers(-50, 50),
    st.integers(-50, 50),
    st.sampled_from([None, 1, 2, -1]),
)
def test_deliveries_of_many_are_as_a_list_of_them(counts: list[int], first: int, last: int, step: int | None) -> None:
    batches = [Batch(AT, 1, 0.0, Compressor("none")) for _ in counts]
    deliveries = Deliveries()
    for batch, count in zip(batches, counts, strict=True):
        deliveries.add(Delivery(batch, 7), count)
    expected = [(batch, 7 + row) for batch, count in zip(batches, counts, strict=True) for row in range(count)]

    def told(found: Iterable[Delivery]) -> list[tuple[Place, int]]:
        return [(delivery.place, delivery.row) for delivery in found]

    assert len(deliveries) == len(expected)
    assert told(deliveries) == told(deliveries[at] for at in range(len(expected))) == expected
    assert told(deliveries[first:last:step]) == expected[first:last:step]
    assert told(reversed(deliveries)) == expected[::-1]
    with pytest.raises(IndexError):
        deliveries[len(expected)]

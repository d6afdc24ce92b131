"""A batch keeps plain values by a shorter way: what comes out is what rows alone would have given, whatever comes when."""

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.producing.batch import Batch
from ledgermq.client.record import ROW_OVERHEAD_BYTES, Row, row_bytes, rows_to_arrow
from ledgermq.protocol.records import decode_batch

plain = st.builds(lambda value, moment: (None, value, None, moment, None), st.binary(max_size=20), st.integers(0, 10**15))
other = st.builds(
    lambda key, value, headers, moment, tag: (key, value, headers, moment, tag),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=20),
    st.none() | st.just([("h", b"1"), ("n", None)]),
    st.integers(0, 10**15),
    st.none() | st.text(max_size=3),
)


@given(st.lists(plain | other, min_size=1, max_size=30))
def test_a_batch_holds_its_records_in_order_and_counts_their_bytes(rows: list[Row]) -> None:
    batch = Batch("t", 1, 0, 0.0, "none", 100_000)
    assert [batch.add(row, row_bytes(row)) for row in rows] == list(range(len(rows)))
    size = sum(map(row_bytes, rows))
    assert (batch.record_count, batch.data_bytes, batch.buffer_bytes) == (len(rows), size, size + len(rows) * ROW_OVERHEAD_BYTES)
    only_plain = all(row == (None, row[1], None, row[3], None) and row[1] is not None for row in rows)
    assert (batch.plain_bytes_max == 100_000) == only_plain, "other records end the short way"
    assert decode_batch(batch.encode()).equals(rows_to_arrow(rows))


@given(st.lists(st.binary(max_size=20), min_size=1), st.booleans())
def test_what_is_closed_or_given_up_takes_no_more_plain_values(values: list[bytes], given_up: bool) -> None:
    batch = Batch("t", 1, 0, 0.0, "none", 100_000)
    for moment, value in enumerate(values):
        batch.add_plain(value, moment)
    held = batch.buffer_bytes
    if given_up:
        batch.drop()
    else:
        batch.close()
    assert batch.plain_bytes_max < 0 <= batch.data_bytes
    assert batch.buffer_bytes == held, "what it held is released once"

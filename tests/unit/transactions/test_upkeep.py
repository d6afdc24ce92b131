"""Check what a bundle asks, carries forward and forgets; names of tests cite the rules X of the design page."""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    DataDamaged,
)
from ledgermq_broker.transactions.state.types import Part, State, Stream
from tests.unit.transactions.desks import NOW, STREAM, TX, A, Bundle, batch, nxt

# Questions, and notes


def test_a_bundle_asks_about_what_is_staged_for_long(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(0, partition=1))
    bundle.stage(batch(1), now_ms=NOW + 5_000)
    assert bundle.upkeep.to_ask(NOW + 5_999) == []
    part = Part(2, {STREAM: 2, Stream(b"", 7, 1): 1})
    assert bundle.upkeep.to_ask(NOW + 6_000) == [(TX, part)]
    assert bundle.participant.oldest_ms() == NOW
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    assert bundle.upkeep.to_ask(NOW + 6_000) == []


def test_what_a_decision_counts_can_be_read_until_it_goes(bundle: Bundle) -> None:
    counts = Part(2, {STREAM: 2})
    assert bundle.completing.counted(TX, counts) == []
    bundle.stage(batch(0))
    with pytest.raises(DataDamaged, match="has not staged all"):
        bundle.completing.counted(TX, counts)
    bundle.stage(batch(1), batch(2))
    assert [reference.sequence for reference in bundle.completing.counted(TX, counts)] == [0, 1]
    bundle.complete(State.ABORTED, counts)
    assert bundle.completing.counted(TX, counts) == []


def test_x16_only_the_finished_note_of_that_transaction_is_forgotten(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    chunk = bundle.completing.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.completing.admit(chunk))
    bundle.silent(bundle.upkeep.forget(TX))
    assert bundle.upkeep.notes() == []
    bundle.finish()
    bundle.silent(bundle.upkeep.forget(nxt(TX)))
    assert bundle.participant.note_count == 1
    bundle.do(bundle.upkeep.forget(TX))
    assert (bundle.participant.note_count, bundle.participant.notes_gone) == (0, 1)
    bundle.take_over()


# Carrying forward


def test_x15_only_what_is_alive_is_carried(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1))
    assert bundle.upkeep.to_carry(NOW + 299_999, bundle.end) == []
    assert bundle.upkeep.to_carry(NOW + 300_000, 0) == []
    [item] = bundle.upkeep.to_carry(NOW + 300_000, bundle.end)
    assert bundle.do(bundle.upkeep.carry(item, 50, NOW + 300_000))
    assert bundle.participant.lowest_offset() == 50
    assert not bundle.silent(bundle.upkeep.carry(item, 60, NOW + 300_000))
    assert bundle.upkeep.to_carry(NOW + 599_999, 100) == []
    assert bundle.participant.oldest_ms() == NOW
    [again] = bundle.upkeep.to_carry(NOW + 600_000, 100)
    assert [reference.offset for reference in again.references] == [50, 52]
    bundle.complete(State.ABORTED, Part(2))
    assert not bundle.silent(bundle.upkeep.carry(again, 60, NOW))
    bundle.take_over()


def test_x15_of_a_record_that_is_copied_in_part_the_rest_is_carried(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    [stale] = bundle.upkeep.to_carry(NOW + 300_000, bundle.end)
    chunk = bundle.completing.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.completing.admit(chunk))
    assert not bundle.silent(bundle.upkeep.carry(stale, 50, NOW))
    [item] = bundle.upkeep.to_carry(NOW + 300_000, bundle.end)
    assert [reference.sequence for reference in item.references] == [2, 3]
    bundle.do(bundle.upkeep.carry(item, 50, NOW))
    bundle.take_over()
    assert [reference.offset for reference in bundle.finish()[0].references] == [50, 52]

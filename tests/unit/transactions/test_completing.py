"""Check how a bundle completes transactions; names of tests cite the rules X of the design page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    TransactionAborted,
    Unavailable,
)
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completion
from ledgermq_broker.transactions.state.types import Part, State, Stream
from tests.unit.transactions.desks import NOW, STREAM, TX, A, B, Bundle, batch, nxt

# Completion


def test_an_error_names_only_some_of_what_is_missing(bundle: Bundle) -> None:
    """A transaction counts thousands of streams, and the text goes into logs and answers."""
    bundle.stage(batch(0))
    counts = {Stream(b"", 7, partition): 1 for partition in range(3000)}
    with pytest.raises(DataDamaged, match=r"and 29.. more") as refused:
        bundle.complete(State.COMMITTED, Part(2, counts))
    assert len(str(refused.value)) < 1000


def test_a_small_commit_is_one_segment(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    bundle.stage(batch(1))
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 2})) is Completion.RETRY
    assert bundle.completing.unfinished() == [TX]
    [chunk] = bundle.finish()
    assert [reference.sequence for reference in chunk.references] == [0, 1]
    assert chunk.is_last
    assert bundle.refs() == []
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 2})) is Completion.DONE
    assert bundle.completing.unfinished() == []
    assert bundle.participant.lowest_offset() is None
    bundle.take_over()
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 2}), confirmed=False) is Completion.DONE


def test_copies_are_in_the_order_of_partitions_branches_and_sequences(bundle: Bundle) -> None:
    bundle.stage(batch(0, partition=1), batch(0), batch(1), branch=b"y")
    bundle.stage(batch(0, partition=1), batch(0), branch=b"x")
    streams = [Stream(b"x", 7, 0), Stream(b"y", 7, 0), Stream(b"x", 7, 1), Stream(b"y", 7, 1)]
    counts = dict(zip(reversed(streams), [1, 1, 2, 1], strict=True))
    bundle.complete(State.COMMITTED, Part(2, counts))
    shown = [(ref.stream, ref.sequence) for chunk in bundle.finish() for ref in chunk.references]
    assert shown == [(streams[0], 0), (streams[1], 0), (streams[1], 1), (streams[2], 0), (streams[3], 0)]


def test_x4_less_than_what_is_counted_is_refused_loudly(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    before = bundle.participant.entries()
    for part in (Part(2, {STREAM: 2}), Part(2, {STREAM: 1, Stream(b"x", 7, 0): 1}), Part(2, {STREAM: 1}, ("g",))):
        with pytest.raises(DataDamaged, match="has not staged all that it counts"):
            bundle.complete(State.COMMITTED, part)
    assert bundle.participant.entries() == before
    assert bundle.completing.unfinished() == []


def test_x4_of_more_only_the_counted_ones_are_taken(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1), batch(0, partition=1))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1, Stream(b"", 7, 1): 0}))
    [chunk] = bundle.finish()
    assert [(ref.stream.partition, ref.sequence) for ref in chunk.references] == [(0, 0)]
    assert bundle.participant.open_count == 0
    assert bundle.refs() == []


def test_groups_are_settled_with_the_last_chunk(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(3)))
    bundle.groups = {"g"}
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 3}, ("g",)))
    assert [(chunk.groups, chunk.is_last) for chunk in bundle.finish()] == [((), False), (("g",), True)]


def test_offsets_alone_are_a_chunk_without_batches(bundle: Bundle) -> None:
    bundle.groups = {"g"}
    bundle.complete(State.COMMITTED, Part(2, {}, ("g",)))
    assert bundle.finish() == [Chunk(TX, (), ("g",), is_last=True)]
    assert bundle.upkeep.notes() == [TX]


def test_x11_chunks_end_where_the_bytes_do_and_the_note_counts_them(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1), batch(2))  # one record, of which the first chunk takes a part
    bundle.stage(batch(3), batch(4, length=500))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 5}))
    for left, refs in ((3, 2), (1, 1)):
        chunk = bundle.completing.next_chunk(A)
        assert chunk is not None
        assert bundle.do(bundle.completing.admit(chunk))
        assert len(bundle.refs()) == refs
        bundle.take_over()
        assert bundle.completing.unfinished() == [TX]
        following = bundle.completing.next_chunk(A)
        assert following is not None
        assert following.references[0].sequence == 5 - left
        assert bundle.participant.lowest_offset() == (5 - left) * 2
        assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 5}), confirmed=False) is Completion.RETRY
    [last] = bundle.finish()
    assert (len(last.references), last.is_last) == (1, True)
    assert bundle.refs() == []


def test_x11_a_chunk_is_judged_again(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    first = bundle.completing.next_chunk(A)
    assert first is not None
    assert bundle.do(bundle.completing.admit(first))
    assert not bundle.silent(bundle.completing.admit(first))
    [item] = bundle.upkeep.to_carry(NOW + 300_000, bundle.end)
    second = bundle.completing.next_chunk(A)
    assert second is not None
    assert bundle.do(bundle.upkeep.carry(item, bundle.end, NOW))
    assert not bundle.silent(bundle.completing.admit(second))  # its bytes are elsewhere now
    assert [ref.offset for ref in bundle.finish()[0].references] == [8, 10]
    assert not bundle.silent(bundle.completing.admit(second))


def test_x11_what_is_begun_or_over_stages_nothing_more(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    for _ in range(2):
        for call in (lambda: bundle.stage(batch(4)), lambda: bundle.intake.check_open(TX)):
            with pytest.raises(TransactionAborted, match="is over in bundle 2"):
                call()
        bundle.stage(batch(0), transaction=nxt(TX))  # the producer may be ahead of its bundles
        bundle.finish()
    with pytest.raises(TransactionAborted):
        bundle.stage(batch(0), transaction=TX)


def test_x5_a_completion_drops_what_is_older_by_the_pair(bundle: Bundle) -> None:
    old, new = TX._replace(number=3), TX._replace(epoch=2, number=1)
    later = TX._replace(epoch=2, number=2)
    for transaction in (old, new, later, TX._replace(producer_id=B)):
        bundle.stage(*(batch(sequence) for sequence in range(3)), transaction=transaction)
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 3}), transaction=new)
    first = bundle.completing.next_chunk(A)
    assert first is not None
    bundle.do(bundle.completing.admit(first))
    assert bundle.participant.open_count == 3  # the first chunk drops what is older
    bundle.finish(new)
    assert sorted(key.split(b"/", 1)[1] for key in bundle.refs()) == sorted(
        [f"{A.hex()}/2/2/0".encode(), f"{B.hex()}/1/1/0".encode()]
    )
    bundle.take_over()
    with pytest.raises(TransactionAborted):
        bundle.stage(batch(0), transaction=TX._replace(number=9))
    assert bundle.complete(State.ABORTED, Part(2), transaction=old) is Completion.DONE


def test_x6_a_completion_waits_for_the_one_before(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    bundle.stage(batch(0), transaction=nxt(TX))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    for outcome in (State.COMMITTED, State.ABORTED):
        with pytest.raises(Unavailable, match="waits in bundle 2 until transaction 1"):
            bundle.complete(outcome, Part(2, {STREAM: 1}), transaction=nxt(TX))
    bundle.finish()
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), transaction=nxt(TX)) is Completion.RETRY


def test_x8_done_is_said_because_the_note_says_so(bundle: Bundle) -> None:
    bundle.groups = {"g"}
    assert bundle.complete(State.COMMITTED, Part(2, {}, ("g",))) is Completion.RETRY  # nothing is staged: not "done"
    assert bundle.complete(State.COMMITTED, Part(2, {}, ("g",))) is Completion.RETRY
    bundle.finish()
    assert bundle.complete(State.COMMITTED, Part(2, {}, ("g",))) is Completion.DONE


def test_x16_an_abort_moves_a_note_on_but_writes_no_first_one(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    assert bundle.complete(State.ABORTED, Part(2)) is Completion.DONE
    assert bundle.upkeep.notes() == []
    assert bundle.refs() == []
    bundle.stage(batch(0), transaction=nxt(TX))
    bundle.commit(1, transaction=nxt(TX))
    third = TX._replace(number=3)
    bundle.stage(batch(0), transaction=third)
    assert bundle.complete(State.ABORTED, Part(2), transaction=third) is Completion.DONE
    assert bundle.upkeep.notes() == [third]
    with pytest.raises(TransactionAborted):
        bundle.stage(batch(0), transaction=third)
    with pytest.raises(DataDamaged, match="before that it is aborted"):
        bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), transaction=third)


def test_x16_a_commit_without_a_note_is_confirmed_first(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), confirmed=False) is Completion.UNSURE
    assert bundle.completing.next_chunk(A) is None
    bundle.commit(1)
    bundle.stage(batch(0), transaction=nxt(TX))
    part = Part(2, {STREAM: 1})
    assert bundle.complete(State.COMMITTED, part, transaction=nxt(TX), confirmed=False) is Completion.RETRY


def test_x16_a_confirmation_from_before_a_note_went_is_void(bundle: Bundle) -> None:
    other = TX._replace(producer_id=B)
    bundle.stage(batch(0), transaction=other)
    bundle.commit(1, transaction=other)
    bundle.stage(batch(0))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    chunk = bundle.completing.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.upkeep.forget(other))
    assert bundle.participant.notes_gone == 1
    assert not bundle.silent(bundle.completing.admit(chunk))
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), confirmed=False) is Completion.UNSURE


def test_an_abort_of_what_is_being_committed_is_refused_loudly(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    with pytest.raises(DataDamaged, match="before that it is committed"):
        bundle.complete(State.ABORTED, Part(2))
    assert len(bundle.finish()) == 1


def test_the_counts_of_another_bundle_are_refused(bundle: Bundle) -> None:
    with pytest.raises(InvalidRequest, match="counts of bundle 3"):
        bundle.complete(State.COMMITTED, Part(3))


def test_what_was_begun_in_memory_is_told_again_after_a_takeover(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    bundle.take_over()
    assert bundle.completing.unfinished() == []
    bundle.commit(1)
    assert bundle.upkeep.notes() == [TX]


def test_x20_what_is_given_up_is_dropped_and_never_copied(bundle: Bundle) -> None:
    assert not bundle.silent(bundle.completing.give_up(TX))
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    chunk = bundle.completing.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.completing.admit(chunk))
    assert bundle.do(bundle.completing.give_up(TX))
    bundle.take_over()
    assert bundle.refs() == []
    assert bundle.completing.unfinished() == []
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 4})) is Completion.DONE


# The log


def test_records_of_coordinators_are_passed_over(bundle: Bundle) -> None:
    bundle.participant.apply(b"id/t", b"whatever")
    assert bundle.participant.entries() == []


def test_two_references_to_one_sequence_are_damage(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    [(key, value)] = bundle.log.items()
    with pytest.raises(DataDamaged, match="two references"):
        bundle.participant.apply(key[:-1] + b"7", value)


def test_a_missing_reference_of_what_is_begun_is_damage(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1))
    bundle.stage(batch(2), batch(3))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    chunk: Chunk | None = bundle.completing.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.completing.admit(chunk))
    lost: Sequence[bytes] = bundle.refs()
    bundle.participant.apply(lost[0], None)
    with pytest.raises(DataDamaged, match="no reference to batch 2"):
        bundle.completing.next_chunk(A)
    assert bundle.do(bundle.completing.give_up(TX))


def test_a_missing_reference_of_what_is_open_is_damage_of_that_batch(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    bundle.stage(batch(1), batch(2))
    bundle.participant.apply(bundle.refs()[0], None)
    missing, there = bundle.stage(batch(0), batch(1))
    assert isinstance(missing, DataDamaged)
    assert there is None


def test_leftovers_of_an_older_transaction_go_while_a_later_one_is_begun(bundle: Bundle) -> None:
    later = TX._replace(epoch=2)
    bundle.stage(batch(0))
    bundle.stage(batch(0), transaction=later)
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), transaction=later)
    assert bundle.complete(State.ABORTED, Part(2)) is Completion.DONE
    assert bundle.participant.open_count == 1
    assert bundle.upkeep.notes() == []
    assert len(bundle.finish(later)) == 1

"""Check how a bundle stages, completes, carries and forgets; names of tests cite the rules X of the design page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    LedgerMQError,
    OutOfOrderSequence,
    ResourceExhausted,
    TransactionAborted,
    TransactionTooLarge,
    Unavailable,
)
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participant import Chunk, Completion, Participant, Staging, ToStage
from ledgermq_broker.transactions.state.types import Part, State, Stream, Transaction
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")

NOW = 1_700_000_000_000
A, B = b"a" * 16, b"b" * 16
TX = Transaction("t", 5, A, 1, 1)
STREAM = Stream(b"", 7, 0)


def nxt(transaction: Transaction) -> Transaction:
    return transaction._replace(number=transaction.number + 1)


def batch(sequence: int, *, partition: int = 0, crc: int = 0, records: int = 2, length: int = 100) -> ToStage:
    return ToStage(7, partition, sequence, records, length, crc or 1000 + sequence, 1, 2)


class Bundle:
    """A participant, its log, and the end of `__staged`."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits(chunk_bytes=200)
        self.participant = Participant(2, self.limits)
        self.log: dict[bytes, bytes | None] = {}
        self.end = 0
        self.groups: set[str] = set()

    def do(self, decision: Decision[T]) -> T:
        for record in reversed(decision.records):
            self.log.pop(record.key, None)
            self.log[record.key] = record.value
        return decision.answer

    def silent(self, decision: Decision[T]) -> T:
        assert decision.records == []
        return decision.answer

    def take_over(self) -> None:
        before = self.participant.entries(), self.participant.lowest_offset(), self.participant.staged_bytes
        self.participant = Participant(2, self.limits)
        for key, value in self.log.items():
            if value is not None:
                self.participant.apply(key, value)
        assert (self.participant.entries(), self.participant.lowest_offset(), self.participant.staged_bytes) == before

    def stage(
        self, *batches: ToStage, transaction: Transaction = TX, branch: bytes = b"", now_ms: int = NOW
    ) -> list[LedgerMQError | None]:
        staging: Staging = self.do(self.participant.stage(transaction, branch, batches, self.end, now_ms))
        self.end += sum(batches[index].record_count for index in staging.new)
        return staging.results

    def complete(
        self, outcome: State, part: Part, *, transaction: Transaction = TX, confirmed: bool = True
    ) -> Completion:
        return self.do(
            self.participant.complete(
                transaction, outcome, part, confirmed=confirmed, groups_pending=self.groups.__contains__
            )
        )

    def commit(self, count: int, *, transaction: Transaction = TX) -> None:
        self.complete(State.COMMITTED, Part(2, {STREAM: count}), transaction=transaction)
        self.finish(transaction)

    def finish(self, transaction: Transaction = TX) -> list[Chunk]:
        made: list[Chunk] = []
        while (chunk := self.participant.next_chunk(transaction.producer_id)) is not None:
            assert self.do(self.participant.admit(chunk))
            made.append(chunk)
        return made

    def refs(self) -> list[bytes]:
        return [key for key, value in self.log.items() if key.startswith(b"ref/") and value is not None]


@pytest.fixture
def bundle() -> Bundle:
    return Bundle()


# Staging


def test_batches_of_one_call_are_one_record(bundle: Bundle) -> None:
    staging = bundle.do(bundle.participant.stage(TX, b"", [batch(0), batch(1), batch(0, partition=1)], 40, NOW))
    assert staging == ([None, None, None], [0, 1, 2])
    assert len(bundle.refs()) == 1
    assert (bundle.participant.open_count, bundle.participant.staged_batches) == (1, 3)
    assert bundle.participant.staged_bytes == 300
    assert bundle.participant.lowest_offset() == 40
    [info] = bundle.participant.staged_infos()
    assert (info.transaction.transactional_id, info.batches, info.bytes, info.oldest_ms) == ("t", 3, 300, NOW)


def test_a_call_under_another_id_drops_nothing_and_leaves_no_note(bundle: Bundle) -> None:
    """One that names the producer id of a transaction beside another transactional id."""
    bundle.stage(batch(0))
    false = TX._replace(transactional_id="mine")
    assert bundle.participant.other_id(false) == TX.transactional_id
    assert bundle.participant.other_id(TX) is None
    for transaction in (false, false._replace(number=7)):
        assert bundle.complete(State.ABORTED, Part(2), transaction=transaction) is Completion.DONE
    assert bundle.participant.staged_batches == 1
    bundle.commit(1)
    with pytest.raises(InvalidRequest, match="another transactional id"):
        bundle.stage(batch(0), transaction=false._replace(number=2))
    for number in (1, 2):
        bundle.complete(State.ABORTED, Part(2), transaction=false._replace(number=number))
    bundle.take_over()
    assert bundle.stage(batch(0), transaction=TX._replace(number=2)) == [None]


def test_x13_a_gap_is_out_of_order_and_a_batch_behind_it_too(bundle: Bundle) -> None:
    gap, behind, other = bundle.stage(batch(1), batch(2), batch(0, partition=1))
    assert isinstance(gap, OutOfOrderSequence)
    assert "batch 0 is missing" in str(gap)
    assert isinstance(behind, OutOfOrderSequence)
    assert other is None
    assert bundle.stage(batch(0), batch(1), batch(2)) == [None, None, None]


def test_x13_a_duplicate_is_the_same_batch_and_anything_else_a_conflict(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    assert bundle.silent(bundle.participant.stage(TX, b"", [batch(0)], bundle.end, NOW)) == ([None], [])
    for other in (batch(0, crc=9), batch(0, records=3), batch(0, length=99)):
        [error] = bundle.stage(other)
        assert isinstance(error, TransactionAborted)
    [stored, twice, conflict] = bundle.stage(batch(1), batch(1), batch(1, crc=9))
    assert (stored, twice) == (None, None)
    assert isinstance(conflict, TransactionAborted)


def test_branches_partitions_and_transactions_count_apart(bundle: Bundle) -> None:
    assert bundle.stage(batch(0)) == [None]
    assert bundle.stage(batch(0, crc=5), branch=b"x") == [None]
    assert bundle.stage(batch(0, crc=6), transaction=nxt(TX)) == [None]
    assert bundle.stage(batch(0, crc=7), transaction=TX._replace(producer_id=B)) == [None]
    assert bundle.participant.open_count == 3
    with pytest.raises(InvalidRequest, match="branch"):
        bundle.stage(batch(0), branch=b"x" * 33)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (TransactionLimits(batches_max=2), TransactionTooLarge),
        (TransactionLimits(bytes_max=299), TransactionTooLarge),
        (TransactionLimits(staged_bytes_max=299), ResourceExhausted),
        (TransactionLimits(staged_batches_max=2), ResourceExhausted),
    ],
)
def test_what_a_transaction_and_a_bundle_hold_is_bounded(limits: TransactionLimits, kind: type[LedgerMQError]) -> None:
    bundle = Bundle(limits)
    bundle.stage(batch(0))
    [stored, refused] = bundle.stage(batch(1), batch(2))
    assert stored is None
    assert isinstance(refused, kind)
    assert bundle.stage(batch(0)) == [None]


def test_batches_of_a_bundle_are_bounded_over_all_its_transactions() -> None:
    """Each is a reference in the owner's memory, however small it is: 8 GiB of them were millions."""
    bundle = Bundle(TransactionLimits(staged_batches_max=3))
    other = TX._replace(producer_id=B)
    assert bundle.stage(batch(0), batch(1)) == [None, None]
    [stored, refused] = bundle.stage(batch(0), batch(1), transaction=other)
    assert stored is None
    assert isinstance(refused, ResourceExhausted)
    assert refused.retry_after_ms
    assert bundle.stage(batch(0), batch(1)) == [None, None], "what is stored is not refused"
    assert bundle.complete(State.ABORTED, Part(2)) is Completion.DONE
    assert bundle.stage(batch(1), transaction=other) == [None]


def test_open_transactions_are_bounded() -> None:
    bundle = Bundle(TransactionLimits(open_max=1))
    bundle.stage(batch(0))
    assert bundle.stage(batch(1)) == [None]
    [error] = bundle.stage(batch(0), transaction=nxt(TX))
    assert isinstance(error, ResourceExhausted)
    assert error.retry_after_ms


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
    assert bundle.participant.unfinished() == [TX]
    [chunk] = bundle.finish()
    assert [reference.sequence for reference in chunk.references] == [0, 1]
    assert chunk.is_last
    assert bundle.refs() == []
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 2})) is Completion.DONE
    assert bundle.participant.unfinished() == []
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
    assert bundle.participant.unfinished() == []


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
    assert bundle.participant.notes() == [TX]


def test_x11_chunks_end_where_the_bytes_do_and_the_note_counts_them(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1), batch(2))  # one record, of which the first chunk takes a part
    bundle.stage(batch(3), batch(4, length=500))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 5}))
    for left, refs in ((3, 2), (1, 1)):
        chunk = bundle.participant.next_chunk(A)
        assert chunk is not None
        assert bundle.do(bundle.participant.admit(chunk))
        assert len(bundle.refs()) == refs
        bundle.take_over()
        assert bundle.participant.unfinished() == [TX]
        following = bundle.participant.next_chunk(A)
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
    first = bundle.participant.next_chunk(A)
    assert first is not None
    assert bundle.do(bundle.participant.admit(first))
    assert not bundle.silent(bundle.participant.admit(first))
    [item] = bundle.participant.to_carry(NOW + 300_000, bundle.end)
    second = bundle.participant.next_chunk(A)
    assert second is not None
    assert bundle.do(bundle.participant.carry(item, bundle.end, NOW))
    assert not bundle.silent(bundle.participant.admit(second))  # its bytes are elsewhere now
    assert [ref.offset for ref in bundle.finish()[0].references] == [8, 10]
    assert not bundle.silent(bundle.participant.admit(second))


def test_x11_what_is_begun_or_over_stages_nothing_more(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    for _ in range(2):
        for call in (lambda: bundle.stage(batch(4)), lambda: bundle.participant.check_open(TX)):
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
    first = bundle.participant.next_chunk(A)
    assert first is not None
    bundle.do(bundle.participant.admit(first))
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
    assert bundle.participant.notes() == []
    assert bundle.refs() == []
    bundle.stage(batch(0), transaction=nxt(TX))
    bundle.commit(1, transaction=nxt(TX))
    third = TX._replace(number=3)
    bundle.stage(batch(0), transaction=third)
    assert bundle.complete(State.ABORTED, Part(2), transaction=third) is Completion.DONE
    assert bundle.participant.notes() == [third]
    with pytest.raises(TransactionAborted):
        bundle.stage(batch(0), transaction=third)
    with pytest.raises(DataDamaged, match="before that it is aborted"):
        bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), transaction=third)


def test_x16_a_commit_without_a_note_is_confirmed_first(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}), confirmed=False) is Completion.UNSURE
    assert bundle.participant.next_chunk(A) is None
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
    chunk = bundle.participant.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.participant.forget(other))
    assert bundle.participant.notes_gone == 1
    assert not bundle.silent(bundle.participant.admit(chunk))
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
    assert bundle.participant.unfinished() == []
    bundle.commit(1)
    assert bundle.participant.notes() == [TX]


def test_x20_what_is_given_up_is_dropped_and_never_copied(bundle: Bundle) -> None:
    assert not bundle.silent(bundle.participant.give_up(TX))
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    chunk = bundle.participant.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.participant.admit(chunk))
    assert bundle.do(bundle.participant.give_up(TX))
    bundle.take_over()
    assert bundle.refs() == []
    assert bundle.participant.unfinished() == []
    assert bundle.complete(State.COMMITTED, Part(2, {STREAM: 4})) is Completion.DONE


# Questions, and notes


def test_a_bundle_asks_about_what_is_staged_for_long(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(0, partition=1))
    bundle.stage(batch(1), now_ms=NOW + 5_000)
    assert bundle.participant.to_ask(NOW + 5_999) == []
    part = Part(2, {STREAM: 2, Stream(b"", 7, 1): 1})
    assert bundle.participant.to_ask(NOW + 6_000) == [(TX, part)]
    assert bundle.participant.oldest_ms() == NOW
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 1}))
    assert bundle.participant.to_ask(NOW + 6_000) == []


def test_what_a_decision_counts_can_be_read_until_it_goes(bundle: Bundle) -> None:
    counts = Part(2, {STREAM: 2})
    assert bundle.participant.counted(TX, counts) == []
    bundle.stage(batch(0))
    with pytest.raises(DataDamaged, match="has not staged all"):
        bundle.participant.counted(TX, counts)
    bundle.stage(batch(1), batch(2))
    assert [reference.sequence for reference in bundle.participant.counted(TX, counts)] == [0, 1]
    bundle.complete(State.ABORTED, counts)
    assert bundle.participant.counted(TX, counts) == []


def test_x16_only_the_finished_note_of_that_transaction_is_forgotten(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    chunk = bundle.participant.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.participant.admit(chunk))
    bundle.silent(bundle.participant.forget(TX))
    assert bundle.participant.notes() == []
    bundle.finish()
    bundle.silent(bundle.participant.forget(nxt(TX)))
    assert bundle.participant.note_count == 1
    bundle.do(bundle.participant.forget(TX))
    assert (bundle.participant.note_count, bundle.participant.notes_gone) == (0, 1)
    bundle.take_over()


# Carrying forward


def test_x15_only_what_is_alive_is_carried(bundle: Bundle) -> None:
    bundle.stage(batch(0), batch(1))
    assert bundle.participant.to_carry(NOW + 299_999, bundle.end) == []
    assert bundle.participant.to_carry(NOW + 300_000, 0) == []
    [item] = bundle.participant.to_carry(NOW + 300_000, bundle.end)
    assert bundle.do(bundle.participant.carry(item, 50, NOW + 300_000))
    assert bundle.participant.lowest_offset() == 50
    assert not bundle.silent(bundle.participant.carry(item, 60, NOW + 300_000))
    assert bundle.participant.to_carry(NOW + 599_999, 100) == []
    assert bundle.participant.oldest_ms() == NOW
    [again] = bundle.participant.to_carry(NOW + 600_000, 100)
    assert [reference.offset for reference in again.references] == [50, 52]
    bundle.complete(State.ABORTED, Part(2))
    assert not bundle.silent(bundle.participant.carry(again, 60, NOW))
    bundle.take_over()


def test_x15_of_a_record_that_is_copied_in_part_the_rest_is_carried(bundle: Bundle) -> None:
    bundle.stage(*(batch(sequence) for sequence in range(4)))
    bundle.complete(State.COMMITTED, Part(2, {STREAM: 4}))
    [stale] = bundle.participant.to_carry(NOW + 300_000, bundle.end)
    chunk = bundle.participant.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.participant.admit(chunk))
    assert not bundle.silent(bundle.participant.carry(stale, 50, NOW))
    [item] = bundle.participant.to_carry(NOW + 300_000, bundle.end)
    assert [reference.sequence for reference in item.references] == [2, 3]
    bundle.do(bundle.participant.carry(item, 50, NOW))
    bundle.take_over()
    assert [reference.offset for reference in bundle.finish()[0].references] == [50, 52]


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
    chunk: Chunk | None = bundle.participant.next_chunk(A)
    assert chunk is not None
    bundle.do(bundle.participant.admit(chunk))
    lost: Sequence[bytes] = bundle.refs()
    bundle.participant.apply(lost[0], None)
    with pytest.raises(DataDamaged, match="no reference to batch 2"):
        bundle.participant.next_chunk(A)
    assert bundle.do(bundle.participant.give_up(TX))


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
    assert bundle.participant.notes() == []
    assert len(bundle.finish(later)) == 1

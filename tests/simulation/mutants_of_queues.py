"""Bugs in queue groups: in leases, in what is durable, and in what the next owner knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.queues.leases.answering import LATE, Answering, LeaseResult, _Letters
from ledgermq.client.queues.leases.handles import LeaseHandle
from ledgermq.client.queues.message import Lease, Reply
from ledgermq.client.queues.queue import Queue
from ledgermq.client.queues.words import Word
from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.queues.fetching import ShareFetching
from ledgermq_broker.queues.partition import BundleQueues
from ledgermq_broker.queues.state.bundle_shares import BundleShares
from ledgermq_broker.queues.state.records import Fate
from ledgermq_broker.queues.state.share_partition import FINAL, SharePartition
from ledgermq_broker.queues.state.share_partition import Word as ShareWord
from ledgermq_broker.queues.state.spans import Grant, Span
from tests.simulation.lease_clients import has_callers, has_callers_only
from tests.simulation.mutants import mutant
from tests.simulation.queues_run import queues_plan_of
from tests.simulation.roaming import roams

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("queues")
def queue_answers_before_it_is_durable(patch: Patch) -> None:
    """An acknowledgement is answered when the owner has decided it."""
    real = IssuedState.durable

    async def durable(self: IssuedState, *, within_s: float = 0.0) -> None:
        if self.what != "queues":
            await real(self, within_s=within_s)

    patch.setattr(IssuedState, "durable", durable)


def has_filter(seed: int) -> bool:
    return bool(queues_plan_of(seed).filter)


@mutant("queues", has_filter)
def queue_filter_judges_the_neighbour(patch: Patch) -> None:
    """A member takes the message behind the one that its filter lets pass."""
    real = Queue._add_rows

    def add_rows(self: Queue, lease: Lease, rows: pa.RecordBatch, at: TopicPartition, first: int) -> None:
        assert self._filter is not None
        passes = self._filter.passes

        class Shifted:
            def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
                return pa.array([False, *passes(rows).to_pylist()[:-1]], pa.bool_())

        patched, self._filter = self._filter, Shifted()  # type: ignore[assignment]
        try:
            real(self, lease, rows, at, first)
        finally:
            self._filter = patched

    patch.setattr(Queue, "_add_rows", add_rows)


@mutant("queues", has_filter)
def queue_filter_finishes_whole_batches(patch: Patch) -> None:
    """Where a filter leaves out a message of an answer, all messages of the answer are finished."""
    real = Queue._add_rows

    def add_rows(self: Queue, lease: Lease, rows: pa.RecordBatch, at: TopicPartition, first: int) -> None:
        before = self.filtered
        real(self, lease, rows, at, first)
        if self.filtered > before:
            for row in range(rows.num_rows):
                self._add(at, Word(first + row, lease, pb.ACCEPT, 0, Reply()))
            self._buffer.clear()

    patch.setattr(Queue, "_add_rows", add_rows)


@mutant("queues")
def queue_state_dropped_at_a_takeover(patch: Patch) -> None:
    """The next owner begins all groups anew."""
    real = BundleShares.loaded

    def loaded(self: BundleShares) -> None:
        real(self)
        self.partitions.clear()

    patch.setattr(BundleShares, "loaded", loaded)


@mutant("queues")
def queue_window_forgotten(patch: Patch) -> None:
    """The next owner knows where a group begins, and nothing of what is finished behind that."""
    patch.setattr(SharePartition, "load_chunk", lambda self, chunk, messages: None)


@mutant("queues", lambda seed: queues_plan_of(seed).outlives)
def queue_sends_without_a_fence_check(patch: Patch) -> None:
    """A former owner sends messages that its successor has seen acknowledged."""

    async def confirm(self: ShareFetching, found: object) -> None:
        return None

    patch.setattr(ShareFetching, "_confirm", confirm)


@mutant("queues")
def queue_lease_not_fenced(patch: Patch) -> None:
    """Any member may give back or finish what is leased to another one."""
    real = SharePartition.answer

    def answer(self: SharePartition, number: int, span: Span, word: ShareWord, until_s: float) -> list[Span]:
        late: list[Span] = []
        for offset in range(span.first, span.last + 1):
            lease = self._leases.get(offset)
            late += real(self, number if lease is None else lease.number, Span(offset, offset), word, until_s)
        return late

    patch.setattr(SharePartition, "answer", answer)


@mutant("queues")
def queue_leases_what_is_leased(patch: Patch) -> None:
    """A message that is leased is leased to the next member, too."""
    real = SharePartition.acquire

    def acquire(
        self: SharePartition, member: str, number: int, records_max: int, until_s: float, readable_end: int
    ) -> list[Grant]:
        for offset in sorted(self._leases)[:1]:
            del self._leases[offset]
            self._ready.insert(0, offset)
        return real(self, member, number, records_max, until_s, readable_end)

    patch.setattr(SharePartition, "acquire", acquire)


@mutant("queues")
def queue_finishes_what_it_skips(patch: Patch) -> None:
    """To accept one message of a chunk finishes those before it."""
    real = SharePartition._finish

    def finish(self: SharePartition, offsets: Any, fate: Any) -> None:
        found = list(offsets)
        real(self, range(min(found, default=0), max(found, default=-1) + 1) if found else [], fate)
        if found and self.start < found[0]:
            real(self, [self.start], fate)

    patch.setattr(SharePartition, "_finish", finish)


# Partitions that move


@mutant("queues", roams)
def queue_opens_without_what_groups_know(patch: Patch) -> None:
    """The next bundle opens a partition, and its groups begin anew there."""

    async def bring(self: InternalTerms, source: object, target: int, places: object) -> None:
        return None

    patch.setattr(InternalTerms, "bring", bring)


@mutant("queues", roams)
def queue_removed_before_the_move_has_ended(patch: Patch) -> None:
    """The bundle that a partition leaves removes what it knows of its groups once the move is decided."""
    patch.setattr(BundleQueues, "_has_gone", lambda self, place: self.owner.leaves(place))


@mutant("queues", roams)
def queue_brought_chunks_are_left_out(patch: Patch) -> None:
    """The next bundle learns where a group begins, and nothing of what is finished behind that."""
    real = BundleShares.bring

    def bring(self: BundleShares, records: Any, places: Any) -> Any:
        return real(self, [record for record in records if record.key.startswith(b"s/")], places)

    patch.setattr(BundleShares, "bring", bring)


@mutant("queues", roams)
def queue_goes_on_while_its_partition_leaves(patch: Patch) -> None:
    """A bundle serves groups of a partition that is decided to leave, and does not wait with the seal."""
    patch.setattr(BundleQueues, "_check_here", lambda self, key: self._state.check())
    patch.setattr(BundleQueues, "_part", lambda self: None)
    patch.setattr(BundleQueues, "keeps", lambda self, place: "")


@mutant("queues", roams)
def queue_epochs_without_the_move(patch: Patch) -> None:
    """A lease of one bundle counts in another one whose term has the same epoch."""
    patch.setattr(BundleOwner, "epoch_of", lambda self, key: self.epoch)


@mutant("queues", lambda seed: queues_plan_of(seed).patience_s < 1, hangs=True)
def queue_raises_before_it_asks(patch: Patch) -> None:
    """Once a member was not served for `request_timeout_s`, each of its calls raises before it asks again."""
    real = Queue._more

    async def more(self: Queue, records_max: int, deadline: float, begun_s: float) -> bool:
        polls, now_s = self._polls, self._begin().time()
        if polls.failing is not None and now_s - polls.failing_since_s > self.settings.request_timeout_s:
            raise Unavailable(f"queue {self.group} is not served")
        return await real(self, records_max, deadline, begun_s)

    patch.setattr(Queue, "_more", more)


@mutant("queues")
def finished_messages_count_for_any_lease(patch: Patch) -> None:
    """To accept what another member has finished counts."""

    real = SharePartition._ended_under

    def ended_under(self: SharePartition, number: int, span: Span, word: ShareWord) -> list[Span]:
        if word not in FINAL:
            return real(self, number, span, word)
        finished = (offset for offset in range(self.start, self.end) if self._fate(offset) is not Fate.OPEN)
        runs = [Span(span.first, self.start - 1), *(Span(offset, offset) for offset in finished)]
        return [run for run in runs if run.first <= run.last]

    patch.setattr(SharePartition, "_ended_under", ended_under)


@mutant("queues", has_callers)
def given_back_messages_count_for_any_lease(patch: Patch) -> None:
    """To give back what another lease has counts, as if it were a repetition."""
    real = SharePartition._ended_under

    def ended_under(self: SharePartition, number: int, span: Span, word: ShareWord) -> list[Span]:
        if word in FINAL:
            return real(self, number, span, word)
        return [span] if span.first <= span.last else []

    patch.setattr(SharePartition, "_ended_under", ended_under)


@mutant("queues", has_callers_only)
def letters_copied_before_the_renewal(patch: Patch) -> None:
    """A message that is to be buried by its handle is copied first; then its lease is looked at."""
    real = Answering._bury

    async def bury(
        self: Answering,
        results: list[LeaseResult],
        handles: Sequence[LeaseHandle],
        which: Sequence[int],
        errors: Sequence[str],
    ) -> None:
        letters = _Letters(self._context, self._admin)
        async with letters.open:
            for at in which:
                await letters.put(handles[at], errors[at])
        await real(self, results, handles, which, errors)

    patch.setattr(Answering, "_bury", bury)


@mutant("queues", has_callers_only)
def late_letters_are_finished_by_a_new_word(patch: Patch) -> None:
    """A handle whose renewal came too late buries all the same: its lease is not compared."""
    real = Answering._say

    async def say(self: Answering, results: Any, handles: Any, which: Any, word: Any) -> None:
        await real(self, results, handles, which, word)
        for at in which:
            if word(at)[0] == pb.RENEW and results[at] is LATE:
                results[at] = LeaseResult(True)

    patch.setattr(Answering, "_say", say)

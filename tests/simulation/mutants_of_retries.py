"""Bugs in members that move failed messages to the retry topic and the dead-letter topic of their group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ledgermq.client.groups.holding.handing_out import HandingOut
from ledgermq.client.groups.holding.holding import Event, Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retries.moves import Move, MovePolicy, Moves
from ledgermq.client.groups.retry_topics import earlier_failures, retry_topic
from ledgermq.client.transactions.handling.moving import TransactionalMoves
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.offset_stores.contract import OffsetEntry
from tests.simulation.failures_truth import failures_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def _fails(seed: int) -> bool:
    return failures_plan_of(seed).members > 0


def _comes_back(seed: int) -> bool:
    return _fails(seed) and failures_plan_of(seed).attempts_max > 1


@mutant("groups", _fails)
def copies_apart_from_their_offset(patch: Patch) -> None:
    """The copies are committed in a transaction, and the offset after it."""
    real = TransactionalMoves._try

    async def stage_entries(self: Transaction, offsets: Any, entries: Any) -> None:
        pass

    async def try_(self: TransactionalMoves, entries: Sequence[OffsetEntry], error_bytes_max: int) -> None:
        await real(self, entries, error_bytes_max)
        await self._plain.commit(self._policy.group, entries)

    patch.setattr(Transaction, "stage_entries", stage_entries)
    patch.setattr(TransactionalMoves, "_try", try_)


@mutant("groups", _fails)
def moved_before_the_prefix_is_finished(patch: Patch) -> None:
    """Each transaction moves everything that has failed, also above the offset that it commits."""
    below, remove_below = Moves.below, Moves.remove_below
    patch.setattr(Moves, "below", lambda self, offset: below(self, offset + 1000) if below(self, offset) else [])
    patch.setattr(Moves, "remove_below", lambda self, offset: remove_below(self, offset + 1000))


@mutant("groups", _fails)
def offset_committed_without_the_copies(patch: Patch) -> None:
    """A failed message counts as finished, and nothing is moved."""
    patch.setattr(TransactionalMoves, "_moves_below", lambda self, entry: ())


@mutant("groups", _fails)
def moved_again_after_an_unknown_outcome(patch: Patch) -> None:
    """A transaction whose outcome was unknown is taken as aborted, and its messages are moved once more."""
    real = TransactionalMoves._begin

    async def begin(self: TransactionalMoves) -> Transaction:
        self._unknown = None
        return await real(self)

    patch.setattr(TransactionalMoves, "_begin", begin)


@mutant("groups", _comes_back)
def attempts_counted_twice(patch: Patch) -> None:
    """An attempt that was made from the retry topic counts as two."""
    real = MovePolicy.move

    def move(self: MovePolicy, message: GroupMessage, *given: Any, **named: Any) -> Move:
        made = real(self, message, *given, **named)
        again = earlier_failures(message) is not None
        return made._replace(failures=made.failures._replace(attempts=made.failures.attempts + again))

    patch.setattr(MovePolicy, "move", move)


def _waits_long(seed: int) -> bool:
    return _comes_back(seed) and failures_plan_of(seed).far_s > 0


@mutant("groups", _waits_long)
def carried_copies_count_as_attempts(patch: Patch) -> None:
    """A copy that waits, and is moved as it is, counts as one that has failed again."""

    real = MovePolicy.carried

    def counted(self: MovePolicy, message: GroupMessage) -> Move:
        move = real(self, message)
        return move._replace(failures=move.failures._replace(attempts=move.failures.attempts + 1))

    patch.setattr(MovePolicy, "carried", counted)


@mutant("groups", _waits_long)
def waiting_copies_passed_over(patch: Patch) -> None:
    """What is finished behind a copy that waits is committed, and the copy is not moved."""
    real = Moves.below
    patch.setattr(Moves, "below", lambda self, offset: [move for move in real(self, offset) if not move.carried])


@mutant("groups", _fails)
def dead_letters_are_tried_again(patch: Patch) -> None:
    """A message that goes to the dead-letter topic goes to the retry topic too."""
    real = TransactionalMoves._send

    def send(self: TransactionalMoves, transaction: Transaction, move: Move, error_bytes_max: int) -> None:
        real(self, transaction, move, error_bytes_max)
        if move.is_dead:
            real(self, transaction, move._replace(topic=retry_topic(move.failures.group)), error_bytes_max)

    patch.setattr(TransactionalMoves, "_send", send)


@mutant("groups", _fails)
def failed_messages_forgotten_when_a_partition_is_let_go(patch: Patch) -> None:
    """What has failed and waits for its move is finished when the member gives its partition back."""
    real = Holding.advance

    def advance(self: Holding, event: Event) -> None:
        real(self, event)
        if event is Event.LET_GO:
            self.moves.remove_from(0)

    patch.setattr(Holding, "advance", advance)


@mutant("groups", _comes_back)
def held_copies_are_finished(patch: Patch) -> None:
    """A copy that was read before its time is held, and acknowledged meanwhile."""
    real = Holding.hold

    def hold(self: Holding, message: GroupMessage, delay_s: float) -> None:
        real(self, message, delay_s)
        self.ack(message.offset, self.progress.generation)

    patch.setattr(Holding, "hold", hold)


@mutant("groups", _comes_back)
def copies_handled_before_their_time(patch: Patch) -> None:
    """Members return copies from the retry topic as they read them."""
    patch.setattr(HandingOut, "without_early", lambda self, messages: messages)

"""One partition as this member holds it, under one epoch.

A holding begins when the group gives the partition to this member, and ends when the partition was
let go, was lost, or was given again under another epoch. In between it passes through these phases:

  phase      meaning                                      load    announce  begin  let go    withdraw  end
  LOADING    the committed offset is not known yet        LOADED  -         -      LEAVING   -         GONE
  LOADED     the position is known                        -       ASSIGNED  -      LEAVING   -         GONE
  ASSIGNED   on_assigned is called with it                -       -         READY  REVOKING  -         GONE
  READY      on_assigned has returned: it is read         -       -         -      REVOKING  -         GONE
  REVOKING   to be let go; on_revoked not called yet      -       -         -      -         LEAVING   GONE
  LEAVING    to be let go; the program does not have it   -       -         -      -         -         GONE
  GONE       no longer held: nothing counts any longer    -       -         -      -         -         -

Events: *load*, the committed offset, or the start, is known. *announce*, the program is about to be
called with it (on_assigned). *begin*, that call has returned. *let go*, the group wants it back, or
the member leaves. *withdraw*, the program is about to be called with it (on_revoked). *end*, it was
let go, lost, or given again. A dash is a pair that raises IllegalTransition.

The phase does not depend on the program's actions (`paused_by_program`, `answered`), nor on the
state of the store (`stored`, `refused`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from ledgermq.client.consuming.message import made_as
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.groups.holding.progress import Progress
from ledgermq.client.groups.message import GroupMessage, Handout, no_dead_letters
from ledgermq.client.groups.retries.moves import Move, Moves
from ledgermq.client.groups.retries.refusals import CARRY_AFTER_S, Refusals, Waiting
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.runtime.transitions import next_state


class Phase(Enum):
    """See the table at the top of this module."""

    LOADING = auto()
    LOADED = auto()
    ASSIGNED = auto()
    READY = auto()
    REVOKING = auto()
    LEAVING = auto()
    GONE = auto()


class Event(Enum):
    """Events that move a holding to its next phase."""

    LOAD = auto()
    ANNOUNCE = auto()
    BEGIN = auto()
    LET_GO = auto()
    WITHDRAW = auto()
    END = auto()


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.LOADING, Event.LOAD): Phase.LOADED,
    (Phase.LOADED, Event.ANNOUNCE): Phase.ASSIGNED,
    (Phase.ASSIGNED, Event.BEGIN): Phase.READY,
    (Phase.LOADING, Event.LET_GO): Phase.LEAVING,
    (Phase.LOADED, Event.LET_GO): Phase.LEAVING,
    (Phase.ASSIGNED, Event.LET_GO): Phase.REVOKING,
    (Phase.READY, Event.LET_GO): Phase.REVOKING,
    (Phase.REVOKING, Event.WITHDRAW): Phase.LEAVING,
    (Phase.LOADING, Event.END): Phase.GONE,
    (Phase.LOADED, Event.END): Phase.GONE,
    (Phase.ASSIGNED, Event.END): Phase.GONE,
    (Phase.READY, Event.END): Phase.GONE,
    (Phase.REVOKING, Event.END): Phase.GONE,
    (Phase.LEAVING, Event.END): Phase.GONE,
}
_KEPT = frozenset({Phase.LOADING, Phase.LOADED, Phase.ASSIGNED, Phase.READY})
_WITH_PROGRAM = frozenset({Phase.ASSIGNED, Phase.READY, Phase.REVOKING})


class Start(Enum):
    """Why a holding began at its start position."""

    COMMITTED = auto()
    """At the committed offset."""
    CHOSEN = auto()
    """No offset was committed, so the start rule, or the program, chose the start. This start is
    committed too, so that the partition's next holder does not begin later.
    """
    UNCHOSEN = auto()
    """No offset was committed, and with start="error" the program must seek first."""


class OpenTransaction(Protocol):
    """A transaction in which offsets of this member are staged."""

    def condemn(self, error: LedgerMQError) -> None:
        """Make it abort, because its partition is let go; it was not decided yet. Returns at once."""
        ...


class Holding:
    """Use `advance` to move it to its next phase.

    `changed` is called when the program has finished a message. `roll_back(holding, offset,
    delay_s)` is called when the program wants an offset, and all later ones, again. `wait(delay_s)`
    returns the time of the loop's clock after a delay, at which the reader is woken. `base`: see
    `Handout`.
    """

    def __init__(
        self,
        given: GivenPartition,
        changed: Callable[[Holding], None],
        roll_back: Callable[[Holding, int, float], None],
        refusals: Refusals = Refusals(),  # noqa: B008  immutable
        wait: Callable[[float], float] = lambda delay_s: delay_s,
        base: type[GroupMessage] | None = None,
    ) -> None:
        self.given = given
        self._base = base
        self._refusals = refusals
        self._wait = wait
        self._nacks: tuple[int, int] = (-1, 0)
        self._held_up_since_s: float | None = None
        self.moves = Moves()
        self.waiting = Waiting(self._waits)
        self._changed = changed
        self._roll_back = roll_back
        self.phase = Phase.LOADING
        self.start = Start.COMMITTED
        self.progress = Progress(0)
        self.reading: Reading | None = None
        """Set from phase LOADED on."""
        self.committed = 0
        """The offset that the store is known to have, or the start if it had none."""
        self.committed_metadata = ""
        self.stored = False
        """Whether the store has `committed`."""
        self.refused: LedgerMQError | None = None
        """Why the store refuses all commits under this epoch."""
        self.paused_by_program = False
        self.answered = False
        """Whether the program has acknowledged or refused any of its messages."""
        self.transaction: OpenTransaction | None = None
        """The open transaction that commits the partition's offset. Until it has ended, no other offset is
        committed, and the partition is not let go (design X14).
        """
        self._counter = 0
        self._handout: Handout | None = None

    # -- phase

    def advance(self, event: Event) -> None:
        """Move to the next phase. Raises IllegalTransition."""
        self.phase = next_state(TRANSITIONS, self.phase, event, self.partition)

    @property
    def kept(self) -> bool:
        """Return whether this member may continue to hold it: it is neither being let go nor gone."""
        return self.phase in _KEPT

    @property
    def gone(self) -> bool:
        return self.phase is Phase.GONE

    @property
    def with_program(self) -> bool:
        """Return whether on_assigned was called with it, and neither on_revoked nor on_lost since."""
        return self.phase in _WITH_PROGRAM

    def load(self, position: int, stored: StoredOffset | None, start: Start = Start.COMMITTED) -> None:
        """Set where to begin. `stored`: the stored offset, None if there is none."""
        self.advance(Event.LOAD)
        self.start = start
        self.progress = Progress(position)
        self.committed = position
        self.stored = stored is not None
        self.committed_metadata = "" if stored is None else stored.metadata

    # -- offsets

    @property
    def partition(self) -> TopicPartition:
        return self.given.partition

    @property
    def topic_id(self) -> int:
        return self.given.topic_id

    @property
    def position(self) -> int:
        """Return the next offset to return to the program."""
        return self.progress.handed

    @property
    def outstanding(self) -> int:
        """Return the number of messages that the program still has."""
        return 0 if self.reading is None else self.progress.outstanding

    @property
    def busy(self) -> bool:
        """Return whether it waits for the program: for messages, or for the end of a transaction."""
        return not self.gone and bool(self.outstanding or self.transaction is not None)

    @property
    def to_commit(self) -> int | None:
        """Return the offset that is worth a commit; None: there is none."""
        if self.reading is None or self.gone or self.refused is not None:
            return None
        if self.start is Start.CHOSEN and not self.stored:
            return self.progress.finished  # at least the start: the first attempt to commit it may have failed
        return self.progress.finished if self.progress.finished > self.committed else None

    def next_entry(self, offset: int, metadata: str) -> OffsetEntry:
        self._counter += 1
        return OffsetEntry(self.given, self._counter, offset, metadata)

    def committed_in_transaction(self, offset: int, metadata: str) -> None:
        """Note that its transaction has committed this offset: the messages below it are finished."""
        if not self.gone:
            self.committed, self.committed_metadata, self.stored = offset, metadata, True
            self.progress.finish_through(offset)

    def rewind(self) -> int | None:
        """Return to the first message that is not finished: those returned since will be
        delivered again. Return its offset; None: its messages are no longer delivered here.
        """
        if self.gone or self.reading is None or self.start is Start.UNCHOSEN:
            return None
        self.move(self.progress.finished)
        return self.progress.finished if self.kept else None

    def move(self, position: int) -> None:
        """Continue at `position`: acknowledgements of earlier messages no longer count."""
        self.progress.move(position)
        self.moves.remove_from(position)
        self.waiting.clear()

    def moved(self, offset: int, metadata: str) -> None:
        """Note that the failed messages below this offset were moved, and the offset committed."""
        if offset > self.committed:
            self.committed, self.committed_metadata, self.stored = offset, metadata, True
        self.moves.remove_below(offset)
        self._changed(self)

    @property
    def is_full(self) -> bool:
        """Return whether it holds so many failed messages that its reading must wait."""
        count = len(self.moves) + self.progress.refused
        size = self.moves.bytes + self.waiting.bytes
        return bool(count) and (count >= self._refusals.held_max or size >= self._refusals.held_bytes_max)

    def take_again(self, now_s: float) -> GroupMessage | None:
        """Return a refused message that is due, for the program."""
        message = self.waiting.take(now_s)
        if message is None:
            return None
        self.progress.return_again(message.offset)
        return made_as(self.handout().kind, message)

    def hold(self, message: GroupMessage, delay_s: float) -> None:
        """Hold a message that was read before its time, and return it to the program after a delay."""
        if self.kept and self.progress.refuse(message.offset, message.handout.generation):
            self.waiting.add(message, self._wait(delay_s))
            self._changed(self)

    def carry(self, now_s: float) -> None:
        """Move copies that wait for their time to the end of the retry topic, if what is finished behind
        them has not been committed for long because of them.
        """
        moves = self._refusals.moves
        if moves is None or not self.progress.acked_ahead or self.waiting.next_due_s is None:
            self._held_up_since_s = None
        elif self._held_up_since_s is None:
            self._held_up_since_s = now_s
        elif self.kept and now_s - self._held_up_since_s >= CARRY_AFTER_S:
            self._held_up_since_s = None
            for offset in self.progress.held_up_by(self.waiting.holds):
                self.moves.add(offset, moves.carried(self.waiting.remove(offset)))
                self.progress.ack(offset, self.progress.generation)

    # -- messages that have expired

    @property
    def keeps_expired(self) -> bool:
        """Return whether they go to the dead-letter topic."""
        return self._refusals.moves is not None and self._refusals.moves.keeps_expired

    def expire(self, message: GroupMessage, generation: int) -> bool:
        """Finish a message that was handed out, in place of the program."""
        offset = message.offset
        if self.gone or self.progress.is_finished(offset) or not self.progress.counts(offset, generation):
            return False
        if self._refusals.moves is not None and self.keeps_expired:
            self.moves.add(offset, self._refusals.moves.expired(message))
        self.progress.ack(offset, generation)
        self._changed(self)
        return True

    def _waits(self, offset: int) -> bool:
        return self.progress.waits(offset)

    # -- what the program says of messages

    def handout(self) -> Handout:
        """Return the state that messages share that are returned now."""
        if self._handout is None or self._handout.generation != self.progress.generation:
            self._handout = Handout(self, self.progress.generation, self._base)
        return self._handout

    def ack(self, offset: int, generation: int) -> bool:
        self.answered = True
        if self.gone or not self.progress.ack(offset, generation):
            return False
        self._changed(self)
        return True

    def nack(self, message: GroupMessage, generation: int, delay_s: float | None) -> bool:
        offset = message.offset
        if self._refusals.moves is not None:
            move = self._refusals.moves.move(message, "the program refused the message", delay_s)
            return self._add_move(message, generation, move)
        if self._refusals.in_order is not None:
            count = self._nacks[1] + 1 if self._nacks[0] == offset else 1
            if not self.roll_back(offset, generation, self._refusals.in_order(count) if delay_s is None else delay_s):
                return False
            self._nacks = offset, count
            return True
        self.answered = True
        if self.gone or not self.progress.refuse(offset, generation):
            return False
        if self.kept:
            self.waiting.add(message, self._wait(delay_s or 0.0))
        self._changed(self)
        return True

    def check_dead_letters(self) -> None:
        if self._refusals.moves is None:
            raise no_dead_letters()

    def fail(self, message: GroupMessage, generation: int, error: str, *, dead: bool) -> bool:
        if self._refusals.moves is None:
            raise no_dead_letters()
        return self._add_move(message, generation, self._refusals.moves.move(message, error, dead=dead))

    def _add_move(self, message: GroupMessage, generation: int, move: Move) -> bool:
        self.answered = True
        offset = message.offset
        if self.gone or self.progress.is_finished(offset) or not self.progress.counts(offset, generation):
            return False
        self.moves.add(offset, move)
        return self.ack(offset, generation)

    def roll_back(self, offset: int, generation: int, delay_s: float) -> bool:
        self.answered = True
        if self.gone or not self.progress.roll_back(offset, generation):
            return False
        self.moves.remove_from(offset)
        self.waiting.remove_from(offset)
        if self.kept:
            self._roll_back(self, offset, delay_s)
        else:
            self._changed(self)
        return True

    def is_finished(self, offset: int) -> bool:
        return self.progress.is_finished(offset)

    def give_back(self, offset: int, generation: int) -> None:
        self.progress.give_back(offset, generation)
        self._changed(self)

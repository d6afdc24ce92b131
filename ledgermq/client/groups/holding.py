"""A partition as this member holds it, under one epoch: from the moment that it was given until it
was let go, lost, or given anew.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.client.consuming.reading import Reading
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.message import Handout
from ledgermq.client.groups.offset_store import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.client.groups.progress import Progress
from ledgermq.errors import LedgerMQError


class Holding:
    """`progress` and `reading` are there once its offset was loaded. `changed` is called when the
    program has finished something.

    `roll_back(holding, offset, delay_s)` is called when the program wants an offset, and what
    follows, again.
    """

    def __init__(
        self,
        given: GivenPartition,
        changed: Callable[[Holding], None],
        roll_back: Callable[[Holding, int, float], None],
    ) -> None:
        self.given = given
        self._changed = changed
        self._roll_back = roll_back
        self.progress = Progress(0)
        self.reading: Reading | None = None
        self.committed = 0
        """What the store is known to have, or where this member began where it had nothing."""
        self.committed_metadata = ""
        self.stored = False
        """The store has `committed`."""
        self.refused: LedgerMQError | None = None
        """Why commits are of no use any more under this epoch."""
        self.told = False
        """`on_assigned` was called for it."""
        self.ready = False
        """`on_assigned` has returned: it is read."""
        self.pin = False
        """Where it began has to be committed."""
        self.letting_go = False
        self.gone = False
        self.start_unknown = False
        """Nothing is committed, and the settings say that the program has to seek."""
        self.paused_by_program = False
        self.answered = False
        """The program has acknowledged or refused something of it."""
        self._counter = 0
        self._handout: Handout | None = None

    @property
    def partition(self) -> TopicPartition:
        return self.given.partition

    @property
    def name(self) -> str:
        return f"{self.partition.topic}/{self.partition.partition}"

    @property
    def position(self) -> int:
        """The next offset to hand out."""
        return self.progress.handed

    @property
    def outstanding(self) -> int:
        return 0 if self.reading is None else self.progress.outstanding

    @property
    def to_commit(self) -> int | None:
        """The offset that is worth a commit; None: nothing is."""
        if self.reading is None or self.gone or self.refused is not None:
            return None
        if self.pin and not self.stored:
            return self.progress.finished  # where it began, if nothing more: the first attempt may have failed
        return self.progress.finished if self.progress.finished > self.committed else None

    def begin(self, position: int, stored: StoredOffset | None) -> None:
        self.progress = Progress(position)
        self.committed = position
        self.stored = stored is not None
        self.committed_metadata = "" if stored is None else stored.metadata

    def handout(self) -> Handout:
        """For messages that are handed out now."""
        if self._handout is None or self._handout.generation != self.progress.generation:
            self._handout = Handout(self, self.progress.generation)
        return self._handout

    def next_entry(self, offset: int, metadata: str) -> OffsetEntry:
        self._counter += 1
        return OffsetEntry(self.given, self._counter, offset, metadata)

    def ack(self, offset: int, generation: int) -> bool:
        self.answered = True
        if self.gone or not self.progress.ack(offset, generation):
            return False
        self._changed(self)
        return True

    def nack(self, offset: int, generation: int, delay_s: float) -> bool:
        self.answered = True
        if self.gone or not self.progress.roll_back(offset, generation):
            return False
        if self.letting_go:
            self._changed(self)
        else:
            self._roll_back(self, offset, delay_s)
        return True

    def is_finished(self, offset: int) -> bool:
        return self.progress.is_finished(offset)

    def give_back(self, offset: int, generation: int) -> None:
        self.progress.give_back(offset, generation)
        self._changed(self)

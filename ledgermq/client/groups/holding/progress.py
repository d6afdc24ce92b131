"""Track a program's progress in one partition: which messages it received, which of them it
finished, and so which offset may be committed. Pure.

Invariants: `finished` <= `handed`. Every message below `finished` was finished, in whatever order
messages were acknowledged, so `finished` may be committed. After a roll-back or a move, no
acknowledgement of an earlier delivery counts for messages that are delivered again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet


class Progress:
    """`generation` of a message: the one in force when it was returned to the program."""

    __slots__ = (
        "_acked",
        "_ends",
        "_given_back",
        "_jumps",
        "_refused",
        "_returned",
        "finished",
        "generation",
        "handed",
    )

    def __init__(self, position: int) -> None:
        self.finished = position
        """Everything below it is finished: the offset to commit."""
        self.handed = position
        """The next offset to return to the program."""
        self.generation = 0
        self._acked: set[int] = set()
        self._given_back: set[int] = set()
        self._jumps: dict[int, int] = {}
        """Begin and end of ranges without messages (cleaned, deleted before they were read, or skipped),
        ascending.
        """
        self._refused: dict[int, int] = {}
        """By offset of each refused message that is not finished: the oldest generation that counts. It
        waits if it is also in `_given_back`; otherwise it was returned again.
        """
        self._returned = position
        """Offset below which `finish_returned` has finished what was returned and not refused."""
        self._ends: list[tuple[int, int]] = []
        """(generation, offset): messages of this generation or an older one no longer count from
        this offset on. Both ascend.
        """

    @property
    def outstanding(self) -> int:
        """Return the number of messages that the program still has: neither finished nor given
        back.
        """
        gaps = sum(end - begin for begin, end in self._jumps.items())
        return self.handed - self.finished - len(self._acked) - len(self._given_back) - gaps

    @property
    def acked_ahead(self) -> int:
        """Return the number of acknowledged messages that wait for an earlier one."""
        return len(self._acked)

    @property
    def refused(self) -> int:
        """Return the number of messages that were refused, and are not finished since."""
        return len(self._refused)

    def hand_out(self, first: int, end: int) -> None:
        """Note that offsets `first` to `end` - 1 were returned. `first` is at or above `handed`."""
        assert self.handed <= first < end, f"{first} to {end} after {self.handed}"
        if first > self.handed:
            self._jumps[self.handed] = first
            self._advance()
        self.handed = end

    def skip(self, first: int, end: int) -> None:
        """Note that offsets `first` to `end` - 1 are not returned. `first` is at or above `handed`."""
        assert self.handed <= first < end, f"{first} to {end} after {self.handed}"
        begin = next(reversed(self._jumps), self.handed)
        if self._jumps.get(begin) != self.handed or begin < self._returned:
            begin = self.handed  # otherwise it extends the range before it
        self._jumps[begin] = self.handed = end
        self._advance()

    def past_gaps(self, offset: int) -> int:
        """Return the offset, or the end of the range without messages that begins there."""
        while offset in self._jumps:
            offset = self._jumps[offset]
        return offset

    def ack(self, offset: int, generation: int) -> bool:
        """Finish one message. Return False if it does not count, because it will be delivered
        again.
        """
        if offset < self.finished:
            return True
        if offset >= self.handed or self._is_over(offset, generation):
            return False
        self._refused.pop(offset, None)
        if offset == self.finished and not (self._acked or self._given_back or self._jumps):
            self.finished += 1
        else:
            self._acked.add(offset)
            self._given_back.discard(offset)
            self._advance()
        return True

    def give_back(self, offset: int, generation: int) -> None:
        """Note that the program will not finish this message; its next reader will."""
        if (
            self.finished <= offset < self.handed
            and offset not in self._acked
            and not self._is_over(offset, generation)
        ):
            self._given_back.add(offset)

    def refuse(self, offset: int, generation: int) -> bool:
        """Note that one message will be returned again. Return False if it is finished, or of an earlier
        delivery.
        """
        if self._is_over(offset, generation) or not self.finished <= offset < self.handed or offset in self._acked:
            return False
        self.generation += 1
        self._refused[offset] = self.generation
        self._given_back.add(offset)
        return True

    def waits(self, offset: int) -> bool:
        """Return whether this message was refused, and not returned again since."""
        return offset in self._refused and offset in self._given_back

    def held_up_by(self, waits: Callable[[int], bool]) -> list[int]:
        """Return the messages for which `waits` is true, and that alone keep finished messages above them
        from being committed.
        """
        found: list[int] = []
        waiting: list[int] = []
        offset = self.finished
        while offset < self.handed:
            if offset in self._jumps:
                offset = self._jumps[offset]
                continue
            if offset in self._acked:
                found += waiting
                waiting.clear()
            elif waits(offset):
                waiting.append(offset)
            else:
                break
            offset += 1
        return found

    def return_again(self, offset: int) -> None:
        """Note that a refused message was returned to the program again."""
        self._given_back.discard(offset)

    def finish_returned(self) -> None:
        """Finish all messages that were returned and do not wait."""
        if not self._refused:
            self.finish_through(self.handed)
            return
        offset = max(self.finished, self._returned)
        while offset < self.handed:
            if offset in self._jumps:
                offset = self._jumps[offset]
                continue
            if offset not in self._given_back:
                self._acked.add(offset)
            offset += 1
        self._acked.update(offset for offset in self._refused if offset not in self._given_back)
        self._returned = self.handed
        self._advance()
        self._forget_refused(self._acked)

    def _forget_refused(self, finished: AbstractSet[int] = frozenset()) -> None:
        if self._refused:
            kept = {at: least for at, least in self._refused.items() if at >= self.finished and at not in finished}
            self._refused = kept

    def finish_through(self, offset: int) -> None:
        """Finish all messages that were returned below `offset`."""
        offset = min(offset, self.handed)
        if offset > self.finished:
            self.finished = offset
            if self._acked or self._jumps or self._given_back:
                self._acked = {each for each in self._acked if each >= offset}
                self._given_back = {each for each in self._given_back if each >= offset}
                self._jumps = {max(begin, offset): end for begin, end in self._jumps.items() if end > offset}
                self._advance()
            self._forget_refused()

    def is_finished(self, offset: int) -> bool:
        return offset < self.finished or offset in self._acked

    def counts(self, offset: int, generation: int) -> bool:
        """Return whether the message was returned, and will not be delivered again."""
        return offset < self.handed and not self._is_over(offset, generation)

    def roll_back(self, offset: int, generation: int) -> bool:
        """Deliver everything from `offset` on again.

        Return False if that message is finished, or of an earlier delivery.
        """
        if self._is_over(offset, generation) or not self.finished <= offset < self.handed or offset in self._acked:
            return False
        self._end_generation(offset)
        self.handed = offset
        self._acked = {each for each in self._acked if each < offset}
        self._given_back = {each for each in self._given_back if each < offset}
        self._jumps = {begin: min(end, offset) for begin, end in self._jumps.items() if begin < offset}
        self._refused = {each: least for each, least in self._refused.items() if each < offset}
        self._returned = min(self._returned, offset)
        return True

    def move(self, position: int) -> None:
        """Continue at `position`: acknowledgements of earlier messages no longer count."""
        self._end_generation(0)
        self.finished = self.handed = self._returned = position
        self._acked.clear()
        self._refused.clear()
        self._given_back.clear()
        self._jumps.clear()

    def _advance(self) -> None:
        finished = self.finished
        while True:
            if finished in self._acked:
                self._acked.remove(finished)
                finished += 1
            elif finished in self._jumps:
                finished = self._jumps.pop(finished)
            else:
                break
        self.finished = finished

    def _end_generation(self, offset: int) -> None:
        """Note that messages of this generation end at `offset`.

        Keep only what `_is_over` needs: an end at or above a later one adds no information.
        """
        while self._ends and self._ends[-1][1] >= offset:
            self._ends.pop()
        below = [end for end in self._ends if end[1] <= self.finished]
        if len(below) > 1:
            self._ends = [(below[-1][0], below[-1][1]), *self._ends[len(below) :]]
        self._ends.append((self.generation, offset))
        self.generation += 1

    def _is_over(self, offset: int, generation: int) -> bool:
        if self._refused and generation < self._refused.get(offset, 0):
            return True
        return bool(self._ends) and any(generation <= ended and offset >= begin for ended, begin in self._ends)

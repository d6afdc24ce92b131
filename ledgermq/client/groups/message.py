"""Messages of a group: they know under which handing out they came, so that a late answer to them
cannot count for somebody else's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from ledgermq.client.consuming.message import Message
from ledgermq.client.home import Home


class Answers(Protocol):
    """Who hears what the program says of a message. Called in the consumer's own thread."""

    def ack(self, offset: int, generation: int) -> bool: ...

    def nack(self, offset: int, generation: int, delay_s: float) -> bool: ...

    def give_back(self, offset: int, generation: int) -> None: ...

    def is_finished(self, offset: int) -> bool: ...


class Handout:
    """What the messages of one partition, handed out between two moves of it, share. Usable from
    any thread.

    `kind` is their class, made for them: what they share costs nothing for each of them, where an
    attribute of each would take longer to set than the rest of the message to make.
    """

    __slots__ = ("_answers", "_home", "_loop", "_thread", "generation", "kind")

    def __init__(self, answers: Answers, generation: int) -> None:
        self.kind: type[GroupMessage] = type("GroupMessage", (GroupMessage,), {"__slots__": (), "handout": self})
        self._answers = answers
        self.generation = generation
        self._home = Home()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def ack(self, offset: int) -> bool:
        self._home.check_process()
        if threading.get_ident() == self._thread:
            return self._answers.ack(offset, self.generation)
        return self._from_elsewhere(lambda: self._answers.ack(offset, self.generation))

    def nack(self, offset: int, delay_s: float) -> bool:
        self._home.check_process()
        if threading.get_ident() == self._thread:
            return self._answers.nack(offset, self.generation, delay_s)
        return self._from_elsewhere(lambda: self._answers.nack(offset, self.generation, delay_s))

    def is_finished(self, offset: int) -> bool:
        """The program has acknowledged it. Called in the consumer's own thread."""
        return self._answers.is_finished(offset)

    def give_back(self, offset: int) -> None:
        self._answers.give_back(offset, self.generation)

    def _from_elsewhere(self, answer: Callable[[], bool]) -> bool:
        """Another thread is not told whether it counts."""
        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the loop is closed: with it the consumer has ended
            return False
        return True


class GroupMessage(Message):
    """A message that a group's member was handed.

    Equal to the plain `Message` of the same content.
    """

    __slots__ = ()
    handout: ClassVar[Handout]

    def ack(self) -> bool:
        """The program is done with it. In any order: committed is only what has no gap before it.

        False: it no longer counts, for the partition has gone to another member, or the message
        will come again. Callable from any thread.
        """
        return self.handout.ack(self.offset)

    def nack(self, delay: float = 0.0) -> bool:
        """The program could not do it: after `delay` seconds this message, and all of its partition
        behind it, come again.

        What was acknowledged behind it is forgotten. False: it no longer counts (see `ack`), or it
        is finished already.
        """
        return self.handout.nack(self.offset, max(0.0, delay))

    def __reduce__(self) -> tuple[Callable[[Iterable[Any]], Message], tuple[tuple[Any, ...]]]:
        """Another process gets the plain message."""
        return Message._make, (tuple(self),)

"""The member of examples/protocol with one planted fault: FAULT TASK ADDRESS …"""

from __future__ import annotations

import sys

import examples.protocol.minimal_member as minimal
from examples.protocol.minimal_member import Held, Member
from ledgermq.protocol import ledgermq_pb2 as pb


class StaysOn(Member):
    """It ends without leaving its group."""

    def heartbeat(self, step: pb.GroupStep, wait_ms: int) -> None:
        if step != pb.LEAVE:
            super().heartbeat(step, wait_ms)


class ForgetsEpochs(Member):
    """It does not say which answer it has seen."""

    def heartbeat(self, step: pb.GroupStep, wait_ms: int) -> None:
        self._epoch = 0
        super().heartbeat(step, wait_ms)


class CommitsFirst(Member):
    """Its commits have one counter."""

    def commit(self, held: Held) -> None:
        self._counter = 0
        super().commit(held)


class CommitsNothing(Member):
    """It reads, and commits nothing."""

    def commit(self, held: Held) -> None:
        held.finished = held.next


class BeginsAnew(Member):
    """It begins at the earliest offset, whatever is committed."""

    def begin(self, given: pb.GivenPartition) -> Held:
        return Held(given, 0, 0)


class KeepsAll(Member):
    """It goes on reading, and reporting, what was taken from it."""

    def heartbeat(self, step: pb.GroupStep, wait_ms: int) -> None:
        before = self._held
        super().heartbeat(step, wait_ms)
        self._held = before | self._held


if __name__ == "__main__":
    minimal.Member = {kind.__name__: kind for kind in Member.__subclasses__()}[sys.argv[1]]  # type: ignore[misc]
    minimal.main(*sys.argv[2:])

"""The member of plain_queue.py with one planted fault: FAULT queue ADDRESS …"""

from __future__ import annotations

import sys

from ledgermq.protocol import ledgermq_pb2 as pb
from tests.conformance.plain_queue import QueueMember, main


class SaysNothing(QueueMember):
    """It prints messages, and says nothing about them."""

    def answer(self, leased: pb.LeasedPartition) -> None:
        pass


class TakesWholeBatches(QueueMember):
    """It takes all messages of a batch as leased."""

    def messages(self, leased: pb.LeasedPartition, payload: bytes) -> list[tuple[int, bytes]]:
        every = pb.LeasedPartition()
        every.CopyFrom(leased)
        every.ranges.add(first=0, last=2**32)
        return super().messages(every, payload)


class FinishesWholeBatches(QueueMember):
    """It accepts all messages of a batch, leased or not."""

    def spans(self, leased: pb.LeasedPartition) -> list[pb.SharedSpan]:
        first = leased.batches[0].base_offset
        last = leased.batches[-1].base_offset + leased.batches[-1].record_count - 1
        lease = {"epoch": leased.epoch, "lease": leased.lease, "word": pb.ACCEPT}
        return [pb.SharedSpan(first=first, last=last, **lease)]


class ForgetsLeases(QueueMember):
    """It does not say under which lease it answers."""

    def spans(self, leased: pb.LeasedPartition) -> list[pb.SharedSpan]:
        return [pb.SharedSpan(first=given.first, last=given.last, word=pb.ACCEPT) for given in leased.ranges]


class ChangesItsMind(QueueMember):
    """It gives messages back that it has accepted."""

    def answer(self, leased: pb.LeasedPartition) -> None:
        super().answer(leased)
        accepted = self.spans
        self.spans = lambda leased: [  # type: ignore[method-assign]
            pb.SharedSpan(first=each.first, last=each.last, epoch=each.epoch, lease=each.lease, word=pb.RETURN)
            for each in accepted(leased)
        ]
        super().answer(leased)
        self.spans = accepted  # type: ignore[method-assign]


class HasNoId(QueueMember):
    """It draws no id."""

    def work(self, partition: int) -> None:
        self._id = ""
        super().work(partition)


class AnswersOnce(QueueMember):
    """It does not repeat an answer that was lost."""

    def answer(self, leased: pb.LeasedPartition) -> None:
        said = pb.SharePartitionAnswer(topic=self._topic, partition=leased.partition, spans=self.spans(leased))
        request = pb.ShareAnswerRequest(group=self._group, member_id=self._id, partitions=[said])
        place = (self._topic, leased.partition)
        address = self._client._owners.get(place, self._client._first)
        try:
            self._client._call(address, "ShareAnswer", request, pb.ShareAnswerResponse)
        except Exception:
            pass


if __name__ == "__main__":
    main(*sys.argv[2:], kind={kind.__name__: kind for kind in QueueMember.__subclasses__()}[sys.argv[1]])  # type: ignore[misc]

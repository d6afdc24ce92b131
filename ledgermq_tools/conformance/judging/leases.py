"""Judge how a client leases messages of queues and answers for them: pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb

LeaseId = tuple[str, str, int, int, int]
"""Group, topic, partition, epoch and lease."""


@dataclass(slots=True)
class _Lease:
    """`words`: by offset, the last word about the message; None: none yet."""

    words: dict[int, int | None] = field(default_factory=dict)


class Leases:
    """`find`: takes what a client did wrong."""

    def __init__(self, find: Callable[[str], None]) -> None:
        self._find = find
        self._leases: dict[LeaseId, _Lease] = {}

    @property
    def unanswered(self) -> int:
        """Return how many leased messages the client has neither finished nor given back."""
        return sum(word in (None, pb.RENEW) for lease in self._leases.values() for word in lease.words.values())

    def asked(self, method: str, request: Any) -> None:
        if method in ("ShareFetch", "ShareAnswer") and not request.member_id:
            self._find(f"queue group {request.group}: a member draws an id for itself, and sends it with each call")
        if method != "ShareAnswer":
            return
        for partition in request.partitions:
            for span in partition.spans:
                self._judge_span(request.group, partition, span)

    def answered(self, method: str, request: Any, answer: Any) -> None:
        if method != "ShareFetch":
            return
        for partition in answer.header.partitions:
            if partition.ranges:
                key = (request.group, partition.topic, partition.partition, partition.epoch, partition.lease)
                words = self._leases.setdefault(key, _Lease()).words
                for leased in partition.ranges:
                    words.update(dict.fromkeys(range(leased.first, leased.last + 1)))

    def _judge_span(self, group: str, partition: pb.SharePartitionAnswer, span: pb.SharedSpan) -> None:
        where = f"{partition.topic}-{partition.partition}"
        lease = self._leases.get((group, partition.topic, partition.partition, span.epoch, span.lease))
        if lease is None:
            self._find(
                f"{where}: answered under lease {span.lease} of epoch {span.epoch}, which no answer of ShareFetch"
                " has named"
            )
            return
        for offset in range(span.first, span.last + 1):
            if offset not in lease.words:
                self._find(f"{where}: answered for a message that is not leased to it, offset {offset}")
                return
            former = lease.words[offset]
            if former not in (None, pb.RENEW, span.word):
                self._find(
                    f"{where}: said {pb.ShareWord.Name(span.word)} of offset {offset}, after"
                    f" {pb.ShareWord.Name(former)} under the same lease"
                )
                return
            lease.words[offset] = span.word

"""A member of a consumer group without the SDK, as one loop: what docs/protocol.md calls level 3.

    python -m examples.protocol.minimal_member member localhost:9650 orders my-group

It prints partition, offset and value of each record, until its standard input ends. Its other tasks are those of
minimal_client.py.
"""

from __future__ import annotations

import secrets
import sys
import threading
from dataclasses import dataclass

from examples.protocol import minimal_client
from examples.protocol.minimal_client import MinimalClient, Refused
from ledgermq.protocol import ledgermq_pb2 as pb

IDLE_MS = 200
"""The coordinator holds a heartbeat for so long, while there is nothing to read."""


@dataclass
class Held:
    """A partition of the member. `next`: offset to read from; `finished`: committed up to here."""

    given: pb.GivenPartition
    next: int
    finished: int


class Member:
    def __init__(self, client: MinimalClient, group: str, topic: str) -> None:
        self._client, self._group, self._topic = client, group, topic
        self._place = f"group {group}"
        self._id = secrets.token_hex(16)
        self._held: dict[int, Held] = {}
        self._epoch = 0  # group_epoch of the last answer
        self._counter = 0  # of commits; it only grows

    def run(self, ended: threading.Event) -> None:
        step, wait_ms = pb.JOIN, 0
        while True:
            try:
                self.heartbeat(step, wait_ms)
            except Refused as refused:
                if refused.code != "UNKNOWN_MEMBER":
                    raise
                self._held, self._epoch, step = {}, 0, pb.JOIN  # removed: join again, owning nothing
                continue
            wait_ms = 0 if self.read() else IDLE_MS
            step = pb.STAY
            for held in list(self._held.values()):
                self.commit(held)
            if ended.is_set():
                self.heartbeat(pb.LEAVE, 0)
                return

    def heartbeat(self, step: pb.GroupStep, wait_ms: int) -> None:
        """Report what the member holds, and take what it is given. All that it gives back is committed already."""
        request = pb.GroupHeartbeatRequest(
            group=self._group,
            member_id=self._id,
            step=step,
            seen_epoch=self._epoch,
            max_wait_ms=wait_ms,
            owned=[held.given for held in self._held.values()],
        )
        if step == pb.JOIN:
            request.subscription.topics.append(self._topic)
        answer = self._client.retry(self._place, 0, "GroupHeartbeat", request, pb.GroupHeartbeatResponse)
        if step != pb.LEAVE:
            self._epoch = answer.group_epoch
            self._held = {given.partition: self.taken(given) for given in answer.assigned}

    def taken(self, given: pb.GivenPartition) -> Held:
        had = self._held.get(given.partition)
        return had if had is not None and had.given.epoch == given.epoch else self.begin(given)

    def begin(self, given: pb.GivenPartition) -> Held:
        """Find where to read: at the committed offset, or at the beginning."""
        place = pb.TopicPartition(topic=given.topic, partition=given.partition)
        asked = pb.FetchCommittedRequest(group=self._group, partitions=[place])
        found = self._client.retry(self._place, 0, "FetchCommitted", asked, pb.FetchCommittedResponse).partitions[0]
        if found.HasField("offset"):
            return Held(given, found.offset, found.offset)
        query = pb.OffsetQuery(topic=given.topic, partition=given.partition, earliest=True)
        request = pb.ListOffsetsRequest(queries=[query])
        answer = self._client.retry(given.topic, given.partition, "ListOffsets", request, pb.ListOffsetsResponse)
        return Held(given, answer.results[0].offset, 0)

    def read(self) -> bool:
        """Print what is there in each partition; return whether there was something."""
        is_any = False
        for held in self._held.values():
            for offset, value in self._client.fetch(held.given.topic, held.given.partition, held.next):
                print(held.given.partition, offset, value.decode(), flush=True)
                held.next, is_any = offset + 1, True
        return is_any

    def commit(self, held: Held) -> None:
        if held.next <= held.finished:
            return
        self._counter += 1
        commit = pb.OffsetCommit(
            topic=held.given.topic,
            topic_id=held.given.topic_id,
            partition=held.given.partition,
            epoch=held.given.epoch,
            counter=self._counter,
            offset=held.next,
        )
        request = pb.CommitOffsetsRequest(group=self._group, member_id=self._id, commits=[commit])
        try:
            self._client.retry(self._place, 0, "CommitOffsets", request, pb.CommitOffsetsResponse)
            held.finished = held.next
        except Refused as refused:
            if refused.code != "STALE_ASSIGNMENT":  # no longer the member's; the next answer takes it away
                raise


def main(task: str, address: str, topic: str, *asked: str) -> None:
    if task != "member":
        minimal_client.main(task, address, topic, *asked)
        return
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    Member(MinimalClient(address), asked[0], topic).run(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A member of a queue group without the SDK, one partition a call: level 4 of docs/protocol.md, as plain as it can be.

python -m tests.conformance.plain_queue queue ADDRESS TOPIC GROUP
"""

from __future__ import annotations

import secrets
import sys
import threading

from examples.protocol.minimal_client import MinimalClient, crc32c, records_of
from ledgermq.protocol import ledgermq_pb2 as pb

WAIT_MS = 50


class QueueMember:
    def __init__(self, client: MinimalClient, topic: str, group: str) -> None:
        self._client, self._topic, self._group = client, topic, group
        self._id = secrets.token_hex(16)

    def run(self, ended: threading.Event) -> None:
        wanted = pb.DescribeTopicsRequest(topics=[self._topic])
        told = self._client.retry(self._topic, 0, "DescribeTopics", wanted, pb.DescribeTopicsResponse)
        while not ended.is_set():
            for partition in range(len(told.topics[0].partitions)):
                self.work(partition)

    def work(self, partition: int) -> None:
        """Lease what is there, print it, and accept it."""
        wanted = pb.SharePartition(topic=self._topic, partition=partition)
        request = pb.ShareFetchRequest(
            group=self._group, member_id=self._id, partitions=[wanted], max_wait_ms=WAIT_MS, max_records=3
        )
        found = self._client.retry(self._topic, partition, "ShareFetch", request, pb.ShareFetchResponse)
        for leased in found.header.partitions:
            for offset, value in self.messages(leased, found.payload):
                print(partition, offset, value.decode(), flush=True)
            self.answer(leased)

    def messages(self, leased: pb.LeasedPartition, payload: bytes) -> list[tuple[int, bytes]]:
        """Return the messages that are leased; the batches may hold others."""
        found, at = [], 0
        for batch in leased.batches:
            data = payload[at : at + batch.length]
            assert crc32c(data) == batch.crc
            at += batch.length
            found += [(batch.base_offset + row, value) for row, value in records_of(data)]
        return [each for each in found if any(given.first <= each[0] <= given.last for given in leased.ranges)]

    def spans(self, leased: pb.LeasedPartition) -> list[pb.SharedSpan]:
        return [
            pb.SharedSpan(first=given.first, last=given.last, epoch=leased.epoch, lease=leased.lease, word=pb.ACCEPT)
            for given in leased.ranges
        ]

    def answer(self, leased: pb.LeasedPartition) -> None:
        """Say what became of them, and repeat it until there is an answer."""
        said = pb.SharePartitionAnswer(
            topic=self._topic, topic_id=leased.topic_id, partition=leased.partition, spans=self.spans(leased)
        )
        request = pb.ShareAnswerRequest(group=self._group, member_id=self._id, partitions=[said])
        self._client.retry(self._topic, leased.partition, "ShareAnswer", request, pb.ShareAnswerResponse)


def main(_task: str, address: str, topic: str, group: str, kind: type[QueueMember] = QueueMember) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    kind(MinimalClient(address), topic, group).run(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])

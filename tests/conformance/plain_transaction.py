"""Transactions without the SDK, one batch a call: level 5 of docs/protocol.md, as plain as it can be.

python -m tests.conformance.plain_transaction transaction ADDRESS ID OUTCOME TOPIC FIRST COUNT PARTITION…
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import grpc
from google.protobuf.message import Message

from examples.protocol.minimal_client import ANSWER_S, BATCH, M, MinimalClient, batch_of, crc32c
from ledgermq.protocol import ledgermq_pb2 as pb


class PlainClient(MinimalClient):
    """Its calls of Stage are streams of one request."""

    def _call(self, address: str, method: str, request: Message, answers: type[M]) -> M:
        if method != "Stage":
            return super()._call(address, method, request, answers)
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream(
                "/ledgermq.v1.Broker/Stage",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answers.FromString,
            )
            return next(call(iter([request]), timeout=ANSWER_S))  # type: ignore[no-any-return]


class Transaction:
    """The only one of its epoch."""

    def __init__(self, client: MinimalClient, name: str, topic: str) -> None:
        self._client, self._topic, self._place = client, topic, f"transaction {name}"
        request = pb.InitTransactionsRequest(transactional_id=name)
        begun = client.retry(self._place, 0, "InitTransactions", request, pb.InitTransactionsResponse)
        self._ref = pb.TransactionRef(
            transactional_id=name,
            coordinator=begun.coordinator,
            producer_id=begun.producer_id,
            epoch=begun.epoch,
            number=1,
        )
        self._sequences: Counter[int] = Counter()
        self._staged: defaultdict[tuple[int, int, int], int] = defaultdict(int)

    def stage(self, partition: int, values: list[bytes]) -> None:
        payload = batch_of(values)
        batch = pb.ProduceBatch(
            topic=self._topic,
            partition=partition,
            length=len(payload),
            crc=crc32c(payload),
            record_count=len(values),
            schema=1,
        )
        staged = pb.StageBatch(batch=batch, sequence=self._sequences[partition])
        request = pb.StageRequest(header=pb.StageHeader(transaction=self._ref, batches=[staged]), payload=payload)
        result = self._client.retry(self._topic, partition, "Stage", request, pb.StageResponse).results[0]
        self._sequences[partition] += 1
        self._staged[result.bundle, result.topic_id, partition] += 1

    def end(self, outcome: str) -> None:
        parts: dict[int, pb.TransactionPart] = {}
        for (bundle, topic_id, partition), batches in self._staged.items():
            part = parts.setdefault(bundle, pb.TransactionPart(bundle=bundle))
            part.counts.add(topic_id=topic_id, partition=partition, batches=batches)
        decided = pb.COMMITTED if outcome == "commit" else pb.ABORTED
        request = pb.EndTransactionRequest(transaction=self._ref, outcome=decided, parts=parts.values())
        answer = self._client.retry(self._place, 0, "EndTransaction", request, pb.EndTransactionResponse)
        assert answer.state == decided


def main(
    _task: str,
    address: str,
    name: str,
    outcome: str,
    topic: str,
    first: str,
    count: str,
    *partitions: str,
    kind: type[Transaction] = Transaction,
) -> None:
    transaction = kind(PlainClient(address), name, topic)
    for place, partition in enumerate(partitions):
        values = [b"%d" % (int(first) + row) for row in range(place, int(count), len(partitions))]
        for at in range(0, len(values), BATCH):
            transaction.stage(int(partition), values[at : at + BATCH])
    transaction.end(outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])

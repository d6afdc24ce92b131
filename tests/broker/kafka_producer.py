"""A transactional producer as clients of the Kafka protocol are: it looks for its coordinator, adds partitions and
groups before it uses them, and counts records of each partition over all transactions of its epoch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import add_offsets_to_txn_request as ao
from ledgermq_broker.kafka.wire.generated import add_partitions_to_txn_request as ap
from ledgermq_broker.kafka.wire.generated import end_txn_request as e
from ledgermq_broker.kafka.wire.generated import find_coordinator_request as fc
from ledgermq_broker.kafka.wire.generated import init_producer_id_request as i
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.generated import txn_offset_commit_request as tc
from ledgermq_broker.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.broker import kafka_members
from tests.broker.kafka_world import Ended, KafkaClient, KafkaCluster, batch_of

AGAIN = (
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.REQUEST_TIMED_OUT,
    Code.CONCURRENT_TRANSACTIONS,
)


class KafkaProducer:
    """`client`: to the only broker, if its caller has to prove who it is."""

    produce_version, offsets_version = 9, 3

    def __init__(self, cluster: KafkaCluster, transactional_id: str = "x", client: KafkaClient | None = None) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.id, self.epoch = -1, -1
        self.sequences: Counter[tuple[str, int]] = Counter()
        self._only = client
        self._clients: dict[str, KafkaClient] = {} if client is None else {client.address: client}

    def client(self, address: str) -> KafkaClient:
        known = self._clients.get(address)
        if known is None or known.is_over:
            known = self._clients[address] = self.cluster.connect(address)
        return known

    async def coordinator(self) -> KafkaClient:
        while True:
            request = fc.FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
            [found] = (
                await self.client(next(iter(self.cluster.brokers))).call(FIND_COORDINATOR, 4, request)
            ).coordinators
            named = f"{found.host.removesuffix('.example')}:1"
            if found.error_code == Code.NONE and named in self.cluster.brokers:
                return self.client(named)
            assert found.error_code in (Code.NONE, *AGAIN), found
            await asyncio.sleep(0.1)

    async def at_coordinator(self, api: Any, version: int, request: Any) -> Any:
        """Call until the answer is no "try again"."""
        async with asyncio.timeout(120):
            while True:
                try:
                    answer = await (await self.coordinator()).call(api, version, request)
                except Ended:
                    await asyncio.sleep(0.1)
                    continue
                if code_of(answer) not in AGAIN:
                    return answer
                await asyncio.sleep(0.1)

    async def init(self, timeout_ms: int = 60_000, *, version: int = 4, producer_id: int = -1, epoch: int = -1) -> Any:
        request = i.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = await self.at_coordinator(INIT_PRODUCER_ID, version, request)
        if not answer.error_code:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer

    def adding(self, *places: tuple[str, int]) -> ap.AddPartitionsToTxnRequest:
        return ap.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[ap.AddPartitionsToTxnTopic(topic, [number]) for topic, number in places],
        )

    async def add(self, *places: tuple[str, int], version: int = 3) -> int:
        return code_of(await self.at_coordinator(ADD_PARTITIONS_TO_TXN, version, self.adding(*places)))

    async def add_group(self, group: str) -> int:
        request = ao.AddOffsetsToTxnRequest(self.transactional_id, self.id, self.epoch, group)
        return code_of(await self.at_coordinator(ADD_OFFSETS_TO_TXN, 3, request))

    def batch(self, topic: str, partition: int, *values: bytes, sequence: int | None = None) -> bytes:
        return batch_of(
            *values,
            producer_id=self.id,
            epoch=self.epoch,
            sequence=self.sequences[topic, partition] if sequence is None else sequence,
            transactional=True,
        )

    async def send_once(self, topic: str, partition: int, batch: bytes, at: str = "") -> Any:
        data = [p.PartitionProduceData(index=partition, records=batch)]
        request = p.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[p.TopicProduceData(topic, partition_data=data)],
        )
        client = self.client(at or await self.cluster.owner_of(topic, partition))
        answer = await client.call(PRODUCE, self.produce_version, request)
        return answer.responses[0].partition_responses[0]

    async def send(self, topic: str, partition: int, *values: bytes) -> int:
        """Send a batch until the answer is no "try again"; return its code."""
        batch = self.batch(topic, partition, *values)
        async with asyncio.timeout(120):
            while True:
                try:
                    answer = await self.send_once(topic, partition, batch)
                except Ended:
                    await asyncio.sleep(0.1)
                    continue
                if answer.error_code not in AGAIN:
                    break
                await asyncio.sleep(0.1)
        if not answer.error_code:
            self.sequences[topic, partition] += len(values)
        return int(answer.error_code)

    async def send_offsets(
        self, group: str, offset: int, topic: str = "t", *, version: int | None = None, **member: Any
    ) -> int:
        version = self.offsets_version if version is None else version
        request = tc.TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.id,
            self.epoch,
            topics=[
                tc.TxnOffsetCommitRequestTopic(
                    topic, [tc.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
                )
            ],
            **member,
        )
        async with asyncio.timeout(120):
            while True:
                try:
                    client = self._only or await kafka_members.coordinator(self.cluster, group)
                    answer = await client.call(TXN_OFFSET_COMMIT, version, request)
                except Ended:
                    continue
                code = answer.topics[0].partitions[0].error_code
                if code not in AGAIN:
                    return int(code)
                await asyncio.sleep(0.1)

    def ending(self, committed: bool) -> e.EndTxnRequest:
        return e.EndTxnRequest(self.transactional_id, self.id, self.epoch, committed)

    async def end(self, *, commit: bool = True, version: int = 3) -> int:
        return code_of(await self.at_coordinator(END_TXN, version, self.ending(commit)))

    async def transaction(self, values: dict[tuple[str, int], bytes], *, commit: bool = True) -> None:
        """Do a whole transaction of one record for each place."""
        assert await self.add(*values) == 0
        for (topic, partition), value in values.items():
            assert await self.send(topic, partition, value) == 0
        assert await self.end(commit=commit) == 0


class SecondProducer(KafkaProducer):
    """It speaks the second protocol (KIP-890): it adds nothing itself, and takes its next epoch from each end."""

    produce_version, offsets_version = 12, 5

    async def end(self, *, commit: bool = True, version: int = 5) -> int:
        answer = await self.at_coordinator(END_TXN, version, self.ending(commit))
        if not answer.error_code:
            assert answer.producer_id >= 0
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)

    async def transaction(self, values: dict[tuple[str, int], bytes], *, commit: bool = True) -> None:
        for (topic, partition), value in values.items():
            assert await self.send(topic, partition, value) == 0
        assert await self.end(commit=commit) == 0


def code_of(answer: Any) -> int:
    topics = getattr(answer, "results_by_topic_v3_and_below", [])
    if topics:
        return max(one.partition_error_code for topic in topics for one in topic.results_by_partition)
    return int(answer.error_code)

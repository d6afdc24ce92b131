"""Simulated producers of the Kafka protocol: idempotent ones, and transactional ones of the first protocol or the
second one (KIP-890).

They send up to five batches of a partition at a time, and send again, in their order, what has no answer, or one that
asks for it. Now and then a batch arrives a second time, late, as from a client that had taken its line for broken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import add_partitions_to_txn_request as ap
from ledgermq_broker.kafka.wire.generated import end_txn_request as e
from ledgermq_broker.kafka.wire.generated import init_producer_id_request as i
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.messages import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, PRODUCE
from tests.broker.kafka_world import batch_of
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.history import Outcome
from tests.simulation.kafka_lines import LineBroke
from tests.simulation.kafka_programs import AGAIN, INPUT, OUTPUTS, TRANSACTIONS, KafkaProgram, Place, codes_of
from tests.simulation.roaming import roams
from tests.simulation.transactions_truth import Sent
from tests.virtual_time import EPOCH_US

Work = Callable[[Sent], Awaitable[None]]

WINDOW = 5
VERSION, VERSION_THAT_ADDS = 9, 12
STORED = frozenset({Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER})
"""The second says so without an offset."""
FENCED = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING})
GAPS = frozenset({Code.UNKNOWN_PRODUCER_ID, Code.OUT_OF_ORDER_SEQUENCE_NUMBER})
"""A producer whose batches before have answers never gets them."""


class Fenced(Exception):
    """Another one has taken the id."""


class MustAbort(Exception):
    """The transaction cannot be committed."""


@dataclass(slots=True)
class Batch:
    values: tuple[str, ...]
    data: bytes
    op: int
    code: int | None = None
    """None: no answer yet."""
    offset: int = -1


class Pusher(KafkaProgram):
    transactional_id: str | None = None
    version = VERSION

    async def push(self, place: Place, batches: Sequence[Batch], until_s: float) -> None:
        """Send batches in their order until each has an answer that counts, one of them is refused for good, or the
        time is over.
        """
        left = list(batches)
        while left and self.now_s() < until_s:
            line = self.line(await self.leader(place), "produce", outlives=True)
            try:
                sent = [(batch, line.send(PRODUCE, self.version, self._request(place, batch))) for batch in left]
            except LineBroke:
                await self.pause()
                continue
            for batch, waiting in sent:
                batch.code = None
                try:
                    answer = await line.answer(PRODUCE, self.version, waiting, self.timeout_s)
                except LineBroke:
                    continue
                [part] = answer.responses[0].partition_responses
                batch.code, batch.offset = part.error_code, part.base_offset
                if self.random.random() < self.own.doubles and not self.world.healed:
                    self.world.loop.in_world(self._double(line.address, place, batch))
            left = [batch for batch in left if batch.code not in STORED]
            if left and left[0].code is not None and left[0].code not in AGAIN:
                return  # what is behind it leaves a gap, whatever it was told
            if left:
                self.world.coverage.saw("batches of a Kafka client were sent again")
                self.forget_leader(place)
                await self.pause()

    async def _double(self, broker: str, place: Place, batch: Batch) -> None:
        await asyncio.sleep(self.random.expovariate(1.0))
        if not self.process.alive or self.world.healed:
            return
        self.world.coverage.saw("a batch of a Kafka client arrived twice")
        line = self.line(broker, "double", outlives=True)
        line.send(PRODUCE, self.version, self._request(place, batch)).add_done_callback(_forget)

    def _request(self, place: Place, batch: Batch) -> p.ProduceRequest:
        topic, number = place
        data = [p.PartitionProduceData(index=number, records=batch.data)]
        return p.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=round(1000 * self.timeout_s),
            topic_data=[p.TopicProduceData(topic, partition_data=data)],
        )

    def batch(self, values: Sequence[str], producer: tuple[int, int], sequence: int, op: int = 0) -> Batch:
        data = batch_of(
            *(value.encode() for value in values),
            producer_id=producer[0],
            epoch=producer[1],
            sequence=sequence,
            timestamp_ms=EPOCH_US // 1000 + round(1000 * self.now_s()),
            transactional=self.transactional_id is not None,
        )
        return Batch(tuple(values), data, op)


def _forget(waiting: asyncio.Future[Any]) -> None:
    if not waiting.cancelled():
        waiting.exception()


class KafkaSender(Pusher):
    """An idempotent producer to all partitions of the input. A partition has a producer id of its own."""

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PARTITIONS):
                group.create_task(self._send_to(number))

    async def _send_to(self, number: int) -> None:
        """Send, and draw a new id when one is of no use any more."""
        ids = 0
        while not self.stopped.is_set():
            ids += 1
            producer = await self._producer_id()
            client = f"{self.label}/{number}/{ids}"
            sequence = 0
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(self._plan.records_s / 6))
                batches = []
                for _ in range(self.random.choice((1, 1, 2, WINDOW))):
                    values = [self.next_value() for _ in range(self.random.choice((1, 1, 3)))]
                    op = self._begin(client, number, values)
                    batches.append(self.batch(values, producer, sequence, op))
                    sequence += len(values)
                await self.push((INPUT, number), batches, self.now_s() + self._plan.delivery_timeout_s)
                if not self._told(client, batches):
                    break

    def _begin(self, client: str, number: int, values: Sequence[str]) -> int:
        return self.world.history.begin_produce(client, self.partition(INPUT, number), tuple(values))

    def _told(self, client: str, batches: Sequence[Batch]) -> bool:
        """Note the answers; return whether the producer may go on."""
        goes_on = True
        for batch in batches:
            if batch.code == Code.NONE:
                self.world.coverage.saw("a batch of an idempotent Kafka client was acknowledged")
                self.world.history.end_produce(batch.op, Outcome.OK, batch.offset)
                continue
            if batch.code in STORED:
                self.world.history.end_produce(batch.op, Outcome.INFO, why="stored before")
                continue
            why = "no answer" if batch.code is None else Code(batch.code).name
            self.world.coverage.saw(f"a Kafka client gave a batch up: {why}")
            self.world.history.end_produce(batch.op, Outcome.INFO, why=why)
            if goes_on and batch.code is not None and batch.code not in AGAIN:
                text = f"{client}: {why} for {batch.values}, the first batch without an answer"
                self.world.violations.append(Violation("a Kafka producer has to stop", text))
            goes_on = False
        return goes_on

    async def _producer_id(self) -> tuple[int, int]:
        while True:
            try:
                answer = await self.ask(
                    self.any_broker(), INIT_PRODUCER_ID, 4, i.InitProducerIdRequest(transactional_id=None)
                )
            except LineBroke:
                await self.pause()
                continue
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            await self.pause()


class KafkaTransactor(Pusher):
    """Sends to any partitions of both outputs, all or nothing. Some share their id with another process."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.transactional_id = "shared" if self.name in ("t0", "t1") else self.name
        self.producer = (-1, -1)
        self.is_second = self.own.is_second
        self.version = VERSION_THAT_ADDS if self.is_second else VERSION
        self._sequences: Counter[Place] = Counter()
        self._must_be_known = not roams(self.world.seed)
        """Where a partition has moved to another bundle, docs/kafka.md has a producer begin again."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                await self._session()
            except Fenced:
                self.world.coverage.saw("a transactional Kafka client was fenced")
            await asyncio.sleep(self.random.uniform(0.1, 3.0))

    async def _session(self) -> None:
        await self.init()
        over_s = self.now_s() + self.random.choice((2.0, 10.0, 1000.0))
        while not self.stopped.is_set() and self.now_s() < over_s:
            await self.transaction(self._send_anything)
            await asyncio.sleep(self.random.uniform(0.05, 0.6))

    async def _send_anything(self, sent: Sent) -> None:
        everywhere = [(topic, number) for topic in OUTPUTS for number in range(PARTITIONS)]
        places = self.random.sample(everywhere, self.random.choice((2, 2, 4)))
        await self.add(places)
        for place in places:
            await self.stage(sent, place, [[self.next_value()] for _ in range(self.random.choice((1, 1, 3)))])
            await self.stand_still()

    # One transaction

    async def init(self, *, again: bool = False) -> None:
        """Begin an epoch; `again`: as the same producer. Raises Fenced."""
        request = i.InitProducerIdRequest(transactional_id=self.transactional_id)
        request.transaction_timeout_ms = self.own.timeout_ms
        request.producer_id, request.producer_epoch = self.producer if again else (-1, -1)
        answer = await self._at(INIT_PRODUCER_ID, 4, request)
        if answer.error_code in FENCED:
            raise Fenced
        self._must_not(answer.error_code, "InitProducerId")
        self.producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def transaction(self, work: Work, is_good: Callable[[], bool] = lambda: True) -> bool:
        """Do `work(sent)` in a transaction; return whether it is committed. `is_good()`: whether it may be. Raises
        Fenced.
        """
        sent = Sent(self.name, self.transactional_id or "")
        self.shared.sent.append(sent)
        try:
            await work(sent)
            await self.stand_still()
            if not is_good() or self.random.random() < self.own.aborts:
                await self.end(sent, committed=False)
            else:
                await self.end(sent, committed=True)
        except MustAbort as why:
            self.world.coverage.saw("a transaction of a Kafka client could not go on")
            self.world.note(self.name, f"aborts: {why}")
            if self.is_second:
                await self.end(sent, committed=False)
            else:
                await self.init(again=True)
                self._told(sent, committed=False)
        return sent.told is True

    async def stand_still(self) -> None:
        if self.random.random() < self.own.dies and not self.world.healed:
            self.world.coverage.saw("a transaction of a Kafka client was left alone")
            await asyncio.sleep(3 * self.own.timeout_ms / 1000)

    async def add(self, places: Sequence[Place]) -> None:
        """Add partitions. In the second protocol the first batch of each does that."""
        if self.is_second:
            return
        topics = [ap.AddPartitionsToTxnTopic(topic, [number]) for topic, number in places]
        request = ap.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=topics,
        )
        self.check(await self._at(ADD_PARTITIONS_TO_TXN, 3, request), "add")

    def check(self, answer: Any, what: str) -> None:
        """Raises Fenced, MustAbort."""
        for code in codes_of(answer):
            if code in FENCED:
                raise Fenced
            if code:
                raise MustAbort(f"{what}: {Code(code).name}")

    async def stage(self, sent: Sent, place: Place, batches: Sequence[Sequence[str]]) -> None:
        """Send batches of the transaction. Raises Fenced, MustAbort."""
        made = []
        for values in batches:
            for value in values:
                sent.values.append(value)
                partition = self.partition(*place)
                sent.ops.append(self.world.history.begin_produce(self.name, partition, (value,), ordered=False))
            made.append(self.batch(values, self.producer, self._sequences[place]))
            self._sequences[place] += len(values)
        await self.push(place, made, self.now_s() + self._plan.delivery_timeout_s)
        for batch in made:
            if batch.code in FENCED:
                raise Fenced
            if batch.code in GAPS and self._must_be_known:
                self._must_not(batch.code, f"the batch {batch.values}, behind stored ones only,")
            if batch.code not in STORED:
                raise MustAbort(f"a batch: {'no answer' if batch.code is None else Code(batch.code).name}")

    async def end(self, sent: Sent, *, committed: bool) -> None:
        """Raises Fenced, MustAbort."""
        request = e.EndTxnRequest(self.transactional_id or "", *self.producer, committed)
        answer = await self._at(END_TXN, 5 if self.is_second else 3, request)
        if answer.error_code in FENCED:
            raise Fenced
        if answer.error_code == Code.TRANSACTION_ABORTABLE and committed:
            raise MustAbort("its time-out was over")
        if self.is_second and not answer.error_code:
            self.world.coverage.saw("a transaction of a Kafka client has ended its epoch")
            self.producer = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        self._must_not(answer.error_code, f"EndTxn, committed {committed}")
        self._told(sent, committed=committed)
        self.world.coverage.saw(f"a transaction of a Kafka client was {'committed' if committed else 'aborted'}")

    def _must_not(self, code: int, what: str) -> None:
        """Judge an answer that a program which keeps to the protocol never gets. Raises Fenced: it cannot go on."""
        if code:
            text = f"{self.label} as {self.producer}: {what} was answered by {Code(code).name}"
            self.world.violations.append(Violation("a Kafka producer has to stop", text))
            raise Fenced

    def _told(self, sent: Sent, *, committed: bool) -> None:
        sent.told = committed
        for op in sent.ops:
            self.world.history.end_produce(op, Outcome.INFO if committed else Outcome.FAIL, why="aborted")

    async def _at(self, api: Any, version: int, request: Any) -> Any:
        return await self.at_coordinator(TRANSACTIONS, self.transactional_id or "", api, version, request)

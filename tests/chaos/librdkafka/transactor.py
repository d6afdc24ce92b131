"""A program with transactions by librdkafka, as a process that is killed, stopped and paused: `python -m
tests.chaos.librdkafka.transactor TARGET ROLE NAME SEED DIARY`. Roles and the diary are those of
`tests.chaos.transactor`.

librdkafka does not show its epochs. In their place stands when `init_transactions` returned: of two programs with one
id, the one that was fenced got its answer first, or never commits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tests.chaos.groups import KAFKA_GROUPS
from tests.chaos.librdkafka.program import Program
from tests.chaos.librdkafka.reading import GroupReader, ends_of, offset_of, place_of
from tests.chaos.transactor import ABORTED, FENCED_S, LEFT_OPEN, TRANSACTIONS_PER_S
from tests.chaos.workload import OUTPUTS, PARTITIONS
from tests.simulation.history import Partition
from tests.simulation.transactions_truth import processed_as

TIMEOUT_MS = 5_000
CALL_S, COMMIT_S, INIT_S = 5.0, 15.0, 20.0
MESSAGES = (1, 10, 200)
"""Messages of one transaction."""


class Transactor(Program):
    _producer: Producer
    _transaction = ""
    _committing = False
    _number = 0
    _unique = ""

    def session(self) -> None:
        """Until an error ends it."""
        over_s = self.over_s()
        name = self.name if self.role in KAFKA_GROUPS else self.role
        self._unique = f"{self.name}.{time.monotonic_ns()}"
        try:
            self._producer = Producer(
                {
                    **self.settings,
                    "transactional.id": name,
                    "transaction.timeout.ms": TIMEOUT_MS,
                    "linger.ms": self.random.choice((0, 5, 50)),
                    "compression.type": self.random.choice(("none", "zstd")),
                }
            )
            self._producer.init_transactions(INIT_S)
            named = f"{name}:{time.monotonic_ns()}"
            if self.role in KAFKA_GROUPS:
                self._process(over_s, named)
            else:
                self._write(over_s, named)
        except KafkaException as error:
            self.told(error.args[0])
            fenced_s = FENCED_S if error.args[0].fatal() else 0.0
            self.rest(fenced_s + self.random.uniform(0.2, 2.0))

    def _write(self, over_s: float, named: str) -> None:
        number = 0
        while self.goes_on(over_s):
            number += 1
            self._try(f"{named}:{number}", self._fill)

    def _fill(self) -> None:
        self.rest(self.random.expovariate(TRANSACTIONS_PER_S))
        for _ in range(self.random.choice((1, 2, 5, 20))):
            self._number += 1
            self._send(self.random.choice(OUTPUTS), self.random.randrange(PARTITIONS), f"{self._unique}.{self._number}")

    def _process(self, over_s: float, named: str) -> None:
        reader = GroupReader(self, lambda gone, lost: None, **{"enable.auto.commit": False})
        number = 0
        try:
            while self.goes_on(over_s):
                self.turn()
                reader.poll(self.random.choice(MESSAGES), 1.0)
                if not reader.taken:
                    continue
                number += 1
                ends = ends_of(reader.taken)
                if self._try(f"{named}:{number}", lambda ends=ends: self._copy(reader, ends)):  # type: ignore[misc]
                    self.diary.write(*(f"committed {topic} {at} {end}" for (topic, at), end in ends.items()))
                else:
                    self._go_back(reader)
                reader.taken = []
        finally:
            reader.close()

    def _copy(self, reader: GroupReader, ends: dict[Partition, int]) -> None:
        for message in reader.taken:
            topic, number = place_of(message)
            value = (message.value() or b"").partition(b"|")[0].decode()
            self.diary.write(f"handled {topic} {number} {offset_of(message)} {value}")
            for output in OUTPUTS:
                self._number += 1
                place = processed_as(output, number, offset_of(message))
                self._send(output, number, f"{place}/{self._unique}.{self._number}")
        offsets = [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
        self._producer.send_offsets_to_transaction(offsets, reader.consumer.consumer_group_metadata(), CALL_S)

    def _go_back(self, reader: GroupReader) -> None:
        """Read on at what is committed."""
        for place in reader.consumer.committed(reader.consumer.assignment(), CALL_S):
            reader.consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))

    def _send(self, topic: str, number: int, name: str) -> None:
        self.diary.write(f"sent {self._transaction} {topic} {number} {name}")
        value = f"{name}|".encode() + self.random.randbytes(self.random.choice((0, 20, 200)))
        self._producer.produce(topic, value, key=name, partition=number)
        self._producer.poll(0)

    def _try(self, transaction: str, fill: Callable[[], None]) -> bool:
        """Make a transaction. Return whether it is committed. Raises KafkaException if its end is not known, or a
        producer with this id cannot go on.
        """
        self.turn()
        self._transaction, self._committing = transaction, False
        self._producer.begin_transaction()
        try:
            fill()
            chance = self.random.random()
            if chance < LEFT_OPEN:
                self.rest(3 * TIMEOUT_MS / 1000)
            if not LEFT_OPEN <= chance < LEFT_OPEN + ABORTED:
                self.turn()
                self.diary.write(f"committing {transaction}")
                self._insist(self._producer.commit_transaction)
                return self._ended("committed")
        except KafkaException as raised:
            error = raised.args[0]
            self.told(error)
            if error.fatal():
                raise
        self._insist(self._producer.abort_transaction)
        return self._ended("aborted")

    def _insist(self, call: Callable[[float], None]) -> None:
        """Repeat what may be repeated."""
        end_s = time.monotonic() + COMMIT_S
        while True:
            try:
                call(CALL_S)
                return
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if not error.retriable() or time.monotonic() > end_s:
                    raise
                self.told(error)
                self.rest(0.1)

    def _ended(self, outcome: str) -> bool:
        self.diary.write(f"ended {self._transaction} {outcome}")
        return outcome == "committed"


if __name__ == "__main__":
    Transactor(*sys.argv[1:6]).run()

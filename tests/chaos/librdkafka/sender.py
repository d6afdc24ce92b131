"""An idempotent producer of librdkafka, as a process that is killed, stopped and paused: `python -m
tests.chaos.librdkafka.sender TARGET ROLE NAME SEED DIARY`.

Its diary has these lines beside those of `program`:

    sending CLIENT TOPIC PARTITION NAME    before the record is given to the producer
    stored NAME OFFSET                     once it is acknowledged
    failed NAME CODE                       once the producer has given it up: it may be stored
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.chaos.librdkafka.program import Program
from tests.chaos.workload import PARTITIONS, TOPICS

RECORDS_S = 25.0
DELIVERY_MS = 60_000
FLUSH_S_MAX, LAST_FLUSH_S_MAX = 90.0, 30.0
"""After a session, and after SIGTERM."""


class Sender(Program):
    _number = 0
    _failed = False

    def session(self) -> None:
        self._failed = False
        over_s, client = self.over_s(), f"{self.name}.{time.monotonic_ns()}"
        producer = Producer(
            {
                **self.settings,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_MS,
                "linger.ms": self.random.choice((0, 5, 50)),
                "compression.type": self.random.choice(("none", "lz4", "zstd", "gzip", "snappy")),
                "batch.num.messages": self.random.choice((1, 20, 10_000)),
                "error_cb": self._error,
            }
        )
        while self.goes_on(over_s) and not self._failed:
            self.turn()
            topic, number = self.random.choice(list(TOPICS)), self.random.randrange(PARTITIONS)
            count = self.random.choice((1, 2, 5, 30))
            try:
                for _ in range(count):
                    self._send(producer, client, topic, number)
            except (KafkaException, BufferError) as error:
                self._failed = True
                self.diary.write(f"told {type(error).__name__} {error}")
            wait_until_s = time.monotonic() + self.random.expovariate(RECORDS_S / count)
            while (left_s := wait_until_s - time.monotonic()) > 0:
                producer.poll(left_s)
        begun_s = time.monotonic()
        while len(producer) and time.monotonic() < begun_s + (
            LAST_FLUSH_S_MAX if self.stopped.is_set() else FLUSH_S_MAX
        ):
            self.turn()
            producer.flush(1.0)
        if len(producer):
            self.diary.write(f"left {len(producer)}")

    def _send(self, producer: Producer, client: str, topic: str, number: int) -> None:
        self._number += 1
        name = f"{client}.{self._number}"
        value = f"{name}|".encode() + self.random.randbytes(self.random.choice((0, 20, 200, 2000)))
        self.diary.write(f"sending {client} {topic} {number} {name}")
        producer.produce(topic, value, key=name, partition=number, on_delivery=self._report(name))

    def _report(self, name: str) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.diary.write(f"stored {name} {message.offset()}")
                return
            self._failed = True
            self.told(error)
            self.diary.write(f"failed {name} {error.name()}")

        return report

    def _error(self, error: KafkaError) -> None:
        """After a fatal error the producer takes nothing more."""
        if error.fatal():
            self.told(error)
        self._failed = self._failed or error.fatal()


if __name__ == "__main__":
    Sender(*sys.argv[1:6]).run()

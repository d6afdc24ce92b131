"""One process that produces to or consumes from Kafka, or the Kafka port of LedgerMQ, through confluent-kafka, and
prints one JSON line: see `bench.peers.confluent`.

    python -m bench.peers.confluent_client produce 127.0.0.1:9092 TOPIC --records 1000000 --payloads FILE

Seconds are from the first call until all messages are delivered, or from the assignment of the
partitions until the last message is read.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.keyed_client import HEADERS, KEYS
from bench.peers.peer import STREAMS

RUN_S_MAX = 300
POLL_EVERY = 1000
READ = 10_000
SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
}


def produce(
    address: str,
    topic: str,
    records: int,
    values: list[bytes],
    keyed: bool = False,
    header: bool = False,
    settings: Mapping[str, object] = SETTINGS,
) -> dict[str, float]:
    """`keyed`: values and keys are text, as in `bench.keyed_client`."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**settings, "bootstrap.servers": address, "on_delivery": delivered})
    producer.list_topics(topic, timeout=30)
    given: list[str] | list[bytes] = [value.decode() for value in values] if keyed else values
    keys = [f"key-{number % KEYS}" if keyed else None for number in range(len(values))]
    headers = HEADERS if header else None
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    for number in range(records):
        at = number % len(values)
        try:
            producer.produce(topic, given[at], keys[at], headers=headers)
        except BufferError:
            producer.poll(1)
            producer.produce(topic, given[at], keys[at], headers=headers)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(RUN_S_MAX)
    seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    if failed or left:
        raise RuntimeError(f"{len(failed)} failed, {left} were not acknowledged: {failed[:1]}")
    return {"records": records, "seconds": seconds, "cpu_s": cpu_s}


def consume(address: str, topic: str, records: int) -> dict[str, float]:
    """Partitions are assigned, not by a group: joining one takes seconds that are not reading."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    begun_s = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(STREAMS)])
    read = 0
    while read < records:
        found = consumer.consume(READ, timeout=30)
        if not found:
            raise RuntimeError(f"{topic} ends after {read} records")
        for message in found:
            if (error := message.error()) is not None:
                raise RuntimeError(f"{topic}: {error}")
            message.value()
        read += len(found)
    seconds = time.perf_counter() - begun_s
    consumer.close()
    return {"records": read, "seconds": seconds}


def paced(address: str, topic: str, records: int, rate: float, value: bytes) -> dict[str, object]:
    """Send records at a rate, each at once; return their milliseconds from the send until the acknowledgement."""
    latencies_ms: list[float] = []
    producer = Producer(SETTINGS | {"bootstrap.servers": address, "linger.ms": 0})
    producer.list_topics(topic, timeout=30)

    def send() -> None:
        sent_s = time.perf_counter()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                raise RuntimeError(f"{topic}: {error}")
            latencies_ms.append(1000 * (time.perf_counter() - sent_s))

        producer.produce(topic, value, on_delivery=delivered)

    send()
    producer.flush(RUN_S_MAX)
    latencies_ms.clear()
    begun_s = time.perf_counter()
    for number in range(records):
        while (left_s := begun_s + number / rate - time.perf_counter()) > 0:
            producer.poll(left_s)
        send()
    if producer.flush(RUN_S_MAX):
        raise RuntimeError(f"{topic}: not all records were acknowledged")
    return {"records": records, "latencies_ms": sorted(latencies_ms)}


def drain(address: str, topic: str, megabytes_per_s: float, seconds: float) -> dict[str, float]:
    """Read the topic from its beginning, again and again, no faster than this."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1] for partition in range(STREAMS)
    ]
    begun_s = time.perf_counter()
    read = left = size_bytes = 0
    while (now_s := time.perf_counter() - begun_s) < seconds:
        if not left:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(STREAMS)])
            left = sum(ends)
        if size_bytes > 1e6 * megabytes_per_s * now_s:
            time.sleep(size_bytes / 1e6 / megabytes_per_s - now_s)
        found = consumer.consume(min(left, READ // 10), timeout=5)
        read, left = read + len(found), left - len(found)
        size_bytes += sum(len(message.value() or b"") for message in found)
    taken_s = time.perf_counter() - begun_s
    consumer.close()
    return {"records": read, "seconds": taken_s, "bytes": size_bytes}


def commit(address: str, topic: str, commits: int) -> dict[str, object]:
    """Commit one offset of partition 0 after the other, as a group without members; return the milliseconds of each."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    took_ms: list[float] = []
    for offset in range(1, commits + 2):
        begun_s = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        took_ms.append(1000 * (time.perf_counter() - begun_s))
    consumer.close()
    return {"records": commits, "commit_ms": sorted(took_ms[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["produce", "consume", "paced", "drain", "commit"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--payloads", type=Path)
    parser.add_argument("--keyed", action="store_true", help="produce: text with keys")
    parser.add_argument("--header", action="store_true", help="produce: with a header")
    parser.add_argument("--compression", default="lz4", help="produce: none, lz4, …")
    parser.add_argument("--batch-records", type=int, default=100_000, help="produce: in a batch, at most")
    parser.add_argument("--rate", type=float, default=100.0, help="paced: records a second")
    parser.add_argument("--megabytes-per-s", type=float, default=100.0, help="drain: no faster than this")
    parser.add_argument("--seconds", type=float, default=10.0, help="of drain")
    given = parser.parse_args()
    found: Mapping[str, object]
    if given.what == "paced":
        value = given.payloads.read_bytes().split(b"\n")[0]
        found = paced(given.address, given.topic, given.records, given.rate, value)
    elif given.what == "drain":
        found = drain(given.address, given.topic, given.megabytes_per_s, given.seconds)
    elif given.what == "produce":
        values = given.payloads.read_bytes().split(b"\n")
        chosen = {"compression.type": given.compression, "batch.num.messages": given.batch_records}
        found = produce(
            given.address, given.topic, given.records, values, given.keyed, given.header, {**SETTINGS, **chosen}
        )
    elif given.what == "commit":
        found = commit(given.address, given.topic, given.records)
    else:
        found = consume(given.address, given.topic, given.records)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

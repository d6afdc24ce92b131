"""The synchronous client: the same results and errors as the asynchronous one, from plain threads, and nothing left behind."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import ledgermq
import ledgermq.sync
from ledgermq import errors

_names = (f"sync-{number}" for number in itertools.count())


@pytest.fixture
def client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        yield client


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer"])
def test_both_clients_have_the_same_names(name: str) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        members = {n: m for n, m in vars(kind).items() if not n.startswith("_") and n not in ("refused", "add_row")}
        return {n: list(inspect.signature(m).parameters) if inspect.isfunction(m) else [] for n, m in members.items()}

    plain, asynchronous = public(getattr(ledgermq.sync, name)), public(getattr(ledgermq, name))
    only_sync = {"wait_for"} if name == "Producer" else set()
    only_async = {"Client": {"close", "abort"}, "Producer": {"wait_for_room"}, "Consumer": set[str]()}[name]
    assert plain.keys() - only_sync == asynchronous.keys() - only_async
    assert {n: plain[n] for n in plain.keys() & asynchronous.keys()} == {n: asynchronous[n] for n in plain.keys() & asynchronous.keys()}


def test_produce_and_consume(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 2)
    with client.producer() as producer:
        result = producer.send("t", "value", key="key", headers={"a": "1"}, tag="tag", timestamp=datetime(2024, 1, 1, tzinfo=UTC)).result()
        assert result.offset == 0
        deliveries = producer.send_many("t", [ledgermq.Record(str(n), key="key") for n in range(25_000)])
        producer.flush()
        assert [delivery.result().offset for delivery in deliveries[-3:]] == [24_998, 24_999, 25_000]
        assert all(delivery.done() and delivery.exception() is None for delivery in deliveries)
        (batch,) = producer.send_batch("t", pa.RecordBatch.from_pydict({"value": ["x", "y"]}), partition=result.partition)
        assert batch.base_offset == 25_001
    with client.consumer("t") as consumer:
        first = next(consumer)
        assert (first.key, first.value, first.headers, first.tag) == (b"key", b"value", (("a", b"1"),), "tag")
        assert [int(next(consumer).value or b"") for _ in range(25_000)] == list(range(25_000))
        assert consumer.position(result.partition) == 25_001
        assert [message.value for message in consumer.fetch()] == [b"x", b"y"]
        assert consumer.fetch(timeout=0.05) == []
        assert consumer.positions() == consumer.end_offsets()


def test_positions_speak_of_what_the_program_has_had(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer() as producer:
        producer.send_many("t", [str(n) for n in range(100)])
    with client.consumer("t") as consumer:
        assert [next(consumer).offset for _ in range(10)] == list(range(10))
        assert consumer.position(0) == consumer.positions()[ledgermq.TopicPartition("t", 0)] == 10
        assert [message.offset for message in consumer.fetch(5)] == [10, 11, 12, 13, 14]
        table = consumer.fetch_arrow(10)
        assert table["offset"].to_pylist() == list(range(15, 25))
        assert next(consumer).offset == 25
        consumer.seek(90, partition=0)
        assert next(consumer).offset == 90


def test_errors_reach_the_caller(client: ledgermq.sync.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        client.describe_topic("nope")
    with pytest.raises(errors.InvalidConfig, match="linger_ms"):
        client.producer(linger=5)
    client.create_topic("t", 1, {"max.message.bytes": 100})
    with client.producer() as producer:
        with pytest.raises(errors.InvalidRecord):
            producer.send("t", 5)  # type: ignore[arg-type]
        large = producer.send("t", b"x" * 200)
        with pytest.raises(errors.MessageTooLarge):
            large.result()
        assert producer.send("t", b"fine").result().offset == 0
        producer.send("t", b"x" * 200)
        with pytest.raises(errors.MessageTooLarge):
            producer.flush()


def test_a_full_buffer_blocks_or_fails(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer(buffer_bytes_max=100_000) as producer:
        for _ in range(2000):
            producer.send("t", b"x" * 1000)
    with client.producer(buffer_bytes_max=3000, when_full="fail", linger_ms=1000) as producer:
        with pytest.raises(errors.ResourceExhausted):
            _ = [producer.send("t", b"x" * 1000) for _ in range(10)]
        producer.flush()
    assert sum(client.list_offsets("t").values()) >= 2002


def test_closing_leaves_no_thread() -> None:
    with ledgermq.sync.connect("127.0.0.1:1", timeout_s=0.5) as client:
        assert [thread for thread in threading.enumerate() if thread.name == "ledgermq"]
        with pytest.raises(errors.Unavailable):
            client.list_topics()
    assert not [thread for thread in threading.enumerate() if thread.name == "ledgermq"]
    with pytest.raises(errors.Unavailable):
        client.list_topics()


def test_an_error_of_the_program_ends_the_client() -> None:
    def program() -> None:
        with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
            client.create_topic("t", 1)
            client.producer().send("t", b"v")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert not [thread for thread in threading.enumerate() if thread.name == "ledgermq"]

"""The timeout of one `send` of `ledgermq.sync`: no call blocks longer, whether brokers, the buffer or the client's
thread are in the way.
"""

from __future__ import annotations

import itertools
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import ledgermq
import ledgermq.sync
from ledgermq.errors import DeadlineExceeded, InvalidRecord

_names = (f"sync-send-timeouts-{number}" for number in itertools.count())
LATE_S = 15.0
"""Far more than any timeout here, and less than those of a client and a producer by default."""


@pytest.fixture
def client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        client.create_topic("t", 1)
        yield client


@pytest.fixture
def dead() -> Iterator[ledgermq.sync.Client]:
    """Its only broker takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ledgermq.sync.connect(f"127.0.0.1:{server.getsockname()[1]}")
        yield client
        client.close()


def in_time(call: Callable[[], Any]) -> Any:
    begun_s = time.monotonic()
    try:
        return call()
    finally:
        assert time.monotonic() - begun_s < LATE_S


def test_all_calls_store_within_their_time(client: ledgermq.sync.Client) -> None:
    with client.producer() as producer:
        called: list[ledgermq.SendResult] = []
        producer.send("t", "without")
        delivery = producer.send("t", "one", timeout=60, on_delivery=called.append)
        assert delivery.result().offset == 1, "behind what was sent before"
        assert [each.result().offset for each in producer.send_many("t", ["two", "three"], timeout=60)] == [2, 3]
        [stored] = producer.send_batch("t", pa.table({"value": ["four"]}), timeout=60)
        assert stored.base_offset == 4
        producer.flush()
        assert [result.offset for result in called] == [1]
    with client.transactions("one") as transactions, transactions.begin() as transaction:
        transaction.send("t", "five", timeout=60)
        transaction.send_many("t", ["six"], timeout=60)
        transaction.send_batch("t", pa.table({"value": ["seven"]}), timeout=60)
    with client.consumer("t", start="earliest") as consumer:
        assert [message.value for message in itertools.islice(consumer, 8)] == [
            b"without", b"one", b"two", b"three", b"four", b"five", b"six", b"seven",
        ]  # fmt: skip


def test_no_broker_answers(dead: ledgermq.sync.Client) -> None:
    producer = dead.producer(raise_on_error=True)
    for call in (
        lambda: producer.send("t", "x", timeout=0.3).result(),
        lambda: [each.result() for each in producer.send_many("t", ["x"], timeout=0.3)],
        lambda: producer.send_batch("t", pa.table({"value": ["x"]}), timeout=0.3),
        lambda: producer.send("t", "x", timeout=0).result(),
    ):
        with pytest.raises(DeadlineExceeded):
            in_time(call)
    producer.abort()


def test_a_full_buffer(dead: ledgermq.sync.Client) -> None:
    producer = dead.producer(buffer_bytes_max=1000)
    producer.send("t", b"x" * 1000)
    with pytest.raises(DeadlineExceeded, match="no room"):
        in_time(lambda: producer.send("t", b"late", timeout=0.3))
    assert producer.unanswered_records == 1, "what was refused is not sent later"
    producer.abort()


def test_the_thread_of_the_client_is_blocked(client: ledgermq.sync.Client) -> None:
    with client.producer() as producer:
        producer.send("t", "first").result()
        go_on = threading.Event()
        client._background.loop.call_soon_threadsafe(go_on.wait, 60)
        with pytest.raises(DeadlineExceeded, match="the thread of the client does nothing"):
            in_time(lambda: producer.send("t", "late", timeout=0.3))
        go_on.set()
        assert producer.send("t", "next").result().offset == 1, "the late one was not sent"


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_what_is_no_time_is_refused(client: ledgermq.sync.Client, timeout: Any) -> None:
    with client.producer() as producer:
        for call in (
            lambda: producer.send("t", "x", timeout=timeout),
            lambda: producer.send_many("t", ["x"], timeout=timeout),
            lambda: producer.send_batch("t", pa.table({"value": ["x"]}), timeout=timeout),
        ):
            with pytest.raises(InvalidRecord, match="timeout must be"):
                call()

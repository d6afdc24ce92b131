"""A client of `ledgermq.sync` that several threads use at the same time: what may be shared works, what may not is
refused, and does not mix up which messages are finished.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import ledgermq
import ledgermq.sync
from ledgermq import errors

THREADS = 8
RECORDS = 300
_names = (f"sync-threads-{number}" for number in itertools.count())


@pytest.fixture
def client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        yield client


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


@pytest.mark.usefixtures("hasty")
def test_threads_share_a_producer_and_each_keeps_its_order(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer() as producer:

        def send(thread: int) -> None:
            for number in range(RECORDS):
                producer.send("t", f"{thread} {number}")

        in_threads(send)
        producer.flush()
        assert producer.buffered_bytes == 0, "what was handed over does not wait here"
    with client.consumer("t", until_end=True) as consumer:
        values = [message.value.decode().split() for message in consumer]
    assert len(values) == THREADS * RECORDS
    for thread in range(THREADS):
        assert [int(number) for name, number in values if int(name) == thread] == list(range(RECORDS))


@pytest.mark.usefixtures("hasty")
def test_a_client_closes_what_all_threads_have_made(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    each = 20

    def send(thread: int) -> None:
        for number in range(each):
            client.producer().send("t", f"{thread} {number}")
            assert client.describe_topic("t").name == "t"

    in_threads(send)
    assert len(client._producers) == THREADS * each, "a producer that is not in the list loses what it has not sent"


@pytest.mark.parametrize("group", [None, "g"])
def test_a_second_thread_in_a_call_of_a_consumer_is_refused(client: ledgermq.sync.Client, group: str | None) -> None:
    """With commit="auto" a call says that the messages before it are finished: those of the caller, not of another
    thread.
    """
    client.create_topic("t", 1)
    consumer = client.consumer("t") if group is None else client.consumer("t", group=group)
    with consumer:
        came = threading.Event()
        got: list[ledgermq.Message] = []

        def read() -> None:
            came.set()
            got.extend(consumer.fetch(timeout=60))

        reading = threading.Thread(target=read)
        reading.start()
        assert came.wait(60)
        calls: list[Callable[[], object]] = [consumer.fetch, consumer.fetch_arrow, lambda: next(iter(consumer))]
        for call in calls:
            refusal = ""
            while not refusal and reading.is_alive():  # until the other thread is in its call
                try:
                    consumer.fetch(timeout=0.001) if call is consumer.fetch else call()
                except errors.UsedElsewhere as error:
                    refusal = error.message
            assert "use one consumer for each thread" in refusal
        with client.producer() as producer:
            producer.send("t", b"v")
        reading.join(60)
        assert [message.value for message in got] == [b"v"]
        assert consumer.fetch(timeout=0.01) == [], "one thread after the other may use it"


def test_threads_share_a_queue(client: ledgermq.sync.Client) -> None:
    """Each message is leased on its own, so it does not matter which thread finishes it."""
    client.create_topic("t", 2)
    with client.producer() as producer:
        producer.send_many("t", [f"{number}" for number in range(100)])
    done: list[bytes] = []
    with client.queue("t", group="q") as queue:

        def work(_: int) -> None:
            while len(done) < 100:
                for message in queue.fetch(5, timeout=0.5):
                    message.ack()
                    done.append(message.value)

        in_threads(work)
    assert sorted(map(int, done)) == list(range(100))

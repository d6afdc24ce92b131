"""Functions that the synchronous client calls: listeners, handlers, callbacks, and how they end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ledgermq
import ledgermq.sync
from ledgermq import errors
from tests.e2e.sync_clients import sync_client
from tests.waiting import wait_until

client = pytest.fixture(sync_client)


def test_callbacks_may_call_the_consumer(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    committed: list[object] = []
    with client.producer() as producer:
        for number in range(5):
            producer.send("t", b"%d" % number)
    with client.consumer(
        "t", group="g", commit="manual", on_revoked=lambda _: committed.append(consumer.commit(messages[2]))
    ) as consumer:
        messages = consumer.fetch()
        consumer.commit(messages[:2])
    assert committed == [{ledgermq.TopicPartition("t", 0): 3}]


def test_a_listener_calls_a_function_in_threads_until_it_is_closed(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 4)
    with client.producer() as producer:
        for number in range(200):
            producer.send("t", b"%d" % number, partition=number % 4)
    seen: list[bytes | None] = []
    threads: set[int] = set()
    done = threading.Event()
    failed = threading.Event()

    def handle(message: ledgermq.GroupMessage) -> None:
        threads.add(threading.get_ident())
        if message.value == b"7" and not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        seen.append(message.value)
        if len(seen) == 200:
            done.set()

    with client.listen("t", handle, group="g", concurrency=4, retry_ms_first=1, on_failure=lambda *_: None) as listener:
        assert done.wait(30)
        assert listener.running
    assert not listener.running
    assert sorted(seen, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(200)]
    assert threading.get_ident() not in threads
    assert listener.handler.failures == 1
    with client.consumer("t", group="g") as consumer:
        consumer.wait_ready()
        assert set(consumer.committed().values()) == {50}
        with pytest.raises(errors.DeadlineExceeded), client.listen("t", handle, group="other") as other:
            other.wait(0.05)


def test_handlers_run_until_they_are_stopped(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    client.producer().send("t", b"x").result()
    stop = threading.Event()

    @client.handler("t", group="g", executor=ThreadPoolExecutor(1, thread_name_prefix="mine"))
    def handle(message: ledgermq.GroupMessage) -> None:
        assert threading.current_thread().name.startswith("mine")
        stop.set()

    client.run_handlers(stop=stop)
    assert handle.handled == 1
    with pytest.raises(errors.UnknownTopic), client.listen("missing", handle, group="g") as listener:
        listener.wait()


def test_what_follows_the_last_attempt_may_call_the_client(client: ledgermq.sync.Client, tmp_path: Path) -> None:
    client.create_topic("t", 1)
    client.create_topic("failed", 1)
    producer = client.producer()
    producer.send("t", b"x").result()

    def keep(message: ledgermq.GroupMessage, error: Exception) -> None:
        producer.send("failed", message.value, headers={"error": repr(error)}).result()

    def fail(message: ledgermq.GroupMessage) -> None:
        raise ZeroDivisionError

    in_order = ledgermq.Retry.in_order(2, then=keep, wait_ms_first=1, wait_ms_max=1)
    with client.listen("t", fail, group="a", retry=in_order) as listener:
        wait_until(lambda: listener.handler.exhausted == 1)
    metaq = ledgermq.Retry.metaq(1, store=tmp_path / "b", recover_every_s=0.1, recoveries_max=2, then=keep)
    with client.listen("t", fail, group="b", ordered_by=None, retry=metaq) as listener:
        wait_until(lambda: listener.handler.exhausted == 1 and listener.handler.stored == 0)
    assert listener.handler.failures == 3
    with client.consumer("failed", until_end=True) as consumer:
        assert [message.headers for message in consumer] == [(("error", b"ZeroDivisionError()"),)] * 2


def test_closing_the_client_finishes_what_a_listener_has_begun(tmp_path: Path) -> None:
    begun, finished = threading.Event(), threading.Event()

    def handle(message: ledgermq.GroupMessage) -> None:
        begun.set()
        time.sleep(0.2)
        finished.set()

    target = tmp_path.as_uri()
    with ledgermq.sync.connect(target) as other:
        other.create_topic("t", 1)
        other.producer().send("t", b"x").result()
        with ledgermq.sync.connect(target) as closing:
            closing.listen("t", handle, group="g")
            assert begun.wait(30)
        assert finished.is_set()
        with other.consumer("t", group="g") as consumer:
            consumer.wait_ready()
            assert consumer.committed() == {ledgermq.TopicPartition("t", 0): 1}


def test_callbacks_may_be_asynchronous_and_may_not_wait_on_the_loop_itself(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    client.producer().send("t", b"x").result()
    seen: list[object] = []

    async def on_assigned(partitions: list[ledgermq.TopicPartition]) -> None:
        seen.append(partitions)
        with pytest.raises(errors.UsedElsewhere):
            client.list_topics()

    with client.consumer("t", group="g", on_assigned=on_assigned) as consumer:
        assert next(consumer).value == b"x"
    assert seen == [[ledgermq.TopicPartition("t", 0)]]

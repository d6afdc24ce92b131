"""Half messages without asyncio, against a broker in this process: local transactions run in the
calling thread, checks in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.transactions.checks import Resolution
from ledgermq.sync import Client, HalfMessage


@pytest.fixture
def client() -> Iterator[Client]:
    with ledgermq.sync.connect("memory://") as client:
        client.create_topic("t", 1)
        yield client


def values(client: Client) -> list[object]:
    return client.read_arrow("t", "earliest").column("value").to_pylist()


def test_messages_become_visible_when_they_are_committed(client: Client) -> None:
    threads: list[threading.Thread] = []

    def execute(message: HalfMessage) -> Resolution:
        threads.append(threading.current_thread())
        return "commit" if message.key == b"1" else "rollback"

    with client.half_messages("checkers", check=lambda message: "unknown") as half:
        first = half.send("t", "a", key="0", transactional_id="order-0")
        assert (first.transactional_id, first.topic, first.state) == ("order-0", "t", "pending")
        assert values(client) == []
        first.commit()
        assert half.send_in_transaction("t", "b", key="1", execute=execute).state == "committed"
        assert half.send_in_transaction("t", "c", key="2", execute=execute).state == "rolled_back"
        second = half.send("t", "d")
        second.rollback()
        with pytest.raises(errors.TransactionAborted):
            second.commit()
    assert half.closed
    assert threads == [threading.current_thread()] * 2
    with client.consumer("t", start="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < 2:
            found += [message.value for message in consumer.fetch(10, timeout=10)]
    assert sorted(found, key=str) == [b"a", b"b"]

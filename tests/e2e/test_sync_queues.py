"""Queues without asyncio, and `ledgermq queue`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

import ledgermq.sync
from ledgermq import errors
from tests.e2e import test_cli
from tests.e2e.test_cli import Shell
from tests.waiting import wait_until

shell = test_cli.shell
_names = (f"sync-queue-{number}" for number in itertools.count())


@pytest.fixture
def client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        yield client


def fill(client: ledgermq.sync.Client, count: int) -> None:
    client.create_topic("jobs", 1, if_not_exists=True)
    with client.producer() as producer:
        producer.send_many("jobs", [b"%d" % number for number in range(count)])


def test_a_queue_from_a_plain_thread(client: ledgermq.sync.Client) -> None:
    fill(client, 5)
    with client.queue("jobs", group="workers") as queue:
        messages = queue.fetch(max_records=3, timeout=10)
        assert [message.value for message in messages] == [b"0", b"1", b"2"]
        assert all(message.ack().result(30) for message in messages)
        for message in queue:
            assert message.nack(delay=3600).result(30)
            break
        queue.flush()
        [found] = client.queues.list()
        assert (found.group, found.backlog, found.partitions[0].waiting) == ("workers", 2, 1)
    assert queue.closed
    client.queues.reset("workers", "jobs", "latest")
    assert client.queues.describe("workers").backlog == 0
    client.queues.delete("workers", "jobs")
    with pytest.raises(errors.UnknownGroup):
        client.queues.describe("workers")


def test_handlers_run_in_threads(client: ledgermq.sync.Client) -> None:
    fill(client, 6)
    seen: list[tuple[bytes | None, str]] = []

    @client.queue_handler("jobs", group="workers", concurrency=3)
    def work(message: ledgermq.QueueMessage) -> None:
        seen.append((message.value, threading.current_thread().name))

    stop = threading.Event()
    running = threading.Thread(target=client.run_handlers, kwargs={"stop": stop})
    running.start()
    wait_until(lambda: work.handled == 6)
    stop.set()
    running.join()
    assert sorted(value for value, _ in seen if value) == [b"%d" % number for number in range(6)]
    assert threading.current_thread().name not in {name for _, name in seen}


def test_the_command_line(shell: Shell) -> None:
    with ledgermq.sync.connect(shell.address) as client:
        fill(client, 5)
        with client.queue("jobs", group="workers") as queue:
            assert queue.fetch(max_records=2, timeout=10)[0].ack().result(30)
            [row] = shell.json("queue", "list")["queues"]
            assert (row["group"], row["backlog"], row["leased"]) == ("workers", 4, 1)
            found = shell.json("queue", "describe", "workers")
            assert found["partitions"][0]["start"] == 1
            assert found["members"][0]["member"] == queue.member_id
        [reset] = shell.json("queue", "reset", "workers", "--topic", "jobs", "--to", "latest", "--yes")["partitions"]
        assert reset["begins_at"] == 5
        assert shell("queue", "reset", "workers", "--topic", "jobs", "--to", "0:1", "--yes").code != 0
        shell("queue", "delete", "workers", "--topic", "jobs", "--yes")
        assert shell.json("queue", "list")["queues"] == []

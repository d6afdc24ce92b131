"""No call of the synchronous client waits for a thread that cannot answer: one that waits for a lock of the caller,
one that runs the caller's own function, one that a library has replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq
import ledgermq.sync
from ledgermq import errors
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings

_names = (f"sync-waits-{number}" for number in itertools.count())
LATE_S = 20.0
"""Far more than the calls of these tests take, and less than the 30 s of a client's default time-out."""

SENT = 1000


@pytest.fixture
def client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        client.create_topic("t", 1)
        yield client


IN_DICT_CONFIG = """
import logging.config, sys, ledgermq.sync

class ToTopic(logging.Handler):
    def __init__(self):
        super().__init__()
        self.client = ledgermq.sync.connect(sys.argv[1], timeout_s=50)
        self.client.create_topic("logs", partitions=1)
        print(self.client.producer().send("logs", b"first").result().offset)
        self.client.close()

    def emit(self, record):
        pass

handlers = {"topic": {"()": ToTopic}}
logging.config.dictConfig({"version": 1, "handlers": handlers, "root": {"handlers": ["topic"], "level": "DEBUG"}})
"""

GREEN_THREADS = """
import asyncio, threading, sys
real = threading.get_ident
def get_ident():
    return real()
get_ident.__module__ = "gevent.thread"
threading.get_ident = get_ident            # as the monkey patches of gevent and eventlet do
import ledgermq.sync

async def main():
    async with ledgermq.connect(sys.argv[1]):
        pass

for connect in (lambda: ledgermq.sync.connect(sys.argv[1]), lambda: asyncio.run(main())):
    try:
        connect()
    except ledgermq.errors.UsedElsewhere as error:
        print(error)
"""

GREEN_SELECTORS = """
import selectors, sys
class GeventSelector(selectors.DefaultSelector):
    pass
GeventSelector.__module__ = "gevent.selectors"
selectors.DefaultSelector = GeventSelector
import ledgermq.sync
try:
    ledgermq.sync.connect(sys.argv[1])
except ledgermq.errors.UsedElsewhere as error:
    print(error)
"""


async def run(program: str, address: str) -> tuple[int | None, str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), 60)
    except TimeoutError:
        child.kill()
        raise
    return child.returncode, out.decode(), err.decode()


async def test_a_client_works_while_logging_is_configured(tmp_path: Path) -> None:
    settings = load_settings(None, port=0, background_compaction=False)
    async with await Node.start(tmp_path.as_uri(), settings, Sources()) as node:
        assert await run(IN_DICT_CONFIG, node.address) == (0, "0\n", "")


@pytest.mark.parametrize(("program", "times"), [(GREEN_THREADS, 2), (GREEN_SELECTORS, 1)])
async def test_green_threads_are_refused(program: str, times: int) -> None:
    code, out, err = await run(program, "127.0.0.1:1")
    assert (code, err) == (0, "")
    assert out.count("gevent has replaced") == times


def test_a_call_ends_in_time_while_the_thread_is_blocked() -> None:
    held, blocked = threading.Lock(), threading.Event()

    def block() -> None:
        blocked.set()
        with held:
            pass

    with held, ledgermq.sync.connect("127.0.0.1:1", timeout_s=2) as client:
        consumer = client.consumer("t")
        client._background.loop.call_soon_threadsafe(block)
        assert blocked.wait(LATE_S)
        begun_s = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded, match=r"at .*test_sync_waits\.py:[0-9]+ \(block\)"):
            client.list_topics()
        with pytest.raises(errors.DeadlineExceeded):
            consumer.fetch(timeout=1)
        with pytest.raises(errors.DeadlineExceeded):
            client.close()
        assert time.monotonic() - begun_s < LATE_S


def test_a_listener_cannot_close_its_client(client: ledgermq.sync.Client) -> None:
    raised: list[BaseException | None] = []
    called = threading.Event()

    def handle(message: ledgermq.GroupMessage) -> None:
        try:
            client.close()
        except errors.UsedElsewhere as error:
            raised.append(error)
        called.set()

    with client.listen("t", handle, group="g", start="earliest"):
        client.producer().send("t", b"x").result()
        assert called.wait(LATE_S)
    assert len(raised) == 1
    assert client.list_topics()


def test_a_listener_may_stop_itself(client: ledgermq.sync.Client) -> None:
    with client.producer() as producer:
        for number in range(SENT):
            producer.send("t", b"%d" % number)
    seen: list[bytes | None] = []

    def handle(message: ledgermq.GroupMessage) -> None:
        seen.append(message.value)
        listener.close()

    listener = client.listen("t", handle, group="g", start="earliest")
    listener.wait(LATE_S)
    assert len(seen) < SENT / 2
    assert client.groups.lag("g")[ledgermq.TopicPartition("t", 0)].messages == SENT - len(seen)


def test_a_callback_cannot_close_its_client(client: ledgermq.sync.Client) -> None:
    client.producer().send("t", b"x").result()
    raised: list[type[BaseException]] = []

    def on_assigned(partitions: object) -> None:
        try:
            client.close()
        except errors.LedgerMQError as error:
            raised.append(type(error))

    with client.consumer("t", group="g", start="earliest", on_assigned=on_assigned) as consumer:
        assert next(consumer).value == b"x"
    assert raised == [errors.UsedElsewhere]


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(f"no line of {record.name} can be written")


def test_what_a_log_handler_raises_reaches_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    raising, root = Raising(), logging.getLogger()
    level = root.level
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        root.addHandler(raising)
        root.setLevel(logging.DEBUG)
        try:
            client.create_topic("t", 1)
            client._background.loop.call_soon_threadsafe(lambda: 1 / 0)  # asyncio logs it
            assert client.producer().send("t", b"x").result(LATE_S).offset == 0
            with client.consumer("t", group="g", start="earliest") as consumer:
                assert next(consumer).value == b"x"
            client.close()
        finally:
            root.removeHandler(raising)
            root.setLevel(level)

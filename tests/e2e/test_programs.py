"""Whole programs in separate processes: what they print at their end, what they do after a fork,
and what they lose without `close`.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.processes import BrokerProcesses

PROGRAM_S_MAX = 120.0
RUNS = 6


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("programs")
    with BrokerProcesses(folder, (folder / "root").as_uri()) as processes:
        broker = processes.start()
        yield broker.address
        assert "[error" not in broker.text()


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ends, or raises TimeoutExpired."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)


LOOPS = """
    import asyncio, random, sys
    import ledgermq

    async def main(number):
        async with ledgermq.connect(sys.argv[1]) as client:
            await client.create_topic("loops", 4, if_not_exists=True)
            producer = client.producer()
            for _ in range(50):
                producer.send("loops", b"x" * 1000)
            group = sys.argv[2]  # its own: a member that others take partitions from says so when it closes
            consumers = [client.consumer("loops", group=group) if n % 2 else client.consumer("loops") for n in range(4)]
            calls = [asyncio.create_task(consumer.fetch(timeout=5)) for consumer in consumers]
            calls += [asyncio.create_task(client.list_topics()) for _ in range(5)]
            await asyncio.sleep(random.uniform(0, 0.1))
            for call in calls:
                call.cancel()

    for number in range(6):
        asyncio.run(main(number))
"""


@pytest.mark.slow
def test_programs_end_without_a_word(address: str) -> None:
    """Calls that are cancelled leave events in gRPC for loops that are closed; the next loop of the
    process gets them.
    """
    with ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(lambda number: run(LOOPS, address, f"g{number}"), range(RUNS)))
    assert [(program.returncode, program.stderr) for program in ended] == [(0, "")] * RUNS


FORKED = """
    import asyncio, os, sys, time
    import ledgermq, ledgermq.sync
    from ledgermq import errors

    def refused(name, call):
        begun = time.monotonic()
        try:
            call()
        except errors.UsedElsewhere as error:
            assert time.monotonic() - begun < 30, name
            assert "fork" in error.message, (name, error.message)
        else:
            raise AssertionError(f"{name} was not refused")

    def end_child(work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == 0, code
"""

SYNC_FORK = (
    FORKED
    + """
    target = sys.argv[1]
    with ledgermq.sync.connect(target, timeout_s=60) as client:
        client.create_topic("forked", 1, if_not_exists=True)
        producer = client.producer()
        producer.send("forked", b"v").result()
        consumer, member = client.consumer("forked"), client.consumer("forked", group=str(os.getpid()))
        message, taken = next(consumer), next(member)
        table = client.table("forked")

        def child():
            refused("list_topics", client.list_topics)
            refused("send", lambda: producer.send("forked", b"v"))
            refused("flush", producer.flush)
            refused("next", lambda: next(consumer))
            refused("fetch", consumer.fetch)
            refused("member", lambda: next(member))
            refused("ack", taken.ack)
            refused("table", lambda: table.get("k"))
            refused("close", client.close)
            if "://" not in target:
                def connect():
                    with ledgermq.sync.connect(target, timeout_s=60) as other:
                        other.list_topics()
                refused("connect", connect)

        end_child(child)
        assert producer.send("forked", b"v").result().offset == 1 or "://" not in target
        assert next(consumer).offset == 1
"""
)

ASYNC_FORK = (
    FORKED
    + """
    async def main():
        async with ledgermq.connect(sys.argv[1], timeout_s=60) as client:
            await client.create_topic("forked-async", 1, if_not_exists=True)
            producer, consumer = client.producer(), client.consumer("forked-async")
            await producer.send("forked-async", b"v")
            await consumer.fetch(1, timeout=30)

            def child():
                refused("send", lambda: producer.send("forked-async", b"v"))
                for call in (client.list_topics, producer.flush, consumer.fetch, client.close):
                    refused(call.__qualname__, lambda: asyncio.run(call()))

            end_child(child)
            await producer.send("forked-async", b"v")

    asyncio.run(main())
"""
)


@pytest.mark.parametrize("program", [SYNC_FORK, ASYNC_FORK], ids=["sync", "async"])
@pytest.mark.parametrize("embedded", [False, True], ids=["grpc", "embedded"])
def test_a_forked_process_is_refused_at_once_and_its_parent_goes_on(
    address: str, program: str, embedded: bool, tmp_path: Path
) -> None:
    ended = run(program, tmp_path.as_uri() if embedded else address)
    assert ended.returncode == 0, ended.stderr


def test_a_multiprocessing_child_is_refused_and_a_spawned_one_works(address: str, tmp_path: Path) -> None:
    program = tmp_path / "pool.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            import ledgermq.sync
            from ledgermq import errors

            def child(target):
                try:
                    with ledgermq.sync.connect(target, timeout_s=60) as client:
                        return client.create_topic("pool", 1, if_not_exists=True).name
                except errors.UsedElsewhere:
                    return "refused"

            if __name__ == "__main__":
                with ledgermq.sync.connect(sys.argv[1]) as client:
                    client.list_topics()
                    for method in ("fork", "spawn"):
                        with multiprocessing.get_context(method).Pool(1) as pool:
                            print(pool.apply(child, [sys.argv[1]]))
            """)
    )
    ended = subprocess.run(
        [sys.executable, program, address], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
    )
    assert ended.stdout.split() == ["refused", "pool"], ended.stderr


def test_another_event_loop_is_refused_at_once(address: str) -> None:
    program = """
    import asyncio, sys
    import ledgermq
    from ledgermq import errors

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    connection = ledgermq.connect(sys.argv[1])
    client = first.run_until_complete(connection.__aenter__())
    first.run_until_complete(client.create_topic("moved", 1, if_not_exists=True))

    async def made():
        producer, consumer = client.producer(), client.consumer("moved")
        await producer.send("moved", b"v")
        await consumer.fetch(1, timeout=30)
        return producer, consumer, producer.send("moved", b"v", partition=0)

    producer, consumer, delivery = first.run_until_complete(made())

    async def elsewhere():
        async def send():
            await producer.send("moved", b"v", key=b"k")
        async def wait():
            await delivery
        calls = (client.list_topics, send, wait, producer.flush, consumer.fetch)
        for call in (*calls, producer.close, consumer.close, client.close):
            try:
                async with asyncio.timeout(10):
                    await call()
            except errors.UsedElsewhere as error:
                assert "another event loop" in error.message
            else:
                raise AssertionError(call)

    second.run_until_complete(elsewhere())
    first.run_until_complete(connection.__aexit__(None, None, None))
    """
    ended = run(program, address)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_that_does_not_close_its_client_reads_how_much_may_be_lost(address: str) -> None:
    program = """
    import sys
    import ledgermq.sync

    client = ledgermq.sync.connect(sys.argv[1])
    client.create_topic("unclosed", 1, if_not_exists=True)
    producer = client.producer(linger_ms=60_000)
    producer.send_many("unclosed", [b"v"] * 37)
    if len(sys.argv) > 2:
        client.close()
    """
    assert run(program, address, "close").stderr == ""
    ended = run(program, address)
    assert "37 records may not be stored: a client of ledgermq.sync was not closed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_told_in_one_line(address: str, tmp_path: Path) -> None:
    port = address.rpartition(":")[2]
    command = [sys.executable, "-m", "ledgermq.cli.main", "broker", tmp_path.as_uri(), "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert ended.returncode
    assert ended.stderr.startswith("error [INVALID_CONFIG] cannot listen on"), ended.stderr
    assert "add_port.cc" not in ended.stderr

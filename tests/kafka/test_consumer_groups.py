"""librdkafka and Java with `group.protocol=consumer` (KIP-848): members that the broker assigns, also beside ours."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from infra import java, maven
from ledgermq_broker.node import Node
from tests.kafka.java import TOOLS, command, running, tool
from tests.kafka.nodes import served, start
from tests.kafka.test_groups import fill, numbers, poll
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

GROUPS = "consumer.group.ConsumerGroupCommand"
DEADLINE_S = 60.0
SESSION_MS = 6000
JAVA = ("--consumer-property", "group.protocol=consumer")

MEMBER_UNTIL_KILLED = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic], on_assign=lambda _, given: print("assigned", len(given), flush=True))
while True:
    consumer.poll(0.1)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker from which silent members are gone soon: the session is the broker's setting here, not the client's."""
    with served(tmp_path_factory.mktemp("root"), group_session_timeout_ms=SESSION_MS) as found:
        yield found


@pytest.fixture
def at(node: Node) -> str:
    return str(node.kafka_address)


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    """A client that a failed test leaves open would wait for its broker for ever."""
    yield
    while _opened:
        with suppress(RuntimeError):  # it is closed
            _opened.pop().close()


_opened: list[Any] = []


def member(at: str, group: str, **settings: Any) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": at,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1000,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    _opened.append(consumer)
    return consumer


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_librdkafka_shares_a_topic_and_goes_on_where_it_was(at: str, assignor: str) -> None:
    topic = f"shared-{assignor}"
    values = fill(at, topic)
    found: list[bytes] = []
    first = member(at, topic, group_remote_assignor=assignor)
    first.subscribe([topic])
    poll([first], lambda: numbers(first) == [0, 1], found)
    second = member(at, topic, group_remote_assignor=assignor)
    second.subscribe([topic])
    poll([first, second], lambda: len(numbers(first)) == len(numbers(second)) == 1, found)
    poll([first, second], lambda: set(found) == values, found)
    first.close()
    poll([second], lambda: numbers(second) == [0, 1], found)
    second.close()
    more = fill(at, topic, 20)
    third, later = member(at, topic, group_remote_assignor=assignor), list[bytes]()
    third.subscribe([topic])
    poll([third], lambda: len(later) >= 20, later)
    assert set(later) == more, "it goes on where they were"
    third.close()


def test_a_member_that_is_killed_loses_its_partitions_when_its_session_ends(at: str) -> None:
    topic = "killed"
    fill(at, topic, 2)
    program = [sys.executable, "-c", MEMBER_UNTIL_KILLED, at, topic, topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "assigned 2\n"
        other = member(at, topic)
        other.subscribe([topic])
        poll([other], lambda: len(numbers(other)) == 1)
        process.kill()
        killed_s = time.monotonic()
        poll([other], lambda: numbers(other) == [0, 1])
        assert time.monotonic() - killed_s > SESSION_MS / 1000 / 2, "not before its session could end"
    other.close()


def test_topics_come_in_by_a_pattern(at: str) -> None:
    fill(at, "by-pattern-1", 2)
    consumer = member(at, "by-pattern")
    consumer.subscribe(["^by-pattern-.*"])
    poll([consumer], lambda: len(consumer.assignment()) == 2)
    fill(at, "by-pattern-2", 2)
    poll([consumer], lambda: {place.topic for place in consumer.assignment()} == {"by-pattern-1", "by-pattern-2"})
    consumer.close()


def test_a_static_member_comes_back_to_its_partitions(at: str) -> None:
    fill(at, "static", 2)
    one, two = member(at, "static", group_instance_id="1"), member(at, "static", group_instance_id="2")
    for each in (one, two):
        each.subscribe(["static"])
    poll([one, two], lambda: len(numbers(one)) == len(numbers(two)) == 1)
    before = numbers(one)
    one.close()
    again = member(at, "static", group_instance_id="1")
    again.subscribe(["static"])
    poll([again, two], lambda: numbers(again) == before)
    assert len(numbers(two)) == 1
    again.close()
    two.close()


async def test_members_of_both_protocols_share_a_group(at: str, node: Node) -> None:
    values = await asyncio.to_thread(fill, at, "both")
    async with ledgermq.connect(node.address) as client, client.consumer("both", group="both") as ours:
        await ours.wait_ready()
        theirs = member(at, "both")
        theirs.subscribe(["both"])
        found: list[bytes] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(ours.assignment) != 1 or len(numbers(theirs)) != 1:
                found += [message.value or b"" for message in await ours.fetch(timeout=0.1)]
                message = await asyncio.to_thread(theirs.poll, 0.1)
                found += [message.value()] if message is not None else []
            while set(found) != values:
                found += [message.value or b"" for message in await ours.fetch(timeout=0.1)]
                message = await asyncio.to_thread(theirs.poll, 0.1)
                found += [message.value()] if message is not None else []
        [shown] = [member for member in (await client.groups.describe("both")).members if member.client_id == "rdkafka"]
        assert {place.partition for place in shown.owned} == set(numbers(theirs))
        await asyncio.to_thread(theirs.close)
        async with asyncio.timeout(DEADLINE_S):
            while len(ours.assignment) != 2:
                await ours.fetch(timeout=0.1)


@pytest.mark.slow
async def test_members_go_on_when_brokers_leave_one_by_one(tmp_path: Path) -> None:
    nodes = [await start(tmp_path, default_partitions=3) for _ in range(3)]
    addresses = ",".join(str(node.kafka_address) for node in nodes)
    first, second = member(addresses, "g"), member(addresses, "g")
    try:
        found: list[bytes] = []
        for number in range(3):
            if number:
                await nodes.pop(0).stop()
            values = await asyncio.to_thread(fill, addresses, "t", 20 * (number + 1))
            if not number:
                for each in (first, second):
                    each.subscribe(["t"])
                await asyncio.to_thread(poll, [first, second], lambda: numbers(first) and numbers(second), found)
            await asyncio.to_thread(poll, [first, second], lambda values=values: set(found) == values, found)
    finally:
        await asyncio.to_thread(first.close)
        await asyncio.to_thread(second.close)
        for node in nodes:
            await node.stop()


# Java


@pytest.mark.slow
def test_the_console_consumer_and_tools_of_groups(at: str, tmp_path: Path) -> None:
    values = fill(at, "java", 20)
    group = ("--bootstrap-server", at, "--group", "java")
    console = command(
        f"{TOOLS}.consumer.ConsoleConsumer", *group, "--topic", "java", "--from-beginning", *JAVA
    )  # fmt: skip
    with running(console, log := tmp_path / "consumer.log"):
        wait_until(lambda: len(log.read_text().splitlines()) >= len(values))
        [state] = [line for line in tool(GROUPS, *group, "--describe", "--state").splitlines() if "java" in line]
        assert state.split()[-2:] == ["Stable", "1"]
        said = tool(GROUPS, *group, "--describe", "--members", "--verbose")
        assert "java:0,1" in said
        with running(console, other := tmp_path / "other.log"):
            wait_until(lambda: tool(GROUPS, *group, "--describe", "--state").split()[-2:] == ["Stable", "2"])
            more = fill(at, "java", 60) - values
            wait_until(lambda: _lines(log, other) >= {value.decode() for value in more})
        wait_until(lambda: "java:0,1" in tool(GROUPS, *group, "--describe", "--members", "--verbose"))
    assert {value.decode() for value in values | more} <= _lines(log, other)
    lags = [line.split() for line in tool(GROUPS, *group, "--describe").splitlines() if line.startswith("java")]
    assert [row[5] for row in lags] == ["0", "0"], "closing commits"
    tool(GROUPS, *group, "--reset-offsets", "--to-earliest", "--topic", "java", "--execute")
    tool(GROUPS, *group, "--delete")


@pytest.mark.slow
def test_java_takes_in_topics_by_a_pattern_that_the_broker_matches(at: str, tmp_path: Path) -> None:
    fill(at, "java-pattern-1", 2)
    command("ByPattern")  # skips where there is no Java
    java.compile_source(Path(__file__).parent / "programs" / "ByPattern.java", tmp_path, maven.jars("kafka"))
    program = command("ByPattern", at, "java-pattern", "java-pattern-.*", classes=tmp_path)
    with running(program, log := tmp_path / "consumer.log"):
        wait_until(lambda: len(_lines(log)) >= 2)
        values = fill(at, "java-pattern-2", 2)
        wait_until(lambda: _lines(log) >= {value.decode() for value in values})


def _lines(*logs: Path) -> set[str]:
    return {line for log in logs for line in log.read_text().splitlines()}

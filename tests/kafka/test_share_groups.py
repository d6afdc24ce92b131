"""Java's share consumer (KIP-932): members share a topic, and go on when one of them, or a broker, is killed."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra import java, maven
from ledgermq.errors import LedgerMQError
from ledgermq.sync import connect
from tests.kafka.brokers import processes, seeds
from tests.kafka.java import command, running, tool
from tests.kafka.nodes import served
from tests.kafka.topics import create, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
EARLIEST = ("--kafka-share-auto-offset-reset", "earliest")
LOCK_S = 30
PATIENCE_S = 180


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command("ShareWork")  # skips where there is no Java
    folder = tmp_path_factory.mktemp("classes")
    for program in ("ShareWork", "ShareOffset"):
        java.compile_source(PROGRAMS / f"{program}.java", folder, maven.jars("kafka"))
    return folder


@pytest.fixture(scope="module")
def share_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A broker whose share groups begin at the first message: where Kafka's clients reach it, and ours."""
    with served(tmp_path_factory.mktemp("root"), kafka_share_auto_offset_reset="earliest") as node:
        assert node.kafka_address is not None
        yield node.kafka_address, node.address


def lines(*logs: Path, kind: str = "done") -> list[str]:
    found = [line for log in logs for line in log.read_text().splitlines() if line.startswith(kind + " ")]
    return [line.split()[1] for line in found]


def last_of(log: Path) -> set[str]:
    """What a member that was killed may have accepted, and had no time to say so: it gets ten at a time."""
    return set(lines(log, kind="got")[-10:])


def backlog(address: str, group: str) -> int:
    """Messages that are not finished; -1 while an owner is looked for."""
    with connect(address) as client:
        try:
            return client.queues.describe(group).backlog
        except LedgerMQError:
            return -1


def test_two_members_share_a_topic_and_one_is_killed(
    share_bootstrap: tuple[str, str], classes: Path, tmp_path: Path
) -> None:
    bootstrap, address = share_bootstrap
    topic, group = f"t{uuid.uuid4().hex}", f"g{uuid.uuid4().hex}"
    create(bootstrap, topic)
    values = [f"m{number}" for number in range(300)] + [f"again{n}" for n in range(5)] + [f"bad{n}" for n in range(5)]
    write(bootstrap, topic, values)
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(command("ShareWork", bootstrap, group, topic, "20", classes=classes), log))
            for log in logs
        ]
        wait_until(lambda: all(len(lines(log)) > 20 for log in logs), PATIENCE_S)
        shown = tool("consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap, "--list")
        assert group in shown.splitlines()
        said = tool(
            *("consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap),
            *("--describe", "--members", "--group", group),
        )
        assert said.count("worker") == 2, said
        members[0].kill()
        wait_until(lambda: backlog(address, group) == 0, PATIENCE_S)
        assert members[1].poll() is None
        wait_until(lambda: set(lines(*logs)) | last_of(logs[0]) >= set(values), PATIENCE_S, what="all is done")
    done = Counter(lines(*logs))
    assert max(done.values()) == 1, "at most one member's word counts for a message"
    with connect(address) as client:
        letters = client.dead_letters.list(group).letters
    assert {(each.message.value, each.failures.error) for each in letters} == {
        (b"bad%d" % number, "a member rejected it") for number in range(5)
    }
    assert {
        line.split()[2] for log in logs for line in log.read_text().splitlines() if line.startswith("done again")
    } <= {
        "2",
        "3",
    }


def test_members_go_on_when_a_broker_is_killed(classes: Path, tmp_path: Path) -> None:
    with processes(tmp_path, 3, *EARLIEST) as brokers, ExitStack() as stack:
        bootstrap = seeds(brokers)
        create(bootstrap, "jobs", partitions=6)
        values = [f"m{number}" for number in range(600)]
        write(bootstrap, "jobs", values)
        logs = [tmp_path / f"{number}.log" for number in range(2)]
        for log in logs:
            program = command("ShareWork", bootstrap, "workers", "jobs", "10", classes=classes)
            stack.enter_context(running(program, log))
        wait_until(lambda: all(len(lines(log)) > 50 for log in logs), PATIENCE_S)
        brokers.kill(brokers.running[0])
        before = len(lines(*logs))
        assert before < len(values)
        address = brokers.running[0].address
        wait_until(lambda: backlog(address, "workers") == 0, PATIENCE_S)
        wait_until(lambda: {*lines(*logs), *lines(*logs, kind="late")} >= set(values), PATIENCE_S, what="all is done")
    done = Counter(lines(*logs))
    assert [value for value, count in done.items() if count > 1] == []


def test_the_console_tool_reads_as_a_member(share_bootstrap: tuple[str, str]) -> None:
    bootstrap, _ = share_bootstrap
    topic, group = f"t{uuid.uuid4().hex}", f"g{uuid.uuid4().hex}"
    create(bootstrap, topic)
    write(bootstrap, topic, ["one", "two", "three"])
    begun_s = time.monotonic()
    said = tool(
        *("consumer.ConsoleShareConsumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", "3", "--timeout-ms", "60000"),
    )
    assert sorted(said.splitlines()[:3]) == ["one", "three", "two"]
    assert time.monotonic() - begun_s < LOCK_S * 4


def test_tools_show_set_and_delete_the_offsets_of_an_empty_group(
    share_bootstrap: tuple[str, str], classes: Path
) -> None:
    bootstrap, _ = share_bootstrap
    topic, group = f"t{uuid.uuid4().hex}", f"g{uuid.uuid4().hex}"
    create(bootstrap, topic, partitions=1)
    write(bootstrap, topic, ["one", "two", "three"])

    def read(count: int) -> list[str]:
        said = tool(
            *("consumer.ConsoleShareConsumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
            *("--max-messages", str(count), "--timeout-ms", "60000"),
        )
        return said.splitlines()[:count]

    def groups(*arguments: str) -> str:
        return tool("consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap, "--group", group, *arguments)

    def start() -> str:
        rows = [line.split() for line in groups("--describe", "--offsets").splitlines()]
        [row] = [row for row in rows if row[:3] == [group, topic, "0"]]
        return row[3]

    assert read(3) == ["one", "two", "three"]
    assert start() == "3"
    sets = command("ShareOffset", bootstrap, group, topic, "0", "1", classes=classes)  # the tool of 4.1 cannot yet
    assert "set" in subprocess.run(sets, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True).stdout
    assert start() == "1"
    assert read(2) == ["two", "three"]
    said = groups("--delete-offsets", "--topic", topic)
    assert "Successful" in said, said
    assert "GroupIdNotFoundException" in groups("--describe", "--offsets")


def test_tools_list_and_delete_an_empty_group_and_show_its_settings(share_bootstrap: tuple[str, str]) -> None:
    bootstrap, address = share_bootstrap
    topic, group = f"t{uuid.uuid4().hex}", f"g{uuid.uuid4().hex}"
    create(bootstrap, topic, partitions=2)
    write(bootstrap, topic, ["one", "two", "three"])
    tool(
        *("consumer.ConsoleShareConsumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", "3", "--timeout-ms", "60000"),
    )

    def groups(*arguments: str) -> str:
        return tool("consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap, *arguments)

    wait_until(lambda: f"{group} Empty" in " ".join(groups("--list", "--state").split()), PATIENCE_S)
    assert group in groups("--list").splitlines()
    assert group not in tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap, "--list")

    def configs(*arguments: str, status: int = 0) -> str:
        return tool(
            *("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--entity-type", "groups"),
            *("--entity-name", group, *arguments),
            status=status,
        )

    assert "share.record.lock.duration.ms=30000" in configs("--describe", "--all")
    assert "Completed" in configs("--alter", "--add-config", "share.auto.offset.reset=earliest")
    assert "kafka_share_auto_offset_reset" in configs(
        "--alter", "--add-config", "share.auto.offset.reset=latest", status=1
    )
    said = groups("--delete", "--group", group)
    assert "successful" in said, said
    assert group not in groups("--list").splitlines()
    assert backlog(address, group) == -1

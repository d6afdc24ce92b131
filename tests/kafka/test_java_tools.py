"""Kafka's own command line tools, as they are in Kafka 4.1, work with the Kafka port."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.kafka.java import TOOLS, command, running, tool
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = "consumer.group.ConsumerGroupCommand"
CONSUMER = "consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
DEADLINE_MS = 100_000


@pytest.fixture
def at(bootstrap: str) -> tuple[str, str]:
    return ("--bootstrap-server", bootstrap)


@pytest.fixture
def topic(at: tuple[str, str]) -> str:
    """A topic of two partitions."""
    name = f"t{uuid.uuid4().hex}"
    assert f"Created topic {name}." in tool("TopicCommand", *at, "--create", "--topic", name, "--partitions", "2")
    return name


def produced(at: tuple[str, str], topic: str, *lines: str, more: tuple[str, ...] = ()) -> None:
    """Write lines `key:value` with the console producer."""
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool("ConsoleProducer", *at, "--topic", topic, *keyed, *more, text="".join(f"{line}\n" for line in lines))


def consumed(at: tuple[str, str], topic: str, group: str, count: int, *more: str) -> list[str]:
    keyed = ("--property", "print.key=true", "--property", "key.separator=:", "--group", group)
    wait_ms = str(DEADLINE_MS)
    said = tool(
        CONSUMER, *at, "--topic", topic, "--from-beginning", *keyed, "--max-messages", str(count),
        "--timeout-ms", wait_ms, *more,
    )  # fmt: skip
    return sorted(line for line in said.splitlines() if ":" in line)


def rows(said: str, first: str) -> list[list[str]]:
    """Return the cells of the lines that begin with a word."""
    return sorted(line.split() for line in said.splitlines() if line.split()[:1] == [first])


def test_topics(at: tuple[str, str], bootstrap: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    create = ("TopicCommand", *at, "--create", "--topic", name, "--partitions", "3", "--replication-factor", "1")
    tool(*create, "--config", "retention.ms=3600000", "--config", "cleanup.policy=delete")
    assert "exists, with 3 partitions" in tool(*create, status=1)
    tool(*create, "--if-not-exists")
    assert name in tool("TopicCommand", *at, "--list").split()
    said = tool("TopicCommand", *at, "--describe", "--topic", name)
    assert "PartitionCount: 3" in said
    assert "retention.ms=3600000" in said
    tool("TopicCommand", *at, "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in tool("TopicCommand", *at, "--describe", "--topic", name)
    assert "Error while executing topic command" in tool(
        "TopicCommand", *at, "--alter", "--topic", name, "--partitions", "4", status=1
    )
    tool("TopicCommand", *at, "--delete", "--topic", name)
    assert name not in tool("TopicCommand", *at, "--list").split()
    assert "does not exist" in tool("TopicCommand", *at, "--describe", "--topic", name, status=1)


def test_settings_of_topics(at: tuple[str, str], topic: str) -> None:
    named = (*at, "--entity-type", "topics", "--entity-name", topic)
    tool(CONFIGS, *named, "--alter", "--add-config", "retention.ms=7200000,max.message.bytes=1000000")
    said = tool(CONFIGS, *named, "--describe")
    assert "retention.ms=7200000 sensitive=false" in said
    assert "max.message.bytes=1000000 sensitive=false" in said
    tool(CONFIGS, *named, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(CONFIGS, *named, "--describe")
    assert "InvalidConfigurationException" in tool(
        CONFIGS, *named, "--alter", "--add-config", "no.such.setting=1", status=1
    )
    said = tool(CONFIGS, *at, "--entity-type", "brokers", "--describe", "--all")
    assert "auto.create.topics.enable=true" in said


def test_console_producer_and_consumer(at: tuple[str, str], topic: str) -> None:
    lines: list[str] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        written = [f"k{number % 7}:{codec} {number}" for number in range(50)]
        produced(at, topic, *written, more=("--compression-codec", codec))
        lines += written
    assert consumed(at, topic, f"{topic}-g", len(lines)) == sorted(lines)
    produced(at, topic, "k:last")
    more = ("--isolation-level", "read_committed")
    assert consumed(at, topic, f"{topic}-g", 1, *more) == ["k:last"]  # the first reader's offsets are committed


def test_headers_and_tombstones(at: tuple[str, str], topic: str) -> None:
    with_headers = ("--property", "parse.headers=true", "--property", "null.marker=NULL")
    produced(at, topic, "h1:one,h2:two\tk:v", "NULL\tk:NULL", more=with_headers)
    shown = ("--property", "print.headers=true", "--property", "null.literal=NULL")
    found = consumed(at, topic, f"{topic}-g", 2, *shown)
    assert found == sorted(["h1:one,h2:two:k:v", "NO_HEADERS:k:NULL"])


def test_groups(at: tuple[str, str], topic: str, tmp_path: Path) -> None:
    group = f"{topic}-g"
    named = (*at, "--group", group)
    produced(at, topic, *(f"k{number}:v" for number in range(20)))
    program = command(f"{TOOLS}.VerifiableConsumer", *at, "--topic", topic, "--group-id", group)
    with running([*program, "--reset-policy", "earliest", "--verbose"], log := tmp_path / "consumer.log"):
        wait_until(lambda: '"offsets_committed"' in log.read_text() and log.read_text().count('"record_data"') == 20)
        [state] = rows(tool(GROUPS, *named, "--describe", "--state"), group)
        assert state[-2:] == ["Stable", "1"]
        [member] = rows(tool(GROUPS, *named, "--describe", "--members", "--verbose"), group)
        assert f"{topic}:0,1" in " ".join(member)
        reset = (*named, "--reset-offsets", "--to-earliest", "--topic", topic)
        assert "inactive" in tool(GROUPS, *reset, "--execute")  # this tool always ends with 0
        assert "GroupNotEmptyException" in tool(GROUPS, *named, "--delete")
    assert group in tool(GROUPS, *at, "--list").split()
    assert [group, "Classic", "consumer"] in rows(tool("GroupsCommand", *at, "--list"), group)
    lags = rows(tool(GROUPS, *named, "--describe"), group)
    assert [row[5] for row in lags] == ["0", "0"]
    tool(GROUPS, *reset, "--execute")
    lags = rows(tool(GROUPS, *named, "--describe"), group)
    assert sum(int(row[5]) for row in lags) == 20
    tool(GROUPS, *named, "--reset-offsets", "--shift-by", "3", "--topic", f"{topic}:0", "--execute")
    assert [row[3] for row in rows(tool(GROUPS, *named, "--describe"), group)] == ["3", "0"]
    past = ("--to-datetime", "2001-02-03T04:05:06.000", "--topic", topic, "--dry-run")
    assert [row[3] for row in rows(tool(GROUPS, *named, "--reset-offsets", *past), group)] == ["0", "0"]
    tool(GROUPS, *named, "--delete-offsets", "--topic", topic)
    tool(GROUPS, *named, "--delete")
    assert group not in tool(GROUPS, *at, "--list").split()
    assert "GroupIdNotFoundException" in tool(GROUPS, *named, "--describe")


def test_verifiable_clients(at: tuple[str, str], topic: str) -> None:
    said = tool("VerifiableProducer", *at, "--topic", topic, "--max-messages", "500")
    events = [json.loads(line) for line in said.splitlines()]
    sent = [(one["partition"], one["offset"]) for one in events if one["name"] == "producer_send_success"]
    assert len(sent) == len(set(sent)) == 500
    read = ("--group-id", f"{topic}-g", "--max-messages", "500", "--reset-policy", "earliest", "--verbose")
    said = tool("VerifiableConsumer", *at, "--topic", topic, *read)
    events = [json.loads(line) for line in said.splitlines()]
    found = [(one["partition"], one["offset"]) for one in events if one["name"] == "record_data"]
    assert sorted(found) == sorted(sent)


def test_performance_tools_run(at: tuple[str, str], bootstrap: str, topic: str) -> None:
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    to = ("--producer-props", f"bootstrap.servers={bootstrap}")
    assert "2000 records sent" in tool("ProducerPerformance", *load, *to)
    transactions = ("--transactional-id", f"{topic}-x", "--transaction-duration-ms", "20")
    assert "2000 records sent" in tool("ProducerPerformance", *load, *to, *transactions)
    said = tool("ConsumerPerformance", *at, "--topic", topic, "--messages", "4000")
    assert int(said.splitlines()[-1].split(", ")[4]) == 4000


def test_offsets_and_deletion_of_records(at: tuple[str, str], topic: str, tmp_path: Path) -> None:
    offsets = ("GetOffsetShell", *at, "--topic", topic)
    produced(at, topic, "k:1", "k:2", "k:3")
    ends = dict(line.rsplit(":", 1) for line in tool(*offsets).splitlines())
    assert sorted(ends.values()) == ["0", "3"]
    [full] = [int(name.split(":")[1]) for name, end in ends.items() if end == "3"]
    plan = tmp_path / "records.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": full, "offset": 2}]}))
    said = tool("DeleteRecordsCommand", *at, "--offset-json-file", str(plan))
    assert f"partition: {topic}-{full}\tlow_watermark: 2" in said
    assert f"{topic}:{full}:2" in tool(*offsets, "--time", "earliest").splitlines()
    assert f"{topic}:{full}:2" in tool(*offsets, "--time", "max-timestamp").splitlines()


def test_stored_bytes(at: tuple[str, str], bootstrap: str, topic: str) -> None:
    produced(at, topic, *(f"k:{'x' * 1000}" for _ in range(20)))
    said = tool("LogDirsCommand", *at, "--describe", "--topic-list", topic)
    [found] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [broker] = found["brokers"]
    [directory] = broker["logDirs"]
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert 20_000 < sum(sizes.values()) < 30_000


def test_transactions(at: tuple[str, str], bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaException, Producer

    name = f"{topic} x"  # an id of any text
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=1)
    producer.flush(60)
    [found] = [line for line in tool("TransactionsCommand", *at, "list").splitlines() if line.startswith(name)]
    assert found.split()[-1] == "Ongoing"
    said = tool("TransactionsCommand", *at, "describe", "--transactional-id", name)
    assert "Ongoing" in said
    assert f"{topic}-1" in said
    producer.commit_transaction(60)
    said = tool("TransactionsCommand", *at, "describe", "--transactional-id", name)
    assert "CompleteCommit" in said
    producer.begin_transaction()
    producer.produce(topic, b"never", partition=1)
    producer.flush(60)
    abort = ("abort", "--topic", topic, "--partition", "1", "--start-offset", "0")
    assert "does not support DESCRIBE_PRODUCERS" in tool("TransactionsCommand", *at, *abort, status=1)
    tool("TransactionsCommand", *at, "forceTerminateTransaction", "--transactionalId", name)
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    assert "could not be found" in tool("TransactionsCommand", *at, "describe", "--transactional-id", "none", status=1)


def test_the_cluster(at: tuple[str, str], bootstrap: str) -> None:
    assert "Produce(0): 0 to 12 [usable: 12]" in tool("BrokerApiVersionsCommand", *at)
    assert "Cluster ID: " in tool("ClusterTool", "cluster-id", *at)
    assert "unfenced" in tool("ClusterTool", "list-endpoints", *at)

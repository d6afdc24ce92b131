# ruff: noqa: F401, F811  fixtures are imported
"""`ledgermq message find | show | trace`, against a broker that runs."""

from __future__ import annotations

import time

import pytest

import ledgermq
from ledgermq.client.groups.retry_topics import Failures, Origin, headers_of
from ledgermq.client.settings.partitioner import partition_of_key
from tests.e2e.test_cli import Shell, shell
from tests.waiting import wait_until


@pytest.mark.slow
def test_messages_are_found_by_key_and_the_search_goes_on(shell: Shell) -> None:
    shell.json("topic", "create", "found", "--partitions", 3)
    at = partition_of_key(b"k", 3)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number in range(5):
            producer.send("found", f"value {number} " + "x" * 100, key="k", tag="t")
            producer.send("found", b"\xff\x00", key="other")
            producer.flush()
        producer.send("found", "elsewhere", key="k", partition=(at + 1) % 3)
        producer.send("found", "binary", key=b"\xff\x01")
    rows = shell.json("message", "find", "found", "--key", "k")["messages"]
    assert [row["value"][:7] for row in rows] == [f"value {number}" for number in (4, 3, 2, 1, 0)]
    assert all(len(row["value"]) > 100 for row in rows), "programs get whole values"
    first = shell("message", "find", "found", "--key", "k", "--max", 2, "--oldest-first")
    assert first.code == 0
    assert "value 0" in first.out
    assert "value 2" not in first.out
    assert "There may be more (--max 2); go on with --partition" in first.err
    options = first.err.split("go on with ")[1].split()
    more = shell.json("message", "find", "found", "--key", "k", "--oldest-first", *options)["messages"]
    assert [row["value"][:7] for row in more] == ["value 2", "value 3", "value 4"]
    everywhere = shell.json("message", "find", "found", "--key", "k", "--all-partitions")["messages"]
    assert len(everywhere) == 6
    none = shell("message", "find", "found", "--key", "absent")
    assert (none.code, "--all-partitions searches all" in none.err) == (0, True)
    [binary] = shell.json("message", "find", "found", "--key-hex", "ff01")["messages"]
    assert (binary["key_base64"], binary["value"]) == ("/wE=", "binary")
    wrong = shell("message", "trace", "found:0")
    assert (wrong.code, "INVALID_REQUEST" in wrong.err) == (2, True)
    assert shell("message", "show", "found:0:99").code == 4


def test_a_message_is_shown_with_the_objects_that_hold_it(shell: Shell) -> None:
    shell.json("topic", "create", "shown", "--partitions", 1)
    with ledgermq.sync.connect(shell.address) as client:
        with client.producer() as producer:
            result = producer.send("shown", "coffee", key="k", headers={"region": "eu"}, tag="drinks").result()
            producer.send("shown", b"\x00\xff").result()
        [found] = client.find(id=result.message_id)
        assert (found.value, found.id) == (b"coffee", result.message_id)
        search = client.find("shown", key="k")
        assert [message.value for message in search] == [b"coffee"]
        assert (search.partitions, search.searched, search.stopped) == ((0,), 2, False)
        assert client.describe_message("shown:0:0").message == found
    facts = shell.json("message", "show", result.message_id)
    assert (facts["value"], facts["headers"], facts["tag"]) == ("coffee", [{"key": "region", "value": "eu"}], "drinks")
    assert facts["segment"].startswith("ledgers/")
    assert len(facts["producer_id"]) == 32
    shown = shell("message", "show", "shown:0:0")
    assert "coffee" in shown.out
    assert "region" in shown.out
    assert "00 ff" in shell("message", "show", "shown:0:1").out
    assert "63 6f 66 66 65 65" in shell("message", "show", "shown:0:0", "--hex").out


@pytest.mark.slow
def test_a_message_is_traced_to_groups_queues_and_copies(shell: Shell) -> None:
    for topic in ("traced", "mailer.retry", "mailer.dlq"):
        shell.json("topic", "create", topic, "--partitions", 2)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for partition in (0, 1):
            for number in range(3):
                producer.send("traced", f"{number}", key="k", partition=partition)
        producer.send("traced", "keyless", partition=1)
        producer.flush()
        for offset, key in ((1, "k"), (2, "k"), (3, None)):
            for attempt in (1, 2):
                headers = headers_of(
                    Failures("mailer", Origin("traced", 1, offset), attempt, 1_760_000_000_000, "slow")
                )
                topic = "mailer.retry" if attempt == 1 else "mailer.dlq"
                producer.send(topic, "copy", key=key, headers=headers, partition=attempt % 2)
        producer.flush()
        with client.queue("traced", group="workers") as queue:
            until = time.monotonic() + 60
            while sum(part.end for found in client.queues.list() for part in found.partitions) < 7:
                for message in queue.fetch(max_records=50, timeout=1):
                    message.ack()
                assert time.monotonic() < until
            queue.flush()
    assert shell("consume", "traced", "--group", "billing", "--until-end").code == 0
    document = shell.json("message", "trace", "traced:1:1")
    assert document["unfinished"] == []
    assert [(row["group"], row["state"], row["committed"]) for row in document["groups"]] == [("billing", "read", 4)]
    assert [(row["group"], row["state"]) for row in document["queue_groups"]] in (
        [("workers", "finished")],
        [("workers", "delivered")],
    )
    assert [(row["kind"], row["attempts"], row["settled"]) for row in document["copies"]] == [
        ("dead letter", 2, None),
        ("retry", 1, None),
    ]
    [dead, _] = document["copies"]
    keyless = shell.json("message", "trace", "traced:1:3")["copies"]
    assert len(keyless) == 2
    assert shell("dlq", "drop", "mailer", dead["id"].removeprefix("mailer.dlq:"), "--yes").code == 0

    def settled() -> list[str | None]:
        return [row["settled"] for row in shell.json("message", "trace", "traced:1:1")["copies"]]

    wait_until(lambda: settled() == ["dropped", None])  # a commit shows a moment after its command
    assert shell.json("message", "trace", dead["id"])["copy_of"] == "traced:1:1"
    assert "mailer.dlq:0" in shell("message", "trace", "traced:1:1").out

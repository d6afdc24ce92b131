# ruff: noqa: F401, F811  fixtures are imported
"""`ledgermq dlq` and `ledgermq group retries`, against a broker that runs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import ledgermq
from ledgermq.cli.output.report import at_time
from ledgermq.client.groups.retry_topics import DUE_MS, Failures, Origin, headers_of
from ledgermq.client.operating.dead_letters import DeadLetterFilter, LetterPlace
from ledgermq.errors import TransactionError
from ledgermq.offset_stores import MemoryOffsetStore
from tests.e2e.test_cli import Shell, shell
from tests.waiting import until, wait_until

FIRST_MS = 1_760_000_000_000


def bury(shell: Shell, group: str, count: int, errors: tuple[str, ...] = ("ValueError: poison",)) -> None:
    """Put dead letters where a member of the group does."""
    for topic in (f"{group}.source", f"{group}.retry", f"{group}.dlq"):
        shell.json("topic", "create", topic, "--partitions", 2)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number in range(count):
            origin = Origin(f"{group}.source", 1, 40 + number)
            failures = Failures(group, origin, 16, FIRST_MS + number, errors[number % len(errors)])
            headers = (("mine", b"x"), *headers_of(failures))
            producer.send(f"{group}.dlq", f"coffee {number}", key=f"k{number}", headers=headers, partition=0)


def places(shell: Shell, *arguments: str) -> list[tuple[str, str]]:
    return [(row["place"], row["state"]) for row in shell.json("dlq", "list", *arguments)["letters"]]


def read(shell: Shell, topic: str, count: int) -> list[dict[str, Any]]:
    """All messages of a topic, once there are so many: a commit shows a moment after its command."""
    rows: list[dict[str, Any]] = []

    def are_there() -> bool:
        out = shell("consume", topic, "--until-end", "--format", "jsonl").out
        rows[:] = [json.loads(line) for line in out.splitlines()]
        return len(rows) >= count

    wait_until(are_there)
    return rows


@pytest.mark.slow
def test_dead_letters_are_listed_shown_redriven_and_dropped(shell: Shell) -> None:
    assert shell("dlq", "list").err == "No dead letter waits.\n"
    bury(shell, "g", 4, ("ValueError: poison", "TimeoutError: slow"))
    [first, *_] = shell.json("dlq", "list", "g")["letters"]
    assert (first["origin"], first["key"], first["attempts"], first["error"]) == (
        "g.source/1, offset 40",
        "k0",
        16,
        "ValueError: poison",
    )
    shown = json.loads(shell("dlq", "show", "g", "0:1").out)
    assert shown["value"] == "coffee 1"
    tried = shell("dlq", "redrive", "g", "--all", "--error", "poison", "--dry-run")
    assert (tried.code, "would redrive 2 dead letters of g" in tried.err) == (0, True)
    kept = shell("dlq", "redrive", "g", "0:0", stdin="n\n")
    assert (kept.code, "Redrive 1 dead letter of g?" in kept.err) == (1, True)
    for _ in range(2):  # once, however often it is repeated
        assert shell("dlq", "redrive", "g", "--all", "--error", "poison", "--yes").code == 0
    assert shell("dlq", "drop", "g", "0:1", stdin="y\n").code == 0
    wait_until(lambda: places(shell, "g") == [("0:3", "waits")])  # a commit shows a moment after its command
    assert places(shell, "g", "--all") == [
        ("0:0", "redriven"),
        ("0:1", "dropped"),
        ("0:2", "redriven"),
        ("0:3", "waits"),
    ]
    redriven = read(shell, "g.retry", 2)
    assert sorted(row["value"] for row in redriven) == ["coffee 0", "coffee 2"]
    headers = {header["key"]: header["value"] for header in redriven[0]["headers"]}
    assert (headers["mine"], headers["ledgermq.retry.attempt"], headers["ledgermq.retry.topic"]) == (
        "x",
        "0",
        "g.source",
    )
    unknown = shell("group", "retries", "g")
    assert (unknown.code, "UNKNOWN_GROUP" in unknown.err) == (4, True)
    assert shell("consume", "g.source", "--group", "g", "--until-end").code == 0
    facts = shell.json("group", "retries", "g")
    assert (facts["dead_letters"], facts["settled"], facts["waiting"], facts["due"]) == (1, 3, 0, 2)
    assert facts["by_attempts"] == [{"attempts": 0, "messages": 2}], "redriven letters begin anew"
    moved = shell("dlq", "redrive", "g", "--all", "--to", "g.source", "--yes")
    assert "1 dead letter of g is redriven" in moved.err
    [row] = read(shell, "g.source", 1)
    assert [header["key"] for header in row["headers"]] == ["mine"]


@pytest.mark.slow
def test_copies_in_the_retry_topic_are_counted_from_the_committed_offset_on(shell: Shell) -> None:
    bury(shell, "r", 0)
    now_ms = round(time.time() * 1000)
    due = {0: now_ms - 100_000, 1: now_ms - 60_000, 2: now_ms + 3_600_000, 3: now_ms + 7_200_000}
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number, due_ms in due.items():
            failures = Failures("r", Origin("r.source", 1, number), 1 + number % 2, FIRST_MS + number, "error")
            headers = (*headers_of(failures), (DUE_MS, str(due_ms).encode()))
            producer.send("r.retry", "x", headers=headers, partition=0)
    assert shell("consume", "r.source", "--group", "r", "--until-end").code == 0
    facts = shell.json("group", "retries", "r")
    assert (facts["waiting"], facts["due"], facts["next_due"]) == (2, 2, at_time(due[2]))
    assert 100 <= facts["due_seconds"] < 200
    assert facts["first_failure"] == at_time(FIRST_MS)
    assert facts["by_attempts"] == [{"attempts": 1, "messages": 2}, {"attempts": 2, "messages": 2}]
    with (
        ledgermq.sync.connect(shell.address) as client,
        client.consumer("r.retry", group="r", commit="acked") as consumer,
    ):
        consumer.fetch(1)[0].ack()
    facts = shell.json("group", "retries", "r")
    assert (facts["waiting"], facts["due"], facts["by_attempts"][0]["messages"]) == (2, 1, 1)
    assert 60 <= facts["due_seconds"] < 160


@pytest.mark.slow
def test_what_cannot_be_meant_is_refused(shell: Shell) -> None:
    bury(shell, "w", 1)
    for wrong in (
        ("redrive", "w"),
        ("redrive", "w", "0:0", "--all"),
        ("redrive", "w", "0-0"),
        ("redrive", "w", "0:99", "--yes"),
        ("redrive", "w", "--all", "--to", "nowhere", "--yes"),
        ("redrive", "w", "--all", "--to", "w.dlq", "--yes"),
        ("redrive", "w", "--all", "--to", "other.retry", "--yes"),
        ("drop", "w", "--all", "--since", "latest", "--yes"),
        ("show", "w", "1:0"),
    ):
        refused = shell("dlq", *wrong)
        assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True), wrong
    assert places(shell, "w") == [("0:0", "waits")]


@pytest.mark.slow
async def test_a_second_command_stops_the_first(shell: Shell) -> None:
    """What the first has settled is seen by the second, and nothing is sent twice."""
    bury(shell, "s", 1200)
    async with ledgermq.connect(shell.address) as client, ledgermq.connect(shell.address) as other:
        settled = await client.dead_letters.redrive("s", DeadLetterFilter(), letters_max=600)
        async with client.transactions("s.dlq") as late:
            assert await other.dead_letters.redrive("s", DeadLetterFilter()) == 600
            with pytest.raises(TransactionError):
                async with late.begin() as transaction:
                    transaction.send("s.retry", "again")

        async def all_are_settled() -> bool:
            return (await client.dead_letters.count("s")).waiting == 0

        await until(all_are_settled, every_s=0.05)
        found = await client.dead_letters.count("s")
        assert (settled, found.waiting, found.total) == (600, 0, 1200)
        assert found.settled[LetterPlace(0, 0)] == "redriven"
    assert len(read(shell, "s.retry", 1200)) == 1200


@pytest.mark.slow
def test_dead_letters_of_a_queue_group_are_redriven_to_it_alone_or_to_a_topic_that_is_named(shell: Shell) -> None:
    shell.json("topic", "create", "jobs", "--partitions", 1)
    with ledgermq.sync.connect(shell.address) as client:
        with client.producer() as producer:
            producer.send_many("jobs", ["bad", "worse"])
        with client.queue("jobs", group="workers") as queue:
            messages = until_fetched(queue, 2)
            assert all(message.dead_letter("bad").result(30) for message in messages)
        wait_until(lambda: len(places(shell, "workers")) == 2)
        assert shell("dlq", "redrive", "workers", "0:0", "--dry-run").code == 0
        assert "workers.retry" not in [topic.name for topic in client.list_topics()]
        assert shell("dlq", "redrive", "workers", "0:0", "--yes").code == 0
        assert shell("dlq", "redrive", "workers", "--all", "--to", "jobs", "--yes").code == 0
        with client.queue("jobs", group="workers") as queue, client.queue("jobs", group="others") as others:
            for message in until_fetched(queue, 2):
                assert (message.value in (b"bad", b"worse"), message.attempt) == (True, 1)
                assert message.ack().result(30)
            assert sorted(message.value for message in until_fetched(others, 3)) == [b"bad", b"worse", b"worse"]


def until_fetched(queue: ledgermq.sync.Queue, count: int) -> list[ledgermq.QueueMessage]:
    found: list[ledgermq.QueueMessage] = []
    while len(found) < count:
        some = queue.fetch(timeout=30)
        assert some, f"{len(found)} of {count} came"
        found += some
    return found


@pytest.mark.parametrize("words", [("list",), ("redrive", "--all", "--yes"), ("drop", "--all", "--yes")])
def test_a_mistyped_group_is_an_error_with_one_hint(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell("dlq", words[0], "nosuch", *words[1:])
    assert result.code != 0
    assert "there is no group 'nosuch'" in result.err
    described = shell("queue", "describe", "nosuch")
    assert described.err.count("`ledgermq ") == 1, described.err
    assert "`ledgermq queue list`" in described.err


def test_the_lag_of_a_group_without_committed_offsets_is_not_known(shell: Shell) -> None:
    shell.json("topic", "create", "t", "--partitions", 1)
    with ledgermq.sync.connect(shell.address) as client:
        with client.producer() as producer:
            producer.send_many("t", ["1", "2"])
        with client.consumer("t", group="elsewhere", commit="manual", offset_store=MemoryOffsetStore()) as consumer:
            assert consumer.fetch(timeout=30)
            assert shell.json("group", "describe", "elsewhere")["lag"] is None
            assert "its lag is not known" in shell("group", "describe", "elsewhere").err
        with client.consumer("t", group="here", commit="manual") as consumer:
            assert consumer.fetch(timeout=30)
            assert consumer.commit({ledgermq.TopicPartition("t", 0): 1})
            assert shell.json("group", "describe", "here")["lag"] == 1
            assert "not known" not in shell("group", "describe", "here").err

# ruff: noqa: F811  fixtures are imported
"""`ledgermq dlq` and `ledgermq group retries`, against a broker that runs."""

from __future__ import annotations

import json

import pytest

import ledgermq
from ledgermq.cli import dead_letters
from ledgermq.cli.dead_letters import Filter, Place
from ledgermq.client.groups.retry_topics import Failures, Origin, headers_of
from ledgermq.errors import TransactionFenced
from tests.e2e.test_cli import Shell, shell

FIRST_MS = 1_760_000_000_000


def bury(shell: Shell, count: int, errors: tuple[str, ...] = ("ValueError: poison",)) -> None:
    """Put dead letters where a member of group g does."""
    for topic in ("orders", "g.retry", "g.dlq"):
        shell.json("topic", "create", topic, "--partitions", 2)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number in range(count):
            origin = Origin("orders", 1, 40 + number)
            failures = Failures("g", origin, 16, FIRST_MS + number, errors[number % len(errors)])
            headers = (("mine", b"x"), *headers_of(failures))
            producer.send("g.dlq", f"coffee {number}", key=f"k{number}", headers=headers, partition=0)


def places(shell: Shell, *arguments: str) -> list[tuple[str, str]]:
    return [(row["place"], row["state"]) for row in shell.json("dlq", "list", *arguments)["letters"]]


def test_dead_letters_are_listed_shown_redriven_and_dropped(shell: Shell) -> None:
    assert shell("dlq", "list").err == "No dead letter waits.\n"
    bury(shell, 4, ("ValueError: poison", "TimeoutError: slow"))
    [first, *_] = shell.json("dlq", "list", "g")["letters"]
    assert (first["origin"], first["key"], first["attempts"], first["error"]) == (
        "orders/1, offset 40",
        "k0",
        16,
        "ValueError: poison",
    )
    shown = json.loads(shell("dlq", "show", "g", "0:1").out)
    assert shown["value"] == "coffee 1"
    tried = shell("dlq", "redrive", "g", "--all", "--error", "poison", "--dry-run")
    assert (tried.code, "would redrive 2 dead letters of g" in tried.err) == (0, True)
    kept = shell("dlq", "redrive", "g", "0:0", stdin="n\n")
    assert (kept.code, "Redrive 1 dead letters of g?" in kept.err) == (1, True)
    for _ in range(2):  # once, however often it is repeated
        assert shell("dlq", "redrive", "g", "--all", "--error", "poison", "--yes").code == 0
    assert shell("dlq", "drop", "g", "0:1", stdin="y\n").code == 0
    assert places(shell, "g") == [("0:3", "waits")]
    assert places(shell, "g", "--all") == [
        ("0:0", "redriven"),
        ("0:1", "dropped"),
        ("0:2", "redriven"),
        ("0:3", "waits"),
    ]
    redriven = [json.loads(line) for line in shell("consume", "g.retry", "-e", "--format", "jsonl").out.splitlines()]
    assert sorted(row["value"] for row in redriven) == ["coffee 0", "coffee 2"]
    headers = {header["key"]: header["value"] for header in redriven[0]["headers"]}
    assert (headers["mine"], headers["ledgermq.retry.attempt"], headers["ledgermq.retry.topic"]) == ("x", "0", "orders")
    facts = shell.json("group", "retries", "g")
    assert (facts["dead_letters"], facts["settled"]) == (1, 3)
    moved = shell("dlq", "redrive", "g", "--all", "--to", "orders", "--yes")
    assert "1 dead letters of g are redriven" in moved.err
    [row] = [json.loads(line) for line in shell("consume", "orders", "-e", "--format", "jsonl").out.splitlines()]
    assert [header["key"] for header in row["headers"]] == ["mine"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("redrive", "g"),
        ("redrive", "g", "0:0", "--all"),
        ("redrive", "g", "0-0"),
        ("redrive", "g", "0:99", "--yes"),
        ("redrive", "g", "--all", "--to", "nowhere", "--yes"),
        ("drop", "g", "--all", "--since", "latest", "--yes"),
        ("show", "g", "1:0"),
    ],
)
def test_what_cannot_be_meant_is_refused(shell: Shell, wrong: tuple[str, ...]) -> None:
    bury(shell, 1)
    refused = shell("dlq", *wrong)
    assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True)
    assert places(shell, "g") == [("0:0", "waits")]


async def test_a_second_command_stops_the_first(shell: Shell) -> None:
    """What the first has settled is seen by the second, and nothing is sent twice."""
    bury(shell, 1200)
    async with ledgermq.connect(shell.address) as client, ledgermq.connect(shell.address) as other:
        stopped = False
        settled = 0

        async def first() -> None:
            nonlocal settled
            settled = await dead_letters.settle(client, "g", Filter(), "redriven", "", 600, lambda done: None)

        await first()
        async with client.transactions("g.dlq") as late:
            assert await dead_letters.settle(other, "g", Filter(), "redriven", "", 10_000, lambda done: None) == 600
            try:
                async with late.begin() as transaction:
                    transaction.send("g.retry", "again")
            except TransactionFenced:
                stopped = True
        found = await dead_letters.survey(client, "g")
        assert (stopped, settled, found.waiting, found.total) == (True, 600, 0, 1200)
        assert found.settled[Place(0, 0)] == "redriven"
    assert len(shell("consume", "g.retry", "--until-end").out.splitlines()) == 1200

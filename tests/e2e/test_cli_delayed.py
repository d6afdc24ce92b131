# ruff: noqa: F401, F811  fixtures are imported
"""`ledgermq delayed`, and `ledgermq produce` with a delay, against a broker that runs."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_cli import Shell, shell


@pytest.mark.slow
def test_delayed_records_wait_are_recalled_and_come(shell: Shell) -> None:
    shell.json("topic", "create", "timed", "--partitions", 1)
    sent = shell.json("produce", "timed", "--delay", "2h", stdin="one\ntwo\n")["delayed"]
    listed = shell.json("delayed", "list", "--topic", "timed")
    assert [row["handle"] for row in listed["messages"]] == [row["handle"] for row in sent]
    assert [row["due"] for row in listed["messages"]] == [row["due"] for row in sent]
    assert sum(row["messages"] for row in listed["bundles"]) == 2
    [recalled] = shell.json("delayed", "recall", sent[0]["handle"])["messages"]
    assert (recalled["topic"], recalled["outcome"]) == ("timed", "recalled")
    assert [row["handle"] for row in shell.json("delayed", "list")["messages"]] == [sent[1]["handle"]]

    [past] = shell.json("produce", "timed", "--deliver-at", "2026-01-01T00:00Z", stdin="past\n")["delayed"]
    [soon] = shell.json("produce", "timed", "--delay-level", 1, stdin="soon\n")["delayed"]
    read = shell("consume", "timed", "--from", "earliest", "--max", 2, "--format", "jsonl")
    assert read.code == 0, read.err
    messages = [json.loads(line) for line in read.out.splitlines()]
    assert [(each["offset"], each["value"]) for each in messages] == [(0, "past"), (1, "soon")]
    late = shell("delayed", "recall", soon["handle"], past["handle"], "--output", "json")
    assert [row["outcome"] for row in json.loads(late.out)["messages"]] == ["too late", "forgotten"]
    assert late.code == 8

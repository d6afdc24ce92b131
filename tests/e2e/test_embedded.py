"""Embedded brokers: a root URL instead of an address, without a server to start."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ledgermq
from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode, exit_code
from ledgermq.errors import InvalidConfig, LedgerMQError, TopicBeingDeleted, TopicExists
from ledgermq_ledger import keys

PRODUCE = """
import asyncio, sys, ledgermq

async def main(root):
    async with ledgermq.connect(root) as client, client.producer() as producer:
        for i in range(20):
            await producer.send("shared", b"%d" % i, partition=i % 4)
        print(sum(1 for broker in (await client.describe_cluster()).brokers if broker.alive))

asyncio.run(main(sys.argv[1]))
"""


async def consumed(client: ledgermq.Client, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(60), client.consumer(topic, start="earliest") as consumer:
        while len(values) < count:
            values += [message.value or b"" for message in await consumer.fetch(1000, 1.0)]
    return values


async def test_embedded_brokers_of_several_processes_are_one_cluster(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    async with ledgermq.connect(root) as client:
        await client.create_topic("shared", partitions=4)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", PRODUCE, root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(child.communicate(), 60)
        assert (child.returncode, out.strip()) == (0, b"2"), err.decode()
        assert sorted(await consumed(client, "shared", 20), key=int) == [b"%d" % i for i in range(20)]
    assert list((tmp_path / "root" / keys.BROKERS).iterdir()) == [], "both have taken their leave"
    async with ledgermq.connect(root) as client:
        assert sorted(await consumed(client, "shared", 20), key=int) == [b"%d" % i for i in range(20)]


async def test_a_memory_root_is_one_cluster_in_this_process() -> None:
    async with (
        ledgermq.connect("memory://embedded-test") as first,
        ledgermq.connect("memory://embedded-test") as second,
    ):
        await first.create_topic("t", partitions=2)
        async with second.producer() as producer:
            for i in range(10):
                await producer.send("t", b"%d" % i)
        assert sorted(await consumed(first, "t", 10)) == [b"%d" % i for i in range(10)]
    async with ledgermq.connect("memory://embedded-test") as again:
        assert len(await consumed(again, "t", 10)) == 10
    async with ledgermq.connect("memory://another") as other:
        assert await other.list_topics() == []


async def test_an_embedded_broker_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with ledgermq.connect((tmp_path / "root").as_uri()) as client:
        await client.create_topic("t")
    assert capfd.readouterr() == ("", "")


async def test_a_root_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        async with ledgermq.connect("gopher://hole"):
            pass


async def test_a_root_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LedgerMQError, match="there is no cluster") as told:
        async with ledgermq.connect((tmp_path / "typo").as_uri(), must_exist=True):
            pytest.fail("an empty cluster was made")
    assert exit_code(told.value) == ExitCode.NOT_FOUND
    assert not (tmp_path / "typo").exists()
    async with ledgermq.connect((tmp_path / "root").as_uri()) as client:
        await client.create_topic("t")
    async with ledgermq.connect((tmp_path / "root").as_uri(), must_exist=True) as client:
        assert [topic.name for topic in await client.list_topics()] == ["t"]


@pytest.mark.parametrize("words", [["topic", "list"], ["consume", "t", "--until-end"], ["group", "list"], ["status"]])
def test_commands_that_look_make_no_cluster(tmp_path: Path, words: list[str]) -> None:
    result = CliRunner().invoke(build(), [*words, "--target", (tmp_path / "typo").as_uri()])
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "there is no cluster" in result.stderr
    assert not (tmp_path / "typo").exists()


def test_consuming_from_beyond_the_end_is_told(tmp_path: Path) -> None:
    target = ["--target", (tmp_path / "root").as_uri()]
    assert (
        CliRunner().invoke(build(), ["produce", "t", "--partition", "0", *target], input="one\ntwo\n").exit_code
        == ExitCode.NOT_FOUND
    )
    assert CliRunner().invoke(build(), ["topic", "create", "t", "--partitions", "1", *target]).exit_code == ExitCode.OK
    assert (
        CliRunner().invoke(build(), ["produce", "t", "--partition", "0", *target], input="one\ntwo\n").exit_code
        == ExitCode.OK
    )
    at_end = CliRunner().invoke(build(), ["consume", "t", "--from", "2", "--until-end", *target])
    assert (at_end.exit_code, at_end.stdout) == (ExitCode.OK, "")
    beyond = CliRunner().invoke(build(), ["consume", "t", "--from", "3", "--until-end", *target])
    assert beyond.exit_code == ExitCode.NOT_FOUND
    assert "t/0: offset 3 does not exist; the log ends at 2" in beyond.stderr


@pytest.mark.slow
def test_status_says_by_exit_code_and_by_name_what_is_not_well(tmp_path: Path) -> None:
    """The broker of the command itself has just started, and is given a moment to take what it
    should own.
    """
    target = ["--target", (tmp_path / "root").as_uri()]
    assert CliRunner().invoke(build(), ["topic", "create", "t", "--partitions", "4", *target]).exit_code == ExitCode.OK
    well = CliRunner().invoke(build(), ["status", "--output", "json", *target])
    assert (well.exit_code, json.loads(well.stdout)["health"], json.loads(well.stdout)["problems"]) == (
        ExitCode.OK,
        "ok",
        [],
    )
    newest = max((tmp_path / "root" / keys.segments(1)).iterdir())
    newest.write_bytes(newest.read_bytes()[:-20] + bytes(20))
    unwell = CliRunner().invoke(build(), ["status", "--output", "json", *target])
    assert unwell.exit_code == ExitCode.UNAVAILABLE
    [problem] = json.loads(unwell.stdout)["problems"]
    assert problem["problem"].startswith("bundle 1 is in trouble: ")
    assert newest.name in problem["problem"]
    assert "bundle 1 is in trouble" in CliRunner().invoke(build(), ["status", *target]).stdout


async def test_the_name_of_a_deleted_topic_is_taken_again_when_it_is_free() -> None:
    async with ledgermq.connect("memory://name-again") as client:
        former = await client.create_topic("t", 1)
        await client.delete_topic("t", now=True)
        with pytest.raises(TopicBeingDeleted):
            await client.create_topic("t", 1, wait=False)
        assert (await client.create_topic("t", 2)).topic_id != former.topic_id
        with pytest.raises(TopicExists):
            await client.create_topic("t", 2)

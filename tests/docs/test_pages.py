"""Every code block of README.md and docs/ runs as it stands, or says in the text why it cannot, and
is checked then.

Blocks run twice in a row, because readers repeat them. The tutorial runs once: it leads from an
empty folder to an empty folder; and retries.md: a dead letter is dropped once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ledgermq
from ledgermq.cli.main import build
from tests.docs.checking import check, check_command, commands
from tests.docs.pages import ALL_BLOCKS, CLONE, LANGUAGES, PAGES, Block, blocks_of
from tests.docs.running import Reader
from tests.e2e.processes import BrokerProcesses
from tests.e2e.warm_cli import WarmCommands

pytestmark = pytest.mark.timeout(900)

RUNS = 2
RUNS_OF = {"tutorial.md": 1, "retries.md": 1}
Given = Callable[[ledgermq.Client, Path, dict[str, Any]], Awaitable[None]]


def by_place(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=by_place)
def test_a_block_is_well_formed_and_names_only_what_exists(block: Block) -> None:
    assert block.language in LANGUAGES
    if not block.language:  # output, or a drawing
        assert not [
            line
            for line in block.text.splitlines()
            if line.startswith(("$ ", "ledgermq ", "make ", "python ", "import "))
        ]
    if block.not_run or block.until:
        assert block.reason, f"{block.place}: say why it is marked"
    check(block)


def test_a_wrong_block_is_seen() -> None:
    block = Block(CLONE / "README.md", 1, "bash", "")
    assert list(commands("a b | c -d < e && f 'g h'\ni # j")) == [["a", "b"], ["c", "-d", "e"], ["f", "g h"], ["i"]]
    for wrong in ("ledgermq tropic", "ledgermq topic create t --partition 4", "make tset", "python -m tests.no"):
        with pytest.raises(AssertionError):
            check_command(block, wrong.split())
    with pytest.raises(SyntaxError):
        check(Block(CLONE / "README.md", 1, "python", "async with x"))


@pytest.fixture(scope="module")
def commands_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with WarmCommands(tmp_path_factory.mktemp("warm")) as program:
        yield program.parent


async def given_by_groups(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    from sqlalchemy import create_engine, text

    names["engine"] = create_engine(f"sqlite:///{folder / 'results.db'}")
    names["insert"] = text("INSERT INTO results VALUES (:amount)")
    with sqlite3.connect(folder / "results.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS results (amount INTEGER)")
    database.close()
    await client.create_topic("prices")


async def given_by_cli(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    await client.create_topic("events")
    await client.create_topic("copy")
    await client.create_topic("flights")
    (folder / "lines.txt").write_text("one\ntwo\n")
    (folder / "flights.csv").write_text("carrier,delay\nUA,7\n")
    (folder / "rows.jsonl").write_text('{"carrier": "UA", "payload": "x"}\n{"carrier": "AA", "payload": null}\n')


async def given_by_retention(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    """Enough records for the offsets of the page."""
    await client.create_topic("events", partitions=4)
    async with client.producer() as producer:
        for number in range(1300):
            for partition in range(4):
                producer.send("events", str(number), partition=partition)
        await producer.flush()


async def given_by_keyed_topics(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    names["root"] = (folder / "ledgermq-data").as_uri()


async def given_by_retries(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    """Dead letters of the page's group."""
    await client.create_topic("orders", partitions=1)
    await send(client, "orders")
    await send(client, "orders")
    async with client.consumer("orders", group="mailer", retry=ledgermq.Retry.levels()) as consumer:
        left = 18
        async for message in consumer:
            assert message.dead_letter("no such customer")
            left -= 1
            if not left:
                break


async def given_by_spark(client: ledgermq.Client, folder: Path, names: dict[str, Any]) -> None:
    """Plain readers read what is compacted."""
    async with client.producer() as producer:
        await producer.send("flights", "first flight")
    done = await asyncio.to_thread(CliRunner().invoke, build(), ["compact", str(folder / "ledgermq-data")])
    assert done.exit_code == 0, done.output


GIVEN: dict[str, Given] = {
    "groups.md": given_by_groups,
    "cli.md": given_by_cli,
    "retention.md": given_by_retention,
    "keyed-topics.md": given_by_keyed_topics,
    "retries.md": given_by_retries,
    "spark.md": given_by_spark,
}
"""What a page takes for granted, besides a broker and `client`."""


def runnable(page: Path) -> list[Block]:
    return [
        block
        for block in blocks_of(page)
        if block.language in ("bash", "python") and not block.not_run and not block.needs_spark
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
async def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, commands_folder: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with BrokerProcesses(tmp_path, str(folder / "ledgermq-data")) as brokers:
        reader = Reader(brokers.start("--auto-create-topics").address, folder, commands_folder)
        async with ledgermq.connect(reader.address) as client:
            if page.name in GIVEN:
                await GIVEN[page.name](client, folder, reader.given)
            await send(client, TOPICS.get(page.name))
        for block in runnable(page):
            for _ in range(RUNS_OF.get(page.name, RUNS)):
                async with (
                    ledgermq.connect(reader.address) as reader.given["client"],
                    ledgermq.connect(reader.address) as other,
                ):
                    feeding = asyncio.create_task(feed(other, TOPICS.get(page.name) if block.until else None))
                    await reader.run(block)
                    feeding.cancel()
                    await asyncio.wait({feeding})


TOPICS = {
    "README.md": "orders",
    "groups.md": "orders",
    "retries.md": "orders",
    "expiry.md": "orders",
    "filters.md": "orders",
    "look-up.md": "orders",
    "from-kafka.md": "orders",
    "keyed-topics.md": "prices",
}
"""Where something comes while the page is read."""


async def send(client: ledgermq.Client, topic: str | None) -> None:
    if topic is not None:
        async with client.producer() as producer:
            for amount in range(9):
                producer.send(topic, str(amount), key=f"table-{amount}")
            await producer.flush()


async def feed(client: ledgermq.Client, topic: str | None) -> None:
    while topic is not None:
        await send(client, topic)
        await asyncio.sleep(0.3)

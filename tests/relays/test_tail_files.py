"""The example that follows log files: what it sends when files are rotated, truncated, removed and written
meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import ledgermq
from examples.relays.tail_files import GONE_S, PIECE_BYTES, POSITIONS, follow
from ledgermq.errors import TransactionFenced, UnknownTopic
from ledgermq_tools.testing.cluster import LedgermqCluster


class Killed(BaseException):
    """Ends a run in the middle of a step."""


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def rotate(path: Path) -> None:
    """As logrotate: app.log.1 becomes app.log.2, app.log becomes app.log.1."""
    for number in (2, 1, 0):
        older = path.with_name(f"{path.name}.{number}") if number else path
        if older.exists():
            older.rename(path.with_name(f"{path.name}.{number + 1}"))


async def lines_of(client: ledgermq.Client) -> list[str]:
    async with client.consumer("logs", until_end=True) as consumer:
        return [(message.value or b"").decode() async for message in consumer]


async def once(client: ledgermq.Client, folder: Path, pattern: str = "app.log*") -> None:
    await follow(client, "logs", [str(folder / pattern)], "host", once=True)
    async with client.transactions("tail-host"):
        """Wait until the last commit shows."""


@asynccontextmanager
async def following(client: ledgermq.Client, folder: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(follow(client, "logs", [str(folder / "app.log*")], "host"))
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_each_line_comes_once_over_runs_and_rotations(ledgermq_client: ledgermq.Client, tmp_path: Path) -> None:
    await ledgermq_client.create_topic("logs", 3)
    log, expected = tmp_path / "app.log", []
    for number in range(6):  # the program runs between all of them, and rotations also happen while it does not
        write(log, f"{number} a", f"{number} ä")
        expected += [f"{number} a", f"{number} ä"]
        if number % 2:
            rotate(log)
        if number % 3:
            await once(ledgermq_client, tmp_path)
    await once(ledgermq_client, tmp_path)
    assert await lines_of(ledgermq_client) == expected


async def test_a_line_comes_when_its_end_is_written(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client, tmp_path: Path
) -> None:
    await ledgermq_client.create_topic("logs", 1)
    log = tmp_path / "app.log"
    log.write_bytes(b"one\r\n\ntw")
    async with following(ledgermq_client, tmp_path):
        await ledgermq_cluster.clock.advance(60)
        assert await lines_of(ledgermq_client) == ["one\r", ""]
        write(log, "o")
        await ledgermq_cluster.clock.advance(5)
        assert await lines_of(ledgermq_client) == ["one\r", "", "two"]


async def test_a_line_that_is_too_long_comes_in_pieces(ledgermq_client: ledgermq.Client, tmp_path: Path) -> None:
    await ledgermq_client.create_topic("logs", 1)
    text = "".join(map(str, range(120_000)))
    assert 3 * PIECE_BYTES > len(text) > 2 * PIECE_BYTES
    write(tmp_path / "app.log", "short", text, "short")
    await once(ledgermq_client, tmp_path)
    async with ledgermq_client.consumer("logs", until_end=True) as consumer:
        got = [message async for message in consumer]
    assert [dict(message.headers or ()).get("more") for message in got] == [None, b"1", b"1", None, None]
    assert b"".join(message.value or b"" for message in got[1:4]).decode() == text
    assert dict(got[4].headers or ())["at"] == str(len("short\n") + len(text) + 1).encode()


@pytest.mark.parametrize("lines", [1, 400])
async def test_a_truncated_file_is_read_from_its_beginning(
    ledgermq_client: ledgermq.Client, tmp_path: Path, lines: int
) -> None:
    """Also if it has grown beyond the former position already."""
    await ledgermq_client.create_topic("logs", 1)
    log = tmp_path / "app.log"
    before, after = [f"before {n}" for n in range(100)], [f"after {n}" for n in range(lines)]
    write(log, *before)
    await once(ledgermq_client, tmp_path)
    os.truncate(log, 0)
    write(log, *after)
    await once(ledgermq_client, tmp_path)
    assert await lines_of(ledgermq_client) == before + after


async def test_what_is_left_of_a_removed_file_still_comes_and_its_position_goes(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client, tmp_path: Path
) -> None:
    await ledgermq_client.create_topic("logs", 1)
    log = tmp_path / "app.log"
    write(log, "one")
    async with following(ledgermq_client, tmp_path):
        await ledgermq_cluster.clock.advance(5)
        with log.open("a") as file:
            log.unlink()
            file.write("two\nhal")
            file.flush()
            await ledgermq_cluster.clock.advance(1)
            write(log, "other file")
            file.write("f")
        await ledgermq_cluster.clock.advance(3 * GONE_S)
        assert await lines_of(ledgermq_client) == ["one", "two", "other file", "half"]
        async with ledgermq_client.table(POSITIONS) as table:
            assert len(table) == 1
        (tmp_path / "app.log.1.gz").write_bytes(b"packed\n")
        await ledgermq_cluster.clock.advance(5)
    assert len(await lines_of(ledgermq_client)) == 4


async def test_a_folder_that_is_not_there_loses_no_positions(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client, tmp_path: Path
) -> None:
    await ledgermq_client.create_topic("logs", 1)
    (tmp_path / "disk").mkdir()
    write(tmp_path / "disk" / "app.log", "one")
    await once(ledgermq_client, tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    async with following(ledgermq_client, tmp_path / "disk"):
        await ledgermq_cluster.clock.advance(3 * GONE_S)
        (tmp_path / "unmounted").rename(tmp_path / "disk")
        await ledgermq_cluster.clock.advance(3 * GONE_S)
    assert await lines_of(ledgermq_client) == ["one"]


@pytest.mark.parametrize("dies_in", range(1, 9))
async def test_a_run_that_ends_in_any_step_loses_and_doubles_nothing(
    ledgermq_client: ledgermq.Client, tmp_path: Path, dies_in: int
) -> None:
    """`tests/relays/test_tail_kills.py` ends the process; this also runs where nothing is slow."""
    await ledgermq_client.create_topic("logs", 1)
    left = dies_in

    def step(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed(name)

    texts = ["one", "two", "three", "four", "five"]
    for number, text in enumerate(texts):
        write(tmp_path / "app.log", text)
        with suppress(Killed):
            await follow(ledgermq_client, "logs", [str(tmp_path / "app.log*")], "host", once=True, step=step)
        if number % 2:
            rotate(tmp_path / "app.log")
    assert left <= 0
    await once(ledgermq_client, tmp_path)
    assert await lines_of(ledgermq_client) == texts


async def test_a_second_program_of_the_name_ends_the_first(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client, tmp_path: Path
) -> None:
    await ledgermq_client.create_topic("logs", 1)
    write(tmp_path / "app.log", "one")
    first = asyncio.create_task(follow(ledgermq_client, "logs", [str(tmp_path / "app.log")], "host"))
    await ledgermq_cluster.clock.advance(5)
    await once(ledgermq_client, tmp_path, "app.log")
    write(tmp_path / "app.log", "two")
    await ledgermq_cluster.clock.advance(5)
    with pytest.raises(TransactionFenced):
        await first
    await once(ledgermq_client, tmp_path, "app.log")
    assert await lines_of(ledgermq_client) == ["one", "two"]


async def test_a_topic_that_is_not_there_is_an_error_and_loses_nothing(
    ledgermq_client: ledgermq.Client, tmp_path: Path
) -> None:
    write(tmp_path / "app.log", "one")
    with pytest.raises(UnknownTopic):
        await once(ledgermq_client, tmp_path)
    await ledgermq_client.create_topic("logs", 1)
    await once(ledgermq_client, tmp_path)
    assert await lines_of(ledgermq_client) == ["one"]

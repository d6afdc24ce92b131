"""`ledgermq inspect queues` and `ledgermq fsck` on roots with queue groups: how far each has come is shown,
and what is known of messages that the log never had is damage.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_broker.queues.state.limits import CHUNK
from ledgermq_broker.queues.state.records import ChunkEntry, Entry, ShareKey, StartEntry, encode
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key
from ledgermq_tools.ledger import fsck
from ledgermq_tools.ledger.inspect import command as inspect
from tests.stores.backends import file_store
from tests.worlds.ledgers import ledger_of
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

inspected, checked = RootCommand(inspect), RootCommand(fsck)

OPEN_ONCE, ACCEPTED, REJECTED, GONE = 4, 5, 4 * 5 + 2, 3
"""Bytes of messages: a fate, and how often it was delivered."""


async def put(root: Root, *entries: Entry) -> None:
    for record in map(encode, entries):
        await root.put_internal(root.topics[keys.SHARES_TOPIC], record.key, record.value)


def key_of(root: Root, group: str = "workers", partition: int = 0) -> ShareKey:
    return ShareKey(group, root.topics["jobs"].id, partition)


async def fill(folder: Path, then: Callable[[Root], Awaitable[None]]) -> None:
    """A topic with 300 and 3 messages. `workers` has finished the first 256 of the one partition, and some
    behind; `late` begins at the end of the other. One message is a dead letter.
    """
    async with file_store(folder) as store:
        root = await Root.open(store, Sources(), bundles=3)
        await root.create_topic("jobs", 2)
        await root.create_topic("workers.dlq")
        shares = replace(await root.create_topic(keys.SHARES_TOPIC, 2), bundles=(1, 2))
        await root.put_internal(METADATA, topic_key(shares.name), encode_topic_record(shares))
        root.topics[shares.name] = shares
        await root.produce("jobs", (0, [b"x"] * 300), (1, [b"y"] * 3))
        await root.produce("workers.dlq", (0, [b"x"]))
        await put(
            root,
            StartEntry(key_of(root), 256),
            ChunkEntry(key_of(root), 1, bytes([OPEN_ONCE, ACCEPTED, ACCEPTED, REJECTED, 0, GONE])),
            StartEntry(key_of(root, "late", 1), 3),
        )
        await then(root)


def made(tmp_path: Path, then: Callable[[Root], Awaitable[None]]) -> Path:
    asyncio.run(fill(tmp_path / "root", then))
    return tmp_path / "root"


async def nothing(_: Root) -> None:
    pass


def problems(root: Path) -> list[tuple[str, str, str]]:
    _, found = checked.json(root, "--quick")
    return [
        (each["severity"], each["code"], each["text"])
        for each in found.get("problems", [])
        if each["severity"] != "note"
    ]


def test_queues_are_shown_from_the_store_alone(tmp_path: Path) -> None:
    root = made(tmp_path, nothing)
    code, found = inspected.json("queues", root, "--all")
    assert (code, found["groups"][0]["group"], found["unfinished"], found["dead_letters"]) == (0, "late", 40, 1)
    assert found["groups"][1] == {
        "group": "workers",
        "topics": ["jobs"],
        "partitions": 1,
        "unfinished": 40,
        "delivered": 1,
        "dead_letters": 1,
    }
    late, workers = found["partitions"]
    assert (late["group"], late["topic"], late["partition"], late["start"], late["unfinished"]) == (
        "late",
        "jobs",
        1,
        3,
        0,
    )
    assert (workers["start"], workers["end"], workers["log_end"]) == (256, 262, 300)
    assert [workers[name] for name in ("unfinished", "delivered", "accepted", "rejected", "gone")] == [40, 1, 2, 1, 1]
    assert workers["deliveries_max"] == 5
    assert [(row["first"], row["last"], row["fate"], row["deliveries"]) for row in found["messages"]] == [
        (256, 256, "open", 1),
        (257, 258, "accepted", 1),
        (259, 259, "rejected", 5),
        (260, 260, "open", 0),
        (261, 261, "gone", 0),
    ]
    assert inspected("queues", root)[0] == 0
    assert (checked(root)[0], problems(root)) == (0, [])


def test_after_compaction_the_same_is_found(tmp_path: Path) -> None:
    async def compact(root: Root) -> None:
        assert not (await root.compact()).failures
        assert (await root.newest()).snapshot_plan

    root = made(tmp_path, compact)
    _, found = inspected.json("queues", root)
    assert (found["unfinished"], found["dead_letters"]) == (40, 1)
    assert problems(root) == []


def test_a_root_without_queues_has_none(tmp_path: Path) -> None:
    async def fill_plain() -> None:
        async with file_store(tmp_path / "plain") as store:
            await Root.open(store, Sources())

    asyncio.run(fill_plain())
    code, found = inspected.json("queues", tmp_path / "plain")
    assert (code, found["groups"], found["partitions"], found["unfinished"]) == (0, [], [], 0)
    assert problems(tmp_path / "plain") == []


def test_queues_of_a_topic_that_was_removed_are_no_problem(tmp_path: Path) -> None:
    """The owner forgets them when it reads that."""

    async def remove(root: Root) -> None:
        await put(root, StartEntry(key_of(root, "never", 1), 999))
        await root.remove_topic("jobs")

    root = made(tmp_path, remove)
    assert problems(root) == []
    assert inspected("queues", root)[0] == 0


async def start_above_the_end(root: Root) -> None:
    await put(root, StartEntry(key_of(root, "late", 1), 4))


async def acknowledged_above_the_end(root: Root) -> None:
    await put(root, ChunkEntry(key_of(root), 1, bytes([4] * 43 + [ACCEPTED] * 7)))


async def delivered_above_the_end(root: Root) -> None:
    await put(root, ChunkEntry(key_of(root, "late", 1), 0, bytes([1, 1, 1, OPEN_ONCE])))


async def chunk_without_start(root: Root) -> None:
    await put(root, ChunkEntry(key_of(root, "lost"), 0, bytes([ACCEPTED])))


async def start_removed_alone(root: Root) -> None:
    await put(root, StartEntry(key_of(root), None))


async def partition_that_there_is_not(root: Root) -> None:
    await put(root, StartEntry(key_of(root, partition=2), 0))


async def topic_that_never_was(root: Root) -> None:
    await put(root, StartEntry(ShareKey("workers", 99, 0), 0))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (start_above_the_end, "'late' in jobs/1: everything below offset 4 counts as finished, but .* ends at 3"),
        (acknowledged_above_the_end, "'workers' in jobs/0: messages from offset 300 to 305 were accepted, .* 300"),
        (delivered_above_the_end, "'late' in jobs/1: messages from offset 3 to 3 were delivered, .* ends at 3"),
        (chunk_without_start, "'lost' in jobs/0: .* not stored where the group begins"),
        (start_removed_alone, "'workers' in jobs/0: .* not stored where the group begins"),
        (partition_that_there_is_not, "'workers' in jobs/2: its state is in bundle 1, but the partition is not"),
        (topic_that_never_was, "'workers' in topic 99/0: its state is in bundle 1, but the partition is not"),
    ],
)
def test_what_contradicts_the_log_is_reported(
    tmp_path: Path, change: Callable[[Root], Awaitable[None]], text: str
) -> None:
    root = made(tmp_path, change)
    [problem] = problems(root)
    assert problem == ("damage", "QUEUE_CONTRADICTED", problem[2])
    assert re.search(text, problem[2]), problem[2]
    code, found = inspected.json("queues", root)
    assert code == 6
    assert [each["code"] for each in found["findings"]] == ["QUEUE_CONTRADICTED"]


async def record_that_is_none(root: Root) -> None:
    key = key_of(root)
    await root.put_internal(
        root.topics[keys.SHARES_TOPIC], f"w/{key.group}/{key.topic_id}/{key.partition}/1".encode(), b"\xff"
    )


async def record_of_a_later_version(root: Root) -> None:
    await root.put_internal(root.topics[keys.SHARES_TOPIC], b"x/what a later version keeps", b"x")


async def chunk_far_away(root: Root) -> None:
    await put(root, ChunkEntry(key_of(root), (1 << 50) // CHUNK, bytes([ACCEPTED])))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (record_that_is_none, "DATA_DAMAGED"),
        (record_of_a_later_version, "FORMAT_NOT_SUPPORTED"),
        (chunk_far_away, "DATA_DAMAGED"),
    ],
)
def test_a_damaged_record_is_named_and_the_others_are_shown(
    tmp_path: Path, change: Callable[[Root], Awaitable[None]], code: str
) -> None:
    root = made(tmp_path, change)
    exit_code, found = inspected.json("queues", root)
    assert exit_code == 6
    [finding] = found["findings"]
    assert finding["code"] == code
    assert finding["object_key"].startswith(keys.segment(1, 1).rsplit("/", 1)[0])
    assert "late" in [row["group"] for row in found["partitions"]]
    assert [(severity, each) for severity, each, _ in problems(root)] == [("damage", code)]


# Partitions that move to another bundle


async def decided(root: Root, name: str, partition: int) -> None:
    await root.decide_move(name, partition, 2)


async def opened_elsewhere(root: Root, name: str, partition: int) -> None:
    await decided(root, name, partition)
    await root.seal(name, partition)
    await root.open_moved(name, partition)


async def moved(root: Root, name: str, partition: int) -> None:
    await root.move(name, partition, 2)


Moving = Callable[[Root, str, int], Awaitable[None]]


@pytest.mark.parametrize("move", [decided, opened_elsewhere, moved])
def test_dead_letters_are_counted_once_while_their_partition_moves(tmp_path: Path, move: Moving) -> None:
    async def change(root: Root) -> None:
        await root.produce("workers.dlq", (0, [b"x", b"x"]))
        await advance_checkpoint(
            ledger_of(root.store, 1, sources=root.sources),
            log_start_move({PartitionId(root.topics["workers.dlq"].id, 0): 1}),
        )
        await move(root, "workers.dlq", 0)
        if move != decided:
            await root.produce("workers.dlq", (0, [b"x"]))

    code, found = inspected.json("queues", made(tmp_path, change))
    assert (code, found["dead_letters"]) == (0, 2 if move == decided else 3)


def test_what_a_group_knows_of_a_partition_that_is_to_leave_is_shown_until_the_other_bundle_has_it(
    tmp_path: Path,
) -> None:
    root = made(tmp_path, lambda root: decided(root, "jobs", 1))
    code, found = inspected.json("queues", root)
    assert (code, [row["group"] for row in found["groups"]]) == (0, ["late", "workers"])
    assert problems(root) == []


@pytest.mark.parametrize("move", [opened_elsewhere, moved])
def test_what_a_group_knew_of_a_partition_that_left_is_not_shown_and_no_damage(tmp_path: Path, move: Moving) -> None:
    """The old bundle's owner has not removed it yet."""
    root = made(tmp_path, lambda root: move(root, "jobs", 1))
    code, found = inspected.json("queues", root)
    assert (code, [row["group"] for row in found["groups"]], found["unfinished"]) == (0, ["workers"], 40)
    assert problems(root) == []


@pytest.mark.parametrize("move", [decided, opened_elsewhere, moved])
@pytest.mark.parametrize("what", ["queues", "timers", "transactions", "cluster"])
def test_a_root_with_moves_is_shown(tmp_path: Path, what: str, move: Moving) -> None:
    root = made(tmp_path, lambda root: move(root, "jobs", 0))
    code, found = inspected.json(what, root)
    assert (code, found["findings"]) == (0, [])
    if what == "cluster":
        [jobs] = [row for row in found["topics"] if row["topic"] == "jobs"]
        assert (jobs["records"], jobs["in_parquet"]) == (303, 303 if move == moved else 0), "each is counted once"

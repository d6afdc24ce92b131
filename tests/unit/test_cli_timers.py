"""`ledgermq inspect timers` and `ledgermq fsck` on roots with timed messages: what waits is shown, and
what is missing or contradicts the state is damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.timed.state.blocks import Id, Key, encode_block, end_of
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US
from ledgermq_broker.timed.state.places import Range, RangeId
from ledgermq_broker.timed.state.records import (
    Entry,
    Flushed,
    FlushedEntry,
    Piece,
    RangeEntry,
    RecallEntry,
    WatermarkEntry,
    encode,
)
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_tools.ledger import fsck
from ledgermq_tools.ledger.inspect import command as inspect
from tests.property.timer_log import batch_of
from tests.stores.backends import file_store
from tests.unit.timers.test_waiting import ids_of
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

inspected, checked = RootCommand(inspect), RootCommand(fsck)

NEAR, FAR = RangeId(False, 3), RangeId(True, 7)


@dataclass
class Filled:
    """A root of one bundle. Three blocks in the intake, the first of which was flushed: a message went to a
    range of a minute, one to a range of a day. A message of the second block is recalled.
    """

    root: Root
    now_us: int

    @property
    def near(self) -> Range:
        first_us = self.now_us // MINUTE_US * MINUTE_US + 5 * MINUTE_US
        return Range(first_us, first_us + MINUTE_US, 0, records=1, size_bytes=100)

    @property
    def far(self) -> Range:
        first_us = self.now_us // DAY_US * DAY_US + 3 * DAY_US
        return Range(first_us, first_us + DAY_US, 0, records=1, size_bytes=200)

    async def put(self, *entries: Entry) -> None:
        for record in map(encode, entries):
            await self.root.put_internal(self.root.topics[keys.TIMERS_TOPIC], record.key, record.value)

    async def block(self, range_id: RangeId | None, *found: Key) -> None:
        """Put a block into the intake (None; only the due times count), or into a range's partition."""
        data = encode_batch(batch_of(range(len(found)), [key.due_us for key in found]))
        ids = None if range_id is None else ids_of(found)
        record = encode_block(PartitionId(self.root.topics["t"].id, 0), 1 if ids is None else 0, data, ids)
        if range_id is not None and range_id.far:
            topic, partition = keys.DELAYED_FAR_TOPIC, keys.far_partition(1, range_id.place)
        else:
            topic, partition = keys.DELAYED_TOPIC, keys.near_partition(1, 0 if range_id is None else range_id.place)
        await self.root.put_internal(self.root.topics[topic], record.key, record.value, partition)


async def fill(folder: Path, then: Callable[[Filled], Awaitable[None]]) -> None:
    sources = Sources()
    async with file_store(folder) as store:
        root = await Root.open(store, sources)
        await root.create_topic("t")
        await root.create_topic(keys.TIMERS_TOPIC)
        await root.create_topic(keys.DELAYED_TOPIC, keys.NEAR_PARTITIONS, internal_kind="staged")
        await root.create_topic(keys.DELAYED_FAR_TOPIC, keys.FAR_PARTITIONS, internal_kind="hidden")
        filled = Filled(root, sources.now_ms() * 1000)
        soon_us = filled.now_us + MINUTE_US
        await filled.block(None, Key(filled.near.from_us, 0, 0), Key(filled.far.from_us, 0, 1))
        await filled.block(None, Key(soon_us, 1, 0), Key(soon_us, 1, 1))
        await filled.block(None, Key(soon_us, 2, 0))
        await filled.block(NEAR, Key(filled.near.from_us, 0, 0))
        await filled.block(FAR, Key(filled.far.from_us, 0, 1))
        await filled.put(
            WatermarkEntry(end_of(filled.now_us)),
            FlushedEntry(Flushed(0, (Piece(1, soon_us),))),
            RangeEntry(NEAR, filled.near),
            RangeEntry(FAR, filled.far),
            RecallEntry(Id(1, 1), soon_us),
        )
        await then(filled)


def made(tmp_path: Path, then: Callable[[Filled], Awaitable[None]]) -> Path:
    asyncio.run(fill(tmp_path / "root", then))
    return tmp_path / "root"


async def nothing(_: Filled) -> None:
    pass


def problems(root: Path, *options: str) -> list[tuple[str, str]]:
    _, found = checked.json(root, *options)
    return [(each["severity"], each["code"]) for each in found.get("problems", []) if each["severity"] != "note"]


def test_what_waits_is_shown_from_the_store_alone(tmp_path: Path) -> None:
    root = made(tmp_path, nothing)
    code, found = inspected.json("timers", root, "--all")
    assert (code, found["messages_in_ranges"], found["bytes_in_ranges"], found["recalls"]) == (0, 2, 300, 1)
    [bundle] = found["bundles"]
    assert (bundle["intake_begin"], bundle["intake_end"], bundle["flushed"], bundle["ranges"]) == (0, 3, 1, 2)
    assert [(row["topic"], row["partition"], row["messages"]) for row in found["ranges"]] == [
        (keys.DELAYED_TOPIC, keys.near_partition(1, 3), 1),
        (keys.DELAYED_FAR_TOPIC, keys.far_partition(1, 7), 1),
    ]
    assert [(row["offset"], row["row"]) for row in found["recalled"]] == [(1, 1)]
    assert [(row["place"], row["offset"], row["topic"], row["messages"]) for row in found["blocks"]] == [
        ("__delayed/0", 0, "t", 2),
        ("__delayed/0", 1, "t", 2),
        ("__delayed/0", 2, "t", 1),
        ("__delayed/3", 0, "t", 1),
        ("__delayed_far/7", 0, "t", 1),
    ]
    assert (checked(root)[0], problems(root)) == (0, [])


def test_after_compaction_the_same_is_found(tmp_path: Path) -> None:
    async def compact(filled: Filled) -> None:
        assert not (await filled.root.compact()).failures
        assert (await filled.root.newest()).snapshot_plan

    root = made(tmp_path, compact)
    assert inspected.json("timers", root)[1]["messages_in_ranges"] == 2
    assert problems(root) == []


def test_a_root_without_timed_messages_has_none(tmp_path: Path) -> None:
    async def fill_plain() -> None:
        async with file_store(tmp_path / "plain") as store:
            await Root.open(store, Sources())

    asyncio.run(fill_plain())
    code, found = inspected.json("timers", tmp_path / "plain")
    assert (code, found["bundles"], found["ranges"], found["messages_in_ranges"]) == (0, [], [], 0)
    assert inspected("timers", tmp_path / "plain")[0] == 0
    assert problems(tmp_path / "plain") == []


async def range_begins_beyond_its_end(filled: Filled) -> None:
    await filled.put(RangeEntry(NEAR, replace(filled.near, begin_offset=2)))


async def more_is_flushed_than_there_is(filled: Filled) -> None:
    await filled.put(FlushedEntry(Flushed(0, (Piece(4, filled.now_us + MINUTE_US),))))


async def delivery_passes_a_day_that_waits(filled: Filled) -> None:
    await filled.put(
        RangeEntry(
            FAR, replace(filled.far, from_us=filled.far.from_us - 4 * DAY_US, to_us=filled.far.to_us - 4 * DAY_US)
        )
    )


async def range_holds_another_time(filled: Filled) -> None:
    await filled.block(NEAR, Key(filled.near.to_us, 1, 0))


async def range_holds_no_ids(filled: Filled) -> None:
    record = encode_block(
        PartitionId(filled.root.topics["t"].id, 0), 0, encode_batch(batch_of([0], [filled.near.from_us]))
    )
    topic = filled.root.topics[keys.DELAYED_TOPIC]
    await filled.root.put_internal(topic, record.key, record.value, keys.near_partition(1, 3))


async def intake_is_trimmed_too_far(filled: Filled) -> None:
    root = filled.root
    place = PartitionId(root.topics[keys.DELAYED_TOPIC].id, keys.near_partition(1, 0))
    await move_internal_log_starts(LedgerRef(root.store, 1, root.cluster, root.sources), {place: 2})


async def block_is_no_block(filled: Filled) -> None:
    await filled.root.put_internal(filled.root.topics[keys.DELAYED_TOPIC], b"\xff", b"x", keys.near_partition(1, 0))


async def state_is_no_state(filled: Filled) -> None:
    await filled.root.put_internal(filled.root.topics[keys.TIMERS_TOPIC], b"watermark", b"\xff")


async def watermark_is_ahead(filled: Filled) -> None:
    await filled.put(WatermarkEntry(end_of(filled.now_us + 2 * 60 * MINUTE_US)))


@pytest.mark.parametrize(
    ("change", "severity", "code", "also_quick"),
    [
        (range_begins_beyond_its_end, "damage", "TIMED_CONTRADICTED", True),
        (more_is_flushed_than_there_is, "damage", "TIMED_CONTRADICTED", True),
        (delivery_passes_a_day_that_waits, "damage", "TIMED_CONTRADICTED", True),
        (range_holds_another_time, "damage", "TIMED_CONTRADICTED", False),
        (range_holds_no_ids, "damage", "TIMED_CONTRADICTED", False),
        (intake_is_trimmed_too_far, "damage", "TIMED_MISSING", True),
        (block_is_no_block, "damage", "DATA_DAMAGED", False),
        (state_is_no_state, "damage", "DATA_DAMAGED", True),
        (watermark_is_ahead, "untidy", "WATERMARK_AHEAD", True),
    ],
)
def test_what_contradicts_the_state_is_reported(
    tmp_path: Path, change: Callable[[Filled], Awaitable[None]], severity: str, code: str, also_quick: bool
) -> None:
    root = made(tmp_path, change)
    assert set(problems(root)) == {(severity, code)}
    assert set(problems(root, "--quick")) == ({(severity, code)} if also_quick else set())

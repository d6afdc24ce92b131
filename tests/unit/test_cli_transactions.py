"""`ledgermq inspect transactions` and `ledgermq fsck` on roots with open transactions: what is staged
is shown, and what is missing or changed is damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ledgermq.sources import Sources
from ledgermq_broker.transactions.state.records import (
    Entry,
    IdEntry,
    IdValue,
    NoteEntry,
    NoteValue,
    ReferencesEntry,
    ReferencesValue,
    encode,
)
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Stream, Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_tools.ledger import fsck
from ledgermq_tools.ledger.inspect import command as inspect
from tests.stores.backends import file_store
from tests.worlds.ledgers import append_and_wait, batch
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

inspected, checked = RootCommand(inspect), RootCommand(fsck)

XID = Transaction("xid", 0, b"\x01" * 16, 1, 1)
HOUR_MS = 3_600_000


@dataclass
class Filled:
    """A root whose transaction `xid` has staged three batches for partition 0 of `t`."""

    root: Root
    now_ms: int
    references: list[Reference] = field(default_factory=list)

    async def put(self, *entries: Entry) -> None:
        topic = self.root.topics[keys.TRANSACTIONS_TOPIC]
        for record in map(encode, entries):
            await self.root.put_internal(topic, record.key, record.value)

    async def stage(self, n: int, *references: Reference) -> None:
        value = ReferencesValue(XID, self.now_ms, references)
        await self.put(ReferencesEntry(XID.producer_id, XID.epoch, XID.number, n, value))

    @property
    def stream(self) -> Stream:
        return Stream(b"", self.root.topics["t"].id, 0)

    async def decided(self, state: State, *, age_ms: int = 0) -> None:
        missing = (1,) if state.is_final else ()
        known = IdValue(XID.producer_id, 1, Kind.TWO_PHASE, 60_000, self.now_ms - age_ms, 1, state, False)
        await self.put(IdEntry("xid", replace(known, parts=(Part(1, {self.stream: 3}),), missing=missing)))

    async def note(self, copied: int, **more: Any) -> None:
        note = NoteValue(
            XID, State.COMMITTED, False, Part(1, {self.stream: 3}), {self.stream: copied} if copied else {}
        )
        await self.put(NoteEntry(XID.producer_id, replace(note, **more)))


async def fill(folder: Path, then: Callable[[Filled], Awaitable[None]]) -> None:
    sources = Sources()
    async with file_store(folder) as store:
        root = await Root.open(store, sources)
        await root.create_topic("t")
        await root.create_topic(keys.STAGED_TOPIC, internal_kind="staged")
        await root.create_topic(keys.TRANSACTIONS_TOPIC, transaction_coordinators="1")
        filled = Filled(root, sources.now_ms())
        writer = await root.writer(1)
        for number in range(3):
            data: Batch = batch(b"staged %d" % number, topic_id=root.topics[keys.STAGED_TOPIC].id)
            [offset] = await append_and_wait(writer, data)
            filled.references.append(
                Reference(filled.stream, number, offset, 1, len(data.data), crc32c(data.data), 0, 0)
            )
        await filled.stage(0, *filled.references[:2])
        await filled.stage(1, filled.references[2])
        await filled.decided(State.PREPARED)
        await then(filled)


def made(tmp_path: Path, then: Callable[[Filled], Awaitable[None]]) -> Path:
    asyncio.run(fill(tmp_path / "root", then))
    return tmp_path / "root"


async def nothing(_: Filled) -> None:
    pass


def problems(root: Path) -> list[tuple[str, str]]:
    _, found = checked.json(root)
    return [(each["severity"], each["code"]) for each in found.get("problems", []) if each["severity"] != "note"]


def test_what_is_staged_is_shown_from_the_store_alone(tmp_path: Path) -> None:
    root = made(tmp_path, nothing)
    code, found = inspected.json("transactions", root)
    assert code == 0
    assert [(row["id"], row["kind"], row["state"]) for row in found["transactions"]] == [
        ("xid", "two_phase", "prepared")
    ]
    [row] = found["staged"]
    assert (row["bundle"], row["id"], row["batches"], row["first_offset"], row["groups"]) == (1, "xid", 3, 0, [])
    assert row["bytes"] == found["staged_bytes"] > 0
    _, segment = inspected.json("segment", root, 1, row["first_slot"])
    assert [(each["topic"], each["base_offset"]) for each in segment["batches"]] == [(keys.STAGED_TOPIC, 0)]
    _, records = inspected.json("segment", root, 1, row["first_slot"] + 3)
    assert [each["topic"] for each in records["batches"]] == [keys.TRANSACTIONS_TOPIC]
    code, text, _ = inspected("transactions", root)
    assert (code, "no damage found" in text) == (0, True)
    assert (checked(root)[0], problems(root)) == (0, [])


def test_after_compaction_the_same_is_read_from_the_snapshot(tmp_path: Path) -> None:
    async def compact(filled: Filled) -> None:
        assert not (await filled.root.compact()).failures
        assert (await filled.root.newest()).snapshot_plan

    root = made(tmp_path, compact)
    assert inspected.json("transactions", root)[1]["staged"][0]["batches"] == 3
    assert problems(root) == []


def test_a_root_without_transactions_has_none(tmp_path: Path) -> None:
    async def fill_plain() -> None:
        async with file_store(tmp_path / "plain") as store:
            await Root.open(store, Sources())

    asyncio.run(fill_plain())
    code, found = inspected.json("transactions", tmp_path / "plain")
    assert (code, found["transactions"], found["staged"], found["staged_bytes"]) == (0, [], [], 0)


async def changed(filled: Filled, **other: int) -> None:
    await filled.stage(1, replace(filled.references[2], **other))


async def trimmed(filled: Filled) -> None:
    root = filled.root
    ledger = LedgerRef(root.store, 1, root.cluster, root.sources)
    assert await move_internal_log_starts(ledger, {PartitionId(root.topics[keys.STAGED_TOPIC].id, 0): 1})


async def begun_without_batches(filled: Filled) -> None:
    await filled.decided(State.COMMITTED)
    await filled.put(ReferencesEntry(XID.producer_id, XID.epoch, XID.number, 1, None))
    await filled.note(1)


@pytest.mark.parametrize(
    ("then", "code", "text"),
    [
        (partial(changed, length=7), "STAGED_DIFFERS", "staged a batch of 7 bytes at offset 2"),
        (partial(changed, crc=7), "STAGED_DIFFERS", "instead of 00000007"),
        (partial(changed, record_count=2), "STAGED_DIFFERS", "another batch is there"),
        (partial(changed, offset=9), "STAGED_MISSING", "no segment has it"),
        (trimmed, "STAGED_MISSING", "below the log start 1"),
        (begun_without_batches, "STAGED_MISSING", "references to 1 of its 3 batches"),
    ],
)
def test_what_a_commit_would_miss_is_damage(
    tmp_path: Path, then: Callable[[Filled], Awaitable[None]], code: str, text: str
) -> None:
    root = made(tmp_path, then)
    found = checked.json(root)
    assert found[0] == 6
    assert [(each["severity"], each["code"]) for each in found[1]["problems"] if each["severity"] != "note"] == [
        ("damage", code)
    ]
    assert text in found[1]["problems"][0]["text"]
    assert "'xid'" in found[1]["problems"][0]["text"]
    shown = inspected.json("transactions", root)
    assert (shown[0], [each["code"] for each in shown[1]["findings"]]) == (6, [code])


def test_what_was_copied_already_may_be_gone(tmp_path: Path) -> None:
    """A chunk takes away whole records; of a record that is half copied, the note says how far."""

    async def half(filled: Filled) -> None:
        await filled.decided(State.COMMITTED)
        await filled.note(1)
        await filled.stage(0, replace(filled.references[0], offset=100), filled.references[1])

    root = made(tmp_path, half)
    assert problems(root) == []
    _, found = inspected.json("transactions", root)
    [note] = found["being_completed"]
    assert (note["id"], note["batches"], note["copied"], found["staged"][0]["batches"]) == ("xid", 3, 1, 2)


def test_a_decision_that_waits_for_long_is_untidy(tmp_path: Path) -> None:
    root = made(tmp_path / "old", lambda filled: filled.decided(State.COMMITTED, age_ms=HOUR_MS + 1000))
    code, found = checked.json(root)
    assert (code, problems(root)) == (9, [("untidy", "TRANSACTION_INCOMPLETE")])
    assert "not complete in bundles 1" in found["problems"][0]["text"]
    young = made(tmp_path / "young", lambda filled: filled.decided(State.COMMITTED, age_ms=HOUR_MS - 60_000))
    assert problems(young) == []
    prepared = made(tmp_path / "prepared", lambda filled: filled.decided(State.PREPARED, age_ms=9 * HOUR_MS))
    assert problems(prepared) == []


def test_a_record_that_cannot_be_read_is_damage_and_damage_of_the_ledger_is_named_once(tmp_path: Path) -> None:
    async def unreadable(filled: Filled) -> None:
        await filled.root.put_internal(filled.root.topics[keys.TRANSACTIONS_TOPIC], b"id/y", b"\xff\xff")

    root = made(tmp_path, unreadable)
    assert problems(root) == [("damage", "DATA_DAMAGED")]
    code, found = inspected.json("transactions", root)
    assert (code, [each["code"] for each in found["findings"]]) == (6, ["DATA_DAMAGED"])
    first = root / keys.segment(1, 2)
    data = bytearray(first.read_bytes())
    data[-40] ^= 1
    first.chmod(0o644)
    first.write_bytes(data)
    _, found = checked.json(root)
    assert {each["object_key"] for each in found["problems"] if each["severity"] == "damage"} == {keys.segment(1, 2)}

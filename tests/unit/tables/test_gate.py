"""No file that a version of a table names is deleted while a reader may have that version open (design Z6): by the
retention of a bundle that goes on for ever, and with each rule of the gate left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.delta import names
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.tables.registrar import Registrar
from tests.virtual_time import run_virtual, virtual
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.set_tables import (
    AGED_S,
    KEEP_MS,
    a_root,
    first_offsets,
    lost,
    make_round,
    raise_start,
    registrar,
    set_table,
    tell,
    tidy,
    write_table,
)


async def a_life(root: Root) -> list[str]:
    """Rounds, retention behind them, the registrar, deletion: ten times. Return what was lost."""
    found: set[str] = set()
    for number in range(10):
        await make_round(root)
        await registrar(root).catch_up()
        await asyncio.sleep(AGED_S)
        await raise_start(root, 2 * number)
        for _ in range(2):
            await registrar(root).catch_up()
            await registrar(root).raise_gates()
            await tidy(root)
            found |= set(await lost(root))
            await asyncio.sleep(AGED_S)
    return sorted(found)


@virtual
async def test_what_a_reader_may_have_open_stays_and_goes_after_that() -> None:
    root = await a_root()
    assert await a_life(root) == []
    assert 0 not in await first_offsets(root), "the gate has risen"
    assert len(await first_offsets(root)) > 2, "what was removed a moment ago stays"
    await asyncio.sleep(KEEP_MS / 1000 + 1)
    await registrar(root).raise_gates()
    await tidy(root)
    assert await first_offsets(root) == [18], "nothing is held for ever"
    assert await lost(root) == []


def left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "_why_tables_keep", lambda self, file: "")


def asked_at_once(patch: pytest.MonkeyPatch) -> None:
    original = DeltaLog.read_held

    async def read_held(self: DeltaLog, keep_ms: int) -> tuple[Table, Table]:
        return await original(self, 0)

    patch.setattr(DeltaLog, "read_held", read_held)


def by_the_age_of_the_version_itself(patch: pytest.MonkeyPatch) -> None:
    def lowest_held(commits: dict[int, int], newest: int, now_ms: int, keep_ms: int) -> int:
        held = newest
        while held - 1 in commits and now_ms - commits[held - 1] < keep_ms:
            held -= 1
        return held

    patch.setattr(names, "lowest_held", lowest_held)


@pytest.mark.parametrize("rule", [left_out, asked_at_once, by_the_age_of_the_version_itself])
def test_without_a_rule_a_named_file_is_lost(rule: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The twins of the model's no-gate, gate-at-once, age-of-the-version-itself."""

    async def run() -> None:
        root = await a_root()
        if rule is by_the_age_of_the_version_itself:  # the version that is replaced is old, its successor young
            await make_round(root)
            await registrar(root).catch_up()
            await asyncio.sleep(KEEP_MS / 1000)
        assert await a_life(root), "the rule is needed"

    with pytest.MonkeyPatch.context() as patch:
        rule(patch)
        run_virtual(run)


async def _a_file_that_expires_unregistered(root: Root) -> None:
    """A registrar that sleeps over its put adds a file that has expired meanwhile."""
    await make_round(root)
    await registrar(root).catch_up()
    await make_round(root)
    put, asleep = asyncio.Event(), registrar(root)
    original = asleep._log.commit

    async def commit(*args: Any) -> Committed:
        await put.wait()
        return await original(*args)

    asleep._log.commit = commit  # type: ignore[method-assign]
    late = asyncio.create_task(asleep.turn())
    await asyncio.sleep(AGED_S)
    for start in (2, 4):
        await raise_start(root, start)
        await registrar(root).catch_up()
    await asyncio.sleep(KEEP_MS / 1000 + 1)
    await registrar(root).raise_gates()
    for _ in range(2):
        await tidy(root)
        await asyncio.sleep(AGED_S)
    put.set()
    await late


@virtual
async def test_a_commit_that_comes_late_names_nothing_that_went() -> None:
    root = await a_root()
    await _a_file_that_expires_unregistered(root)
    assert await first_offsets(root) == []
    assert await lost(root) == []


def test_a_gate_that_no_version_says_loses_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the model's gate-without-a-version: a table without removals, whose gates go by the log starts."""

    async def raise_gate(self: Registrar, place: PartitionId, start: int) -> bool:
        checkpoint = await self._in_charge(place)
        assert checkpoint is not None
        ledger = ledger_of(self._store, checkpoint.bundle, cluster=self._cluster, sources=self._sources)
        above = partition_of(checkpoint, *place).log_start
        return await advance_checkpoint(ledger, self._gate_move(place, above)) is not None

    async def run() -> None:
        root = await a_root()
        original = Registrar.catch_up

        async def catch_up(self: Registrar) -> Any:
            return None if partition_of(await root.newest(), root.topics["t"].id, 0).log_start else await original(self)

        monkeypatch.setattr(Registrar, "catch_up", catch_up)
        monkeypatch.setattr(Registrar, "_raise_gate", raise_gate)
        await _a_file_that_expires_unregistered(root)
        assert await lost(root)

    run_virtual(run)


@virtual
async def test_a_frozen_list_keeps_its_gate_and_takes_it_along() -> None:
    root = await a_root()
    for _ in range(3):
        await make_round(root)
    await registrar(root).catch_up()
    await raise_start(root, 2)
    await registrar(root).catch_up()
    await asyncio.sleep(KEEP_MS / 1000 + 1)
    assert await registrar(root).raise_gates() == 1
    await raise_start(root, 4)
    await registrar(root).catch_up()
    await asyncio.sleep(KEEP_MS / 1000 + 1)
    await root.decide_move("t", 0, 2)
    await root.seal("t", 0)
    await root.open_moved("t", 0)
    await tell(root, 2)
    engine, place = LocalEngine(root.sources, run_inline), PartitionId(root.topics["t"].id, 0)
    for _ in range(2):
        await compact_root(root.store, root.sources, engine, bundles=[1])
        assert await registrar(root).raise_gates() == 0
    assert partition_of(await root.newest(1), *place).frozen
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    assert partition_of(await root.newest(2), *place).table_start == 2, "it came with the list"
    await tell(root, 2)
    assert await registrar(root).raise_gates() == 1
    assert partition_of(await root.newest(2), *place).table_start == 4
    await make_round(root)
    for _ in range(2):
        await tidy(root, bundle=2)
        await asyncio.sleep(AGED_S)
    assert await first_offsets(root) == [4, 6]
    assert await lost(root) == []


def gate_draft(root: Root, **counters: Any) -> fmt.Checkpoint:
    topic = root.topics["t"]
    draft = fmt.Checkpoint(bundle=1)
    draft.topic_facts.add(topic_id=topic.id, version=topic.version, table=1)
    draft.partitions.add(topic_id=topic.id, partition=0, log_start=10, parquet_end=20, **counters)
    return draft


@virtual
async def test_what_a_gate_is_raised_in() -> None:
    """Never in a frozen list, never above the log start (a restored root), never by other settings."""
    root = await a_root()
    topic, draft = root.topics["t"], gate_draft(root)
    place = PartitionId(topic.id, 0)

    def raised(draft: fmt.Checkpoint, start: int = 8) -> bool:
        return registrar(root)._gate_move(place, start)(draft)

    assert raised(draft)
    assert draft.partitions[0].table_start == 8
    assert not raised(draft)
    assert raised(draft, 12)
    assert draft.partitions[0].table_start == 10
    assert not raised(gate_draft(root, frozen=3))
    for change in ({"table": 2}, {"table": 0}, {"version": topic.version + 1}):
        other = gate_draft(root)
        other.topic_facts[0].MergeFrom(fmt.TopicFact(**change))
        if change == {"table": 0}:
            other.topic_facts[0].ClearField("table")
        assert not raised(other), change


async def _registered_while_a_bundle_does_not_know(root: Root) -> None:
    await make_round(root)
    await make_round(root)
    older = await root.catalog()
    await write_table(root, 1, KEEP_MS)
    turn = await registrar(root).catch_up()
    assert turn.waits in ("", "bundle 1 does not know of the table yet")
    await asyncio.sleep(AGED_S)
    await raise_start(root, 2)
    await tidy(root, older)


@virtual
async def test_no_version_before_each_bundle_knows() -> None:
    root = await a_root(has_table=False)
    await _registered_while_a_bundle_does_not_know(root)
    assert await first_offsets(root) == [2], "it deletes: nothing names the file"
    assert await lost(root) == []
    await tell(root, 1)
    await registrar(root).catch_up()
    assert await lost(root) == []


def test_a_table_before_the_bundles_know_loses_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the model's registered-before-the-bundles-know."""
    monkeypatch.setattr(Registrar, "_why_unknown", lambda self, checkpoint: "")

    async def run() -> None:
        root = await a_root(has_table=False)
        await _registered_while_a_bundle_does_not_know(root)
        assert await lost(root)

    run_virtual(run)


async def _lists_of_before(root: Root, early: bool) -> None:
    """A bundle deletes a file after a registrar has read its list, and before it knows of the table. `early`: the
    registrar reads the lists before it looks whether the bundles know.
    """
    await make_round(root)
    await make_round(root)
    older = await root.catalog()
    await write_table(root, 1, KEEP_MS)
    if early:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Registrar, "_why_unknown", lambda self, checkpoint: "")
            stale = await registrar(root)._lists(Table())
    await asyncio.sleep(AGED_S)
    await raise_start(root, 2)
    await tidy(root, older)
    await tell(root, 1)
    working = registrar(root)
    if early:

        async def lists(table: Table) -> Any:
            return stale

        working._lists = lists  # type: ignore[method-assign]
    await working.turn()


@pytest.mark.parametrize("early", [False, True])
def test_lists_are_read_after_the_look_whether_the_bundles_know(early: bool) -> None:
    """The twin of the model's lists-read-before-the-bundles-know."""

    async def run() -> None:
        root = await a_root(has_table=False)
        await _lists_of_before(root, early)
        assert bool(await lost(root)) is early

    run_virtual(run)


async def _rebuilt(root: Root) -> None:
    for _ in range(3):
        await make_round(root)
    await registrar(root).catch_up()
    await raise_start(root, 4)
    await set_table(root, 2, KEEP_MS)
    await registrar(root).catch_up()
    await asyncio.sleep(AGED_S)
    await registrar(root).raise_gates()
    await tidy(root)


@virtual
async def test_versions_of_the_generation_before_are_held_too() -> None:
    root = await a_root()
    await _rebuilt(root)
    assert await first_offsets(root) == [0, 2, 4]
    assert await lost(root) == []
    await asyncio.sleep(KEEP_MS / 1000)
    assert await registrar(root).raise_gates() == 1
    await tidy(root)
    assert await first_offsets(root) == [4]


def test_a_rebuild_that_forgets_what_is_held_loses_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the model's a-rebuild-forgets-what-is-held."""
    original = DeltaLog.read_held

    async def read_held(self: DeltaLog, keep_ms: int) -> tuple[Table, Table]:
        _, newest = await original(self, keep_ms)
        return newest, newest

    monkeypatch.setattr(DeltaLog, "read_held", read_held)

    async def run() -> None:
        root = await a_root()
        await _rebuilt(root)
        assert await lost(root)

    run_virtual(run)

"""Merged files in a Delta table (design Z8): they take the place of the small ones, and the other way round before the
log start passes their begin. No version loses a row or a file, no stream gets a row again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.actions import Add, Remove, decode_commit, decode_path
from ledgermq_ledger.delta.names import FOLDER
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, Topic
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.merging.names import MergedName, parse_merged
from ledgermq_ledger.tables.describe import describe_table
from ledgermq_ledger.tables.follower import TableFollower
from tests.virtual_time import run_virtual, virtual
from tests.worlds.merged_files import UNREAD, compaction, counters_of, spoil
from tests.worlds.roots import Root, read_parquet_rows
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
    tidy,
)

FOLDER_OF_T = keys.parquet_topic("t")


async def a_merging_root(rounds: int = 0) -> Root:
    root = await a_root()
    await root.alter_topic("t", parquet_merge_files="3")
    await set_table(root, 1, KEEP_MS)
    for _ in range(rounds):
        await make_round(root)
        await registrar(root).catch_up()
    return root


async def shown(root: Root, partition: int = 0) -> list[tuple[int, int, bool]]:
    """Return what the newest version names of a partition: first offset, end, and whether it is a merged file."""
    table = await registrar(root)._log.read()
    found = []
    for add in table.files.values():
        key = FOLDER_OF_T + decode_path(add.path)
        name, merged = keys.parse_parquet(key), parse_merged(key)
        if name is not None and name.partition == partition:
            found.append((name.first_offset, name.last_offset + 1, False))
        elif merged is not None and merged.place.partition == partition and merged.offsets is not None:
            found.append((merged.offsets[0], merged.offsets[1] + 1, True))
    return sorted(found)


async def commits(root: Root) -> list[list[Add | Remove]]:
    """Return the files that each version adds and removes."""
    folder, found = FOLDER_OF_T + FOLDER, []
    async for info in root.store.list(folder):
        if info.key.endswith(".json"):
            actions = decode_commit(await root.store.get(info.key), info.key).actions
            found.append([action for action in actions if isinstance(action, (Add, Remove))])
    return found


async def judge(root: Root) -> set[str]:
    """What a reader may miss: files that held versions name, gaps of the newest version, rows of a stream."""
    found = set(await lost(root))
    for partition in (0, 1):
        run = await shown(root, partition)
        if any(one[1] != other[0] for one, other in pairwise(run)):
            found.add(f"partition {partition} shows {run}")
    for number, actions in enumerate(await commits(root)):
        changes = {action.data_change for action in actions}
        if len(changes) > 1:
            found.add(f"version {number} changes rows and exchanges files")
    return found


@virtual
async def test_a_merged_file_takes_the_place_of_exactly_its_small_ones() -> None:
    root = await a_merging_root(4)
    assert await shown(root) == [(0, 6, True), (6, 8, False)]
    assert await judge(root) == set()
    [exchange] = [actions for actions in await commits(root) if actions and not actions[0].data_change]
    assert [type(action) for action in exchange].count(Remove) == 6, "three of each partition"
    assert not any(action.data_change for action in exchange), "a stream passes over it"
    assert len(await first_offsets(root)) == 4, "plain readers have their files"
    assert {part: len(rows) for part, rows in (await read_parquet_rows(root.store)).items()} == {
        ("t", 0): 8,
        ("t", 1): 8,
    }
    problems = (await check_root(root.store, root.cluster, run_blocking=run_inline)).problems
    assert not [problem for problem in problems if problem.severity is Severity.DAMAGE]
    facts = await describe_table(root.store, root.cluster.cluster_id, root.topics["t"])
    assert [(each.files, each.rows) for each in facts.partitions] == [(2, 8), (2, 8)]


@virtual
async def test_small_files_come_back_before_the_log_start_passes_a_merged_one() -> None:
    root = await a_merging_root(6)
    assert await shown(root) == [(0, 6, True), (6, 12, True)]
    await raise_start(root, 3)
    await registrar(root).catch_up()
    assert await shown(root) == [(2, 4, False), (4, 6, False), (6, 12, True)]
    assert await judge(root) == set()
    await raise_start(root, 12)
    await registrar(root).catch_up()
    assert await shown(root) == [], "all of a merged file below the log start goes as it is"
    assert await judge(root) == set()


async def a_life(root: Root) -> set[str]:
    """Rounds, merges, retention behind them, the registrar, deletion: twelve times. Return what was lost."""
    found = set[str]()
    for number in range(12):
        await make_round(root)
        await registrar(root).catch_up()
        await asyncio.sleep(AGED_S)
        await raise_start(root, 2 * number - 3 if number > 3 else 0)
        for _ in range(2):
            await registrar(root).catch_up()
            await registrar(root).raise_gates()
            await tidy(root)
            found |= await judge(root)
            await asyncio.sleep(AGED_S)
    return found


@virtual
async def test_no_version_that_can_be_read_loses_a_file() -> None:
    root = await a_merging_root()
    assert await a_life(root) == set()
    assert any(is_merged for _, _, is_merged in await shown(root, 1))
    assert 0 not in await first_offsets(root), "the gate has risen"
    for _ in range(3):
        await asyncio.sleep(KEEP_MS / 1000 + 1)
        await registrar(root).catch_up()
        await registrar(root).raise_gates()
        await tidy(root)
    swept = await sweep(compaction(root), grace_ms=0)
    assert not swept.failures
    assert await judge(root) == set()
    starts = [name.offsets[0] for name in await merged_names(root) if name.place.partition == 0 and name.offsets]
    assert min(starts) >= (await first_offsets(root))[0], "nothing is held for ever"


async def merged_names(root: Root) -> list[MergedName]:
    found = [parse_merged(info.key) async for info in root.store.list(FOLDER_OF_T)]
    return [name for name in found if name is not None]


def starts_within_merged_files(patch: pytest.MonkeyPatch) -> None:
    real = versions._removal

    def removal(table: Table, topic: Topic, lists: dict[int, Listed], named: object, now_ms: int) -> Draft:
        small = {p: [f for f in files if not f.is_merged or f.end <= lists[p].log_start] for p, files in named.items()}  # type: ignore[attr-defined]
        return real(table, topic, lists, small, now_ms)

    patch.setattr(versions, "_removal", removal)
    patch.setattr(versions, "_exchange", only_forward(versions._exchange))


def only_forward(real: Callable[..., Draft]) -> Callable[..., Draft]:
    """Nothing is put back."""

    def exchange(table: Table, topic: Topic, lists: dict[int, Listed], named: object, now_ms: int) -> Draft:
        without = {p: [file for file in files if not file.is_merged] for p, files in named.items()}  # type: ignore[attr-defined]
        return real(table, topic, lists, without, now_ms)

    return exchange


def over_a_part_of_their_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "_is_run", lambda files, first, end: len(files) > 1)


@pytest.mark.parametrize("rule", [starts_within_merged_files, over_a_part_of_their_range])
def test_without_a_rule_a_version_loses_something(rule: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The twins of the model's start-within-a-merged-file and merged-over-a-part-of-its-range."""

    async def run() -> None:
        root = await a_merging_root()
        assert await a_life(root), "the rule is needed"

    with pytest.MonkeyPatch.context() as patch:
        rule(patch)
        run_virtual(run)


@virtual
async def test_a_rebuild_takes_merged_files_from_the_log_start_on() -> None:
    root = await a_merging_root(6)
    await raise_start(root, 3)
    await set_table(root, 2, KEEP_MS)
    await registrar(root).catch_up()
    assert await shown(root) == [(2, 4, False), (4, 6, False), (6, 12, True)]
    assert await shown(root, 1) == [(0, 6, True), (6, 12, True)]
    assert await judge(root) == set()


@virtual
async def test_small_files_come_back_when_the_topic_wants_no_merges_any_longer() -> None:
    root = await a_merging_root(4)
    await root.alter_topic("t", parquet_merge_files="0")
    await set_table(root, 1, KEEP_MS)
    await registrar(root).catch_up()
    assert await shown(root) == [(0, 2, False), (2, 4, False), (4, 6, False), (6, 8, False)]
    assert await judge(root) == set()


@virtual
async def test_small_files_take_the_place_of_a_merged_one_that_is_missing() -> None:
    root = await a_merging_root(4)
    [missing] = [name.key for name in await merged_names(root) if name.place.partition == 0 and name.offsets]
    await root.store.delete([missing])
    await root.alter_topic("t", parquet_merge_files="0")
    await set_table(root, 1, KEEP_MS)
    await registrar(root).catch_up()
    assert not any(is_merged for _, _, is_merged in await shown(root))
    await asyncio.sleep(KEEP_MS / 1000 + 1)
    assert await judge(root) == set()


@virtual
async def test_a_list_that_is_lost_lets_nothing_go_that_the_table_names() -> None:
    root = await a_merging_root(4)
    for info in [info async for info in root.store.list(keys.MERGED) if "/lists/" in info.key]:
        await root.store.delete([info.key])
    for _ in range(3):
        await make_round(root)
        await registrar(root).catch_up()
    await asyncio.sleep(AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await judge(root) == set()
    assert (await shown(root))[0] == (0, 6, True)


@virtual
async def test_two_registrars_put_files_of_a_lost_list_back_once() -> None:
    root = await a_merging_root(6)
    await spoil(root, "lost")
    await raise_start(root, 3)
    await asyncio.gather(registrar(root).catch_up(), registrar(root).catch_up())
    assert await shown(root) == [(2, 4, False), (4, 6, False), (6, 12, True)]
    await root.move("t", 0, 2)
    await set_table(root, 1, KEEP_MS)
    await raise_start(root, 8)
    await asyncio.gather(registrar(root).catch_up(), registrar(root).catch_up())
    assert await shown(root) == [(8, 10, False), (10, 12, False)]
    assert await judge(root) == set()


@virtual
async def test_a_lost_list_begins_anew_when_the_table_is_dropped() -> None:
    root = await a_merging_root(4)
    await spoil(root, "lost")
    await make_round(root)
    assert (await counters_of(root)).merged.number == 1, "the table may name what the list had"
    await set_table(root, 0)
    await make_round(root)
    assert (await counters_of(root)).merged.number > 1
    await set_table(root, 2, KEEP_MS)
    for _ in range(3):
        await make_round(root)
    await registrar(root).catch_up()
    assert (12, 18, True) in await shown(root)
    await asyncio.sleep(KEEP_MS / 1000 + 1)  # versions from before promise nothing any longer
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await judge(root) == set()


@virtual
async def test_an_iceberg_table_names_no_merged_file_and_holds_up_no_new_list() -> None:
    root = await a_merging_root(3)
    await spoil(root, "lost")
    root.topics["t"].raw_settings.pop("table.delta.place", None)
    await root.alter_topic("t", table_format="iceberg")
    await make_round(root)
    assert (await counters_of(root)).merged.number > 1


@virtual
async def test_a_table_that_is_set_later_names_merged_files_that_are_made_from_then_on() -> None:
    root = await a_root(has_table=False)
    await root.alter_topic("t", parquet_merge_files="3")
    for _ in range(3):
        await make_round(root)
    await set_table(root, 1, KEEP_MS)
    for _ in range(3):
        await make_round(root)
    await registrar(root).catch_up()
    assert await shown(root) == [(0, 2, False), (2, 4, False), (4, 6, False), (6, 12, True)]
    assert await judge(root) == set()


@virtual
async def test_two_registrars_and_a_move_between() -> None:
    root = await a_merging_root(3)
    for _ in range(3):
        await make_round(root)
        await asyncio.gather(registrar(root).catch_up(), registrar(root).catch_up())
    await root.move("t", 0, 2)
    await set_table(root, 1, KEEP_MS)
    for _ in range(3):
        await make_round(root)
        await registrar(root).catch_up()
    assert await shown(root) == [(0, 6, True), (6, 12, True), (12, 18, True)]
    assert await judge(root) == set()


@virtual
async def test_merged_files_are_no_foreign_objects() -> None:
    root = await a_merging_root(3)
    loop = asyncio.get_running_loop()
    follower = TableFollower(root.store, root.cluster, root.topics["t"], root.sources, loop.time, None)
    await follower.follow()
    assert follower.state.foreign == []


@virtual
async def test_merged_files_of_a_removed_topic_go() -> None:
    root = await a_merging_root(3)
    place = PartitionId(root.topics["t"].id, 0)
    assert any(name.place == place for name in await merged_names(root))
    await root.remove_topic("t")
    for _ in range(4):
        await asyncio.sleep(AGED_S)
        assert not (await root.compact()).failures
        await sweep(compaction(root), grace_ms=0)
    assert await merged_names(root) == []


@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_a_list_that_cannot_be_read_stops_no_retention(how: str) -> None:
    root = await a_merging_root(6)
    await spoil(root, how)
    for start in (3, 5, 9):
        await raise_start(root, start)
        for _ in range(2):
            await registrar(root).catch_up()
            assert await judge(root) == set()
            await asyncio.sleep(KEEP_MS / 1000 + 1)
            await registrar(root).raise_gates()
            await tidy(root)
            await asyncio.sleep(AGED_S)
            await tidy(root)
    assert await shown(root) == [(8, 10, False), (10, 12, False)]
    assert (await first_offsets(root))[0] == 8, "the gate has risen"
    assert not [name for name in await merged_names(root) if name.place.partition == 0 and name.offsets]
    for _ in range(3):
        await make_round(root)
    await registrar(root).catch_up()
    is_merged = [merged for _, _, merged in await shown(root)]
    assert any(is_merged) == (how != "later"), "a new list begins once no file of the former one is left"
    assert await judge(root) == set()


@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_a_list_that_cannot_be_read_stops_no_registrar(how: str) -> None:
    root = await a_merging_root(4)
    await spoil(root, how)
    await make_round(root)
    await registrar(root).catch_up()
    assert (await shown(root))[-1][1] == 10
    assert await judge(root) == set()

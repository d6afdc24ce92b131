"""What the gate of tables meets: a topic that is removed, a table that is unset, garbage, cleaning, `fsck`."""

from __future__ import annotations

import asyncio

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.delta.names import DATE_CUT_MS
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import collect_garbage, find_removable
from ledgermq_ledger.garbage.topics.cleaned_files import cleaned_move
from ledgermq_ledger.garbage.topics.removed import remove
from ledgermq_ledger.log.chains.checkpoint import Move
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.topics.topic import Topic
from tests.virtual_time import virtual
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows
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
async def test_without_a_table_and_after_one_nothing_is_kept() -> None:
    root = await a_root(has_table=False)
    for _ in range(3):
        await make_round(root)
    await asyncio.sleep(AGED_S)
    await raise_start(root, 2)
    await tidy(root)
    assert await first_offsets(root) == [2, 4]
    await set_table(root, 1, KEEP_MS)
    await raise_start(root, 4)
    await tidy(root)
    assert await first_offsets(root) == [2, 4], "no version has said a start yet"
    found = await find_removable(root.store, root.cluster, await root.catalog(), 0)
    assert [each.key for each in found.removable if each.key.startswith(keys.PARQUET)] == []
    await set_table(root, 0)
    await tidy(root)
    assert await first_offsets(root) == [4]


@virtual
async def test_a_topic_that_is_removed_goes_whole_and_a_new_one_begins_anew() -> None:
    root = await a_root()
    await make_round(root)
    await registrar(root).catch_up()
    await root.remove_topic("t")
    for _ in range(3):
        await root.compact()
        await asyncio.sleep(AGED_S)
    compaction = Compaction(root.store, root.cluster, root.sources, LocalEngine(root.sources, run_inline))
    while not (await remove(compaction, await root.catalog())).free:
        await asyncio.sleep(AGED_S)
    assert await read_parquet_rows(root.store) == {}
    left = await parquet_keys(root.store)
    assert left
    assert all(key.startswith(f"{keys.parquet_topic('t')}_delta_log/") for key in left), "its log stays"
    root.produced.clear()
    await root.create_topic("t", partitions=2)
    await set_table(root, 2, KEEP_MS)
    await make_round(root)
    await registrar(root).catch_up()
    table = await DeltaLog(root.store, keys.parquet_topic("t"), Sources()).read()
    assert len(table.files) == 2
    assert all(f"-{root.topics['t'].id}-" in path for path in table.files)


@virtual
async def test_a_file_that_no_list_ever_had_is_garbage_with_a_table_too() -> None:
    """A round left it behind; one that begins in front of Parquet may have been listed, and stays."""
    root = await a_root()
    for _ in range(2):
        await make_round(root)
    await registrar(root).catch_up()
    topic = root.topics["t"]
    note = FooterNote(root.cluster.cluster_id, 1, topic.id, 0, 0, 98, 1, "00", failed="f")
    left = keys.ParquetName("t", 0, 0, 98, topic.id, 1).key
    await root.store.put_if_absent(left, [bytes(empty_file(note))])
    await asyncio.sleep(AGED_S)
    assert (await collect_garbage(root.store, root.cluster)).keys == [left]
    assert await lost(root) == []


def test_cleaning_lets_nothing_go_that_a_table_may_name() -> None:
    """Keyed topics have no tables yet: this keeps what one would name."""
    topic = Topic(7, "k", (1,), version=7)
    draft = fmt.Checkpoint(bundle=1)
    draft.topic_facts.add(topic_id=7, table=1)
    draft.partitions.add(topic_id=7, partition=0, parquet_end=20, table_start=8)

    def cleans(start: int) -> bool:
        move: Move = cleaned_move(topic, 0, start)
        return move(draft)

    assert not cleans(9)
    assert cleans(8)
    assert draft.partitions[0].parquet_start == 8


@virtual
async def test_the_check_of_a_root_knows_tables() -> None:
    """Their logs are no foreign objects; a file that is gone though a version names it is damage."""
    root = await a_root()
    for _ in range(3):
        await make_round(root)
        await registrar(root).catch_up()
    log = DeltaLog(root.store, keys.parquet_topic("t"), root.sources)
    await log.put_checkpoint(await log.read(), 0)
    await raise_start(root, 2)
    await registrar(root).catch_up()
    found = (await check_root(root.store, root.cluster)).problems
    assert [problem for problem in found if problem.severity is not Severity.NOTE] == []
    [first, second, *_] = await parquet_keys(root.store, keys.parquet_partition("t", 0))
    await root.store.delete([first])
    [fault] = [fault async for fault in find_faults(root.store, root.cluster, root.topics["t"])]
    assert (fault.key, fault.is_lost) == (first, True)
    found = (await check_root(root.store, root.cluster)).problems
    assert ("TABLE_FILE_MISSING", first) in {(problem.code, problem.object_key) for problem in found}
    await asyncio.sleep((KEEP_MS + DATE_CUT_MS) / 1000)
    found = (await check_root(root.store, root.cluster)).problems
    assert "TABLE_FILE_MISSING" not in {problem.code for problem in found}, "no version names it that may be read"
    await root.store.delete([second])
    found = (await check_root(root.store, root.cluster)).problems
    assert ("TABLE_FILE_MISSING", second) in {(problem.code, problem.object_key) for problem in found}


@virtual
async def test_the_check_of_a_root_finds_a_table_that_is_ahead() -> None:
    root = await a_root()
    await make_round(root)
    restored = await a_root()
    await make_round(restored)
    await make_round(root)
    await registrar(root).catch_up()
    async for info in root.store.list(f"{keys.parquet_topic('t')}_delta_log/"):
        await restored.store.put(info.key, await root.store.get(info.key))
    found = (await check_root(restored.store, restored.cluster)).problems
    assert {problem.code for problem in found if problem.severity is Severity.DAMAGE} == {
        "TABLE_AHEAD",
        "TABLE_FILE_MISSING",
    }

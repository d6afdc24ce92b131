"""The registrar of a Delta table over a root: rounds, log starts, moves, a generation after another;
several at once; each operation of the store fails or is the last; a number that was free again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.delta.names import FOLDER, checkpoint_name, commit_name
from ledgermq_ledger.delta.versions import Draft
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.tables import registrar as tables
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.tables.registrar import Registrar
from tests.stores.backends import file_store, seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.stores.faulty import Faults
from tests.stores.sleepy import SleepyStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.judged_tables import check_complete, judge, runs_of
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.set_tables import set_table, tell

FOLDER_OF_T = keys.parquet_topic("t")
FAULTS = Faults(before=0.005, after=0.015, late=0.01, throttle=0.005, delay_s_max=0.1)


async def a_root(seed: int = 0) -> Root:
    """Two partitions in bundle 1, and bundle 2 to move to; one round."""
    sources = virtual_sources(seed)
    return await filled(MemoryStore("test", sources), sources)


async def filled(store: ObjectStore, sources: Sources, keep_ms: int = 1_000_000_000) -> Root:
    root = await Root.open(store, sources, bundles=3)
    await root.create_topic("t", partitions=2)
    await set_table(root, 1, keep_ms)
    await make_round(root, 1)
    return root


async def make_round(root: Root, number: int) -> None:
    for partition in (0, 1):
        await root.produce("t", (partition, [b"%d" % number] * (2 + partition)))
    assert not (await root.compact()).failures


async def raise_start(root: Root, partition: int, start: int) -> None:
    topic = root.topics["t"]
    ledger = ledger_of(root.store, topic.bundles[partition], cluster=root.cluster, sources=root.sources)
    await advance_checkpoint(ledger, log_start_move({PartitionId(topic.id, partition): start}))


def registrar(root: Root, store: ObjectStore | None = None) -> Registrar:
    return Registrar(store or root.store, root.cluster, root.topics["t"], root.sources)


async def check(root: Root) -> int:
    """The log is whole, and the table has all that Parquet has; the number of generations."""
    table, generations = await judge(root, "t")
    await check_complete(root, "t", table)
    return generations


@virtual
async def test_the_table_follows_the_log() -> None:
    root = await a_root()
    first = await registrar(root).catch_up()
    assert (first.version, first.committed, first.stopped) == (0, None, {})
    await make_round(root, 2)
    await raise_start(root, 0, 2)
    await registrar(root).catch_up()
    assert await check(root) == 1
    table, _ = await judge(root, "t")
    assert runs_of(table, FOLDER_OF_T) == {0: [(2, 4)], 1: [(0, 3), (3, 6)]}
    before = table.version
    assert (await registrar(root).catch_up()).version == before, "nothing to say: no version"


@virtual
async def test_a_log_start_within_a_file_leaves_it_whole() -> None:
    root = await a_root()
    await raise_start(root, 1, 1)
    await registrar(root).catch_up()
    await raise_start(root, 1, 2)
    await registrar(root).catch_up()
    table, _ = await judge(root, "t")
    assert runs_of(table, FOLDER_OF_T)[1] == [(0, 3)]


@virtual
async def test_what_expired_unregistered_is_never_named() -> None:
    root = await a_root()
    await registrar(root).catch_up()
    for number in (2, 3):
        await make_round(root, number)
    await raise_start(root, 0, 4)
    await root.compact()
    await registrar(root).catch_up()
    await check(root)
    table, _ = await judge(root, "t")
    assert runs_of(table, FOLDER_OF_T)[0] == [(4, 6)]


@virtual
async def test_a_partition_that_moves_is_registered_by_its_own_end() -> None:
    root = await a_root()
    await registrar(root).catch_up()
    await make_round(root, 2)
    await root.decide_move("t", 0, 2)
    await root.seal("t", 0)
    assert (await registrar(root).catch_up()).waits == "bundle 2 does not know of the table yet"
    await tell(root, 2)
    await advance_checkpoint(ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources))
    assert (await registrar(root).catch_up()).waits == "partition 0 is between two bundles"
    assert len((await judge(root, "t"))[0].files) == 3, "between two bundles: nothing is said of it"
    await root.open_moved("t", 0)
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    await make_round(root, 3)
    await registrar(root).catch_up()
    assert await check(root) == 1


@virtual
async def test_a_later_generation_replaces_all_and_a_former_one_ends() -> None:
    root = await a_root()
    late = registrar(root)
    await late.catch_up()
    await set_table(root, 2)
    await registrar(root).catch_up()
    await make_round(root, 2)
    turn = await late.catch_up()
    assert (turn.version, turn.waits) == (-1, "bundle 1 does not know of the table yet"), "it puts nothing"
    await registrar(root).catch_up()
    assert await check(root) == 2


@virtual
async def test_another_table_in_the_folder_is_left_alone() -> None:
    root = await a_root()
    foreign = b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n{"metaData":{"id":"x","schemaString":"{}"}}\n'
    await root.store.put(FOLDER_OF_T + FOLDER + commit_name(0), foreign)
    with pytest.raises(DataDamaged, match="another program made it"):
        await registrar(root).turn()


@virtual
async def test_a_log_that_is_older_than_its_table_stops() -> None:
    """A root that was restored from a backup: new records have offsets that the table has already."""
    root = await a_root()
    await make_round(root, 2)
    await registrar(root).catch_up()
    log = {info.key: await root.store.get(info.key) async for info in root.store.list(FOLDER_OF_T + FOLDER)}
    restored = await a_root()
    for key, data in log.items():
        await restored.store.put(key, data)
    turn = await registrar(restored).catch_up()
    assert turn.committed is None
    assert turn.stopped == {
        p: f"the table has it up to offset {4 + 2 * p}, but its Parquet files end at {2 + p}: the log is older than its"
        " table"
        for p in (0, 1)
    }


@virtual
async def test_a_log_checkpoint_comes_every_few_versions() -> None:
    root = await a_root()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LOG_CHECKPOINT_EVERY", 3)
        for number in range(2, 9):
            await make_round(root, number)
            await registrar(root).catch_up()
    names = [info.key async for info in root.store.list(FOLDER_OF_T + FOLDER)]
    found = [int(name.split("/")[-1][:20]) for name in names if name.endswith(".checkpoint.parquet")]
    assert found == [2, 5]
    table, read = (await judge(root, "t"))[0], await DeltaLog(root.store, FOLDER_OF_T, root.sources).read()
    assert (read.version, read.commits, read.files.keys(), read.txns) == (6, 1, table.files.keys(), table.txns)


@virtual
async def test_old_versions_go_and_held_ones_can_be_read() -> None:
    root = await a_root()
    log = DeltaLog(root.store, FOLDER_OF_T, root.sources)
    for number in range(2, 12):
        await make_round(root, number)
        await registrar(root).catch_up()
        if number in (4, 7, 10):
            await log.put_checkpoint(await log.read(), 0)
        await asyncio.sleep(1)
    before = await log.read()
    assert before.version == 9
    assert await log.clean(1_000_000) == []
    gone = [key.removeprefix(FOLDER_OF_T + FOLDER) for key in await log.clean(3500)]
    assert gone == [*map(commit_name, range(2)), checkpoint_name(2), *map(commit_name, range(2, 5))]
    found = await log.read()
    assert (found.version, found.files.keys(), found.txns) == (before.version, before.files.keys(), before.txns)
    await asyncio.sleep(100)
    await log.clean(1000)
    left = [info.key.removeprefix(FOLDER_OF_T + FOLDER) async for info in root.store.list(FOLDER_OF_T + FOLDER)]
    assert left == [checkpoint_name(8), commit_name(8), commit_name(9), "_last_checkpoint"]
    assert (await log.read()).files.keys() == before.files.keys()


@pytest.mark.parametrize("seed", range(4))
def test_a_table_stays_whole_while_its_log_is_cleaned(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrars that stand still longer than versions are kept win numbers that became free, to no effect."""
    monkeypatch.setattr(tables, "LOG_CHECKPOINT_EVERY", 2)

    async def run() -> None:
        root = await a_root(seed)
        await set_table(root, 2, keep_ms=500)
        stores = [
            SleepyStore(root.store, seeded_sources(seed * 10 + i), FAULTS, naps=0.01, naps_s_max=(5, 40))
            for i in range(3)
        ]
        done = asyncio.Event()

        async def register(store: ObjectStore) -> None:
            while not done.is_set():
                try:
                    await registrar(root, store).turn()
                except LedgerMQError:
                    pass
                await asyncio.sleep(0.3)

        tasks = [asyncio.create_task(register(store)) for store in stores]
        ends: dict[str, int] = {}
        for number in range(2, 16):
            await make_round(root, number)
            await asyncio.sleep(4)
            read = await DeltaLog(root.store, FOLDER_OF_T, root.sources).read()
            assert all(read.txns[name].version >= end for name, end in ends.items()), "the table never goes back"
            ends = {name: txn.version for name, txn in read.txns.items()}
        done.set()
        await asyncio.gather(*tasks)
        for store in stores:
            await store.settled()
        await registrar(root).catch_up()
        table = await DeltaLog(root.store, FOLDER_OF_T, root.sources).read()
        await check_complete(root, "t", table)
        stored = [info.key async for info in root.store.list(FOLDER_OF_T + FOLDER) if info.key.endswith(".json")]
        assert len(stored) <= table.version - 3, "the log was cleaned"

    run_virtual(run)


@virtual
async def test_a_number_that_is_free_again_is_not_won() -> None:
    root = await a_root()
    log = DeltaLog(root.store, FOLDER_OF_T, seeded_sources(3))
    await registrar(root).catch_up()
    asleep = await log.read()
    for number in (2, 3):
        await make_round(root, number)
        await registrar(root).catch_up()
    newest = await log.read()
    await log.put_checkpoint(newest, 0)
    for version in range(newest.version):
        await root.store.delete([FOLDER_OF_T + FOLDER + commit_name(version)])
    draft = Draft("WRITE", [])
    assert await log.commit(asleep, draft, 0) is Committed.LOST
    found = await log.read()
    assert (found.version, found.files.keys()) == (newest.version, newest.files.keys())
    assert await log.commit(found, draft, 0) is Committed.WON


@virtual
async def test_a_new_log_is_not_begun_below_a_checkpoint() -> None:
    root = await a_root()
    log = DeltaLog(root.store, FOLDER_OF_T, seeded_sources(3))
    asleep = await log.read()
    await registrar(root).catch_up()
    await make_round(root, 2)
    await registrar(root).catch_up()
    await log.put_checkpoint(await log.read(), 0)
    await root.store.delete([FOLDER_OF_T + FOLDER + commit_name(0)])
    assert await log.commit(asleep, Draft("WRITE", []), 0) is Committed.LOST


@pytest.mark.parametrize("seed", range(6))
def test_registrars_at_once_over_a_store_that_fails(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them, that stand still now and then, while rounds are made, a log start rises, a partition
    moves and a generation follows another.
    """
    monkeypatch.setattr(tables, "LOG_CHECKPOINT_EVERY", 3)

    async def run() -> None:
        root = await a_root(seed)
        stores = [SleepyStore(root.store, seeded_sources(seed * 10 + i), FAULTS, naps=0.01) for i in range(3)]
        done = asyncio.Event()

        async def register(number: int) -> None:
            while not done.is_set():
                try:
                    await registrar(root, stores[number]).turn()
                except LedgerMQError:
                    pass
                await asyncio.sleep(0.3)

        tasks = [asyncio.create_task(register(number)) for number in range(3)]
        for number in range(2, 10):
            await make_round(root, number)
            await asyncio.sleep(3)
            if number in (4, 7):
                await raise_start(root, 0, 2 * (number - 2))
            if number == 5:
                await root.move("t", 0, 2)
            if number == 6:
                await set_table(root, 2)
        done.set()
        await asyncio.gather(*tasks)
        for store in stores:
            await store.settled()
        turn = await registrar(root).catch_up()
        assert turn.stopped == {}
        assert await check(root) == 2
        assert (await judge(root, "t"))[0].version >= 4

    run_virtual(run)


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_another_registrar_finishes_what_a_dead_one_began(after_effect: bool) -> None:
    async def run(dies_at: int) -> bool:
        root = await a_root(dies_at)
        await registrar(root).catch_up()
        await make_round(root, 2)
        await raise_start(root, 0, 2)
        dying = DyingStore(root.store, dies_at, after_effect)
        died = False
        try:
            await registrar(root, dying).catch_up()
        except Crash:
            died = True
        await registrar(root).catch_up()
        assert await check(root) == 1
        return died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 20, "each operation of two versions was the last one"


@pytest.mark.parametrize("fault", ["before", "after", "late", "throttle"])
def test_each_operation_fails_once(fault: str) -> None:
    async def run(operation: str, number: int) -> bool:
        root = await a_root(number)
        store = SleepyStore(root.store, seeded_sources(number), naps=0)
        store.script(operation, *["none"] * number, fault)  # type: ignore[arg-type]
        for _ in range(3):
            try:
                await registrar(root, store).catch_up()
                break
            except LedgerMQError:
                pass
        await store.settled()
        await registrar(root).catch_up()
        assert await check(root) == 1
        return store.calls[operation] > number

    for operation in ("put_if_absent", "get", "get_suffix", "list", "store_time_ms"):
        number = 0
        while run_virtual(partial(run, operation, number)):
            number += 1


async def test_deltalake_reads_what_was_registered(tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await filled(store, Sources())
        for number in range(2, 4):
            await make_round(root, number)
            await registrar(root).catch_up()
        log = DeltaLog(store, FOLDER_OF_T, Sources())
        await log.put_checkpoint(await log.read(), 0)
    found = DeltaTable(tmp_path / "root" / FOLDER_OF_T).to_pyarrow_table(columns=["partition", "offset", "value"])
    by_table: dict[tuple[str, int], dict[int, bytes]] = {}
    for row in found.to_pylist():
        by_table.setdefault(("t", row["partition"]), {})[row["offset"]] = row["value"]
    assert by_table == {place: dict(enumerate(values)) for place, values in root.produced.items()}

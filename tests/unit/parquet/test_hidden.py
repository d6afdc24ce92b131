"""A hidden topic: its data becomes Parquet as that of users does, under names that no plain reader
sees, and only its log start deletes it.
"""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from ledgermq.errors import FormatNotSupported
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.files.parquet_rows import find_wrong_rows
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import collect_garbage, find_garbage, tidy_bundle
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from ledgermq_ledger.topics import settings as topic_settings
from tests.stores.backends import seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows, read_segments

FAR = keys.DELAYED_FAR_TOPIC


async def _root(sources: Sources) -> Root:
    root = await Root.open(MemoryStore("test", sources), sources)
    await root.create_topic("t", partitions=1)
    await root.create_topic(FAR, partitions=3, internal_kind="hidden")
    return root


async def _filled(sources: Sources) -> Root:
    """Two files of a hidden partition, one of another, one of a user's."""
    root = await _root(sources)
    await root.produce(FAR, (0, [b"f0", b"f1"]), (2, [b"g0"]))
    await root.produce("t", (0, [b"a"]))
    assert not (await root.compact()).failures
    await root.produce(FAR, (0, [b"f2"]))
    assert not (await root.compact()).failures
    return root


async def _hidden_keys(root: Root) -> list[str]:
    return [info.key async for info in root.store.list(keys.HIDDEN)]


async def _hidden_rows(root: Root) -> dict[int, dict[int, bytes]]:
    """partition → offset → value of all hidden files."""
    found: dict[int, dict[int, bytes]] = {}
    for key in await _hidden_keys(root):
        table = pq.ParquetFile(io.BytesIO(await root.store.get(key))).read()
        for row in table.select(["topic", "partition", "offset", "value"]).to_pylist():
            assert row["topic"] == FAR
            assert row["offset"] not in found.setdefault(row["partition"], {})
            found[row["partition"]][row["offset"]] = row["value"]
    return found


async def _move(root: Root, starts: dict[int, int], store: ObjectStore | None = None, seed: int = 77) -> bool:
    ledger = LedgerRef(store or root.store, 1, root.cluster, virtual_sources(seed))
    places = {PartitionId(root.topics[FAR].id, partition): start for partition, start in starts.items()}
    return await move_internal_log_starts(ledger, places)


async def _problems(root: Root) -> list[tuple[str, str]]:
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    return [(p.code, p.object_key) for p in checked.problems if p.severity is not Severity.NOTE]


def test_the_name_of_a_hidden_file_has_no_topic_in_it_and_parses_back() -> None:
    name = keys.ParquetName(None, 3, 5, 9, 7, 2)
    assert name.key == "hidden/_7/partition=3/00000000000000000005-00000000000000000009-7-2.parquet"
    assert keys.parse_parquet(name.key) == name
    shown = keys.ParquetName("t", 3, 5, 9, 7, 2)
    for foreign in (
        name.key.replace("_7", "_8"),
        name.key.replace("_7", "topic=t"),
        name.key.replace("hidden/", "parquet/"),
        name.key.replace("hidden/", "archive/hidden/"),
        shown.key.replace("parquet/", "hidden/"),
        name.key.replace("=3", "=03"),
    ):
        assert keys.parse_parquet(foreign) is None, foreign
        assert keys.parse_archived(foreign) is None, foreign
    assert keys.parse_archived(keys.archived(shown.key)) == shown


@virtual
async def test_hidden_records_become_parquet_where_no_plain_reader_looks() -> None:
    root = await _filled(virtual_sources(1))
    topic = root.topics[FAR]
    assert {part: list(rows.values()) for part, rows in (await read_parquet_rows(root.store)).items()} == {
        ("t", 0): [b"a"]
    }
    assert await _hidden_rows(root) == {0: {0: b"f0", 1: b"f1", 2: b"f2"}, 2: {0: b"g0"}}
    found = await _hidden_keys(root)
    assert all(key.startswith(f"hidden/_{topic.id}/partition=") for key in found)
    assert len(found) == 3
    assert (await root.newest()).snapshot_plan == 0, "it is data, not the latest record of each key"
    assert await read_segments(root, FAR) == {}, "their segments are trimmed"
    assert await _problems(root) == []
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    assert checked.parquet_files == 4, "fsck lists them with the others"


@virtual
async def test_files_below_the_log_start_go_and_nothing_else_deletes_them() -> None:
    root = await _filled(virtual_sources(2))
    await asyncio.sleep(24 * 3600)
    await _tidy(root)
    assert len(await _hidden_keys(root)) == 3, "it has no retention"
    assert await _move(root, {0: 1})
    await _tidy(root)
    assert len(await _hidden_keys(root)) == 3, "the file holds a record above the log start, too"
    assert await _move(root, {0: 2, 2: 1})
    await _tidy(root)
    assert await _hidden_rows(root) == {0: {2: b"f2"}}
    counters = partition_of(await root.newest(), root.topics[FAR].id, 0)
    assert (counters.parquet_start, counters.parquet_end, counters.log_start) == (2, 3, 2)
    assert await _problems(root) == []
    assert await _move(root, {0: 3})
    await _tidy(root)
    assert await _hidden_keys(root) == []
    await root.produce(FAR, (0, [b"f3"]), (2, [b"g1"]))
    assert not (await root.compact()).failures
    assert await _hidden_rows(root) == {0: {3: b"f3"}, 2: {1: b"g1"}}
    assert await _problems(root) == []


async def _tidy(root: Root) -> None:
    """Twice, with a pause in which files become old enough to go."""
    ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
    for _ in range(2):
        await tidy_bundle(ledger, await root.catalog())
        await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
    await tidy_bundle(ledger, await root.catalog())


@virtual
async def test_what_is_below_the_log_start_before_a_round_never_becomes_a_file() -> None:
    root = await _root(virtual_sources(3))
    await root.produce(FAR, (0, [b"f0", b"f1"]), (1, [b"h0", b"h1"]))
    await root.produce("t", (0, [b"a"]))
    assert await _move(root, {0: 2, 1: 1})
    assert not (await root.compact()).failures
    assert await _hidden_rows(root) == {1: {1: b"h1"}}
    assert await read_segments(root, FAR) == {}
    assert await _problems(root) == []


@virtual
async def test_little_data_makes_a_round_due_after_its_lag_only() -> None:
    root = await _root(virtual_sources(4))
    await root.produce(FAR, (0, [b"f0"]))
    history, catalog = await read_history(ledger_of(root.store, 1, cluster=root.cluster)), await root.catalog()

    def plan_after(seconds: float) -> fmt.CompactionPlan | None:
        now_ms = root.sources.now_ms() + round(seconds * 1000)
        return make_plan(history, catalog, everything=False, now_ms=now_ms, put_id=b"p" * 16)

    assert plan_after(3500) is None
    plan = plan_after(3700)
    assert plan is not None
    assert [file.key.startswith(keys.HIDDEN) for file in plan.files] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_any_process_finishes_what_one_that_died_began(after_effect: bool) -> None:
    """It dies at any store operation of a round, of the move of log starts, or of deleting files."""

    async def run(dies_at: int) -> bool:
        root = await _root(virtual_sources(dies_at))
        await root.produce(FAR, (0, [b"f0", b"f1"]), (2, [b"g0"]))
        await root.produce("t", (0, [b"a"]))
        dying, has_died = DyingStore(root.store, dies_at, after_effect), False
        try:
            await root.compact(dying, seeded_sources(1000 + dies_at))
            await _move(root, {0: 2}, dying, 1000 + dies_at)
            await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
            ledger = LedgerRef(dying, 1, root.cluster, virtual_sources(2000 + dies_at))
            for _ in range(2):
                await tidy_bundle(ledger, await root.catalog())
                await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
        except Crash:
            has_died = True
        await root.compact(sources=seeded_sources(99))
        await _move(root, {0: 2})
        await _tidy(root)
        assert not (await collect_garbage(root.store, root.cluster)).failures
        assert await _hidden_rows(root) == {2: {0: b"g0"}}
        assert (await read_parquet_rows(root.store))["t", 0] == {0: b"a"}
        assert await _problems(root) == []
        return has_died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 40, "the run has far more operations than that"


# What finds damage, and what removes garbage.


@virtual
async def test_fsck_checks_hidden_files_as_others() -> None:
    root = await _filled(virtual_sources(6))
    first, second, other = await _hidden_keys(root)
    whole = await root.store.get(second)
    await root.store.delete([second])
    assert await _problems(root) == [("OBJECT_MISSING", second)]
    await root.store.put_if_absent(second, [whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]])
    assert await _problems(root) == [("DATA_DAMAGED", second)]
    await root.store.delete([second])
    await root.store.put_if_absent(second, [await root.store.get(other)])
    assert {code for code, key in await _problems(root) if key == second} >= {"WRONG_NAME"}
    await root.store.delete([second])
    await root.store.put_if_absent(second, [whole])
    await root.store.put_if_absent("hidden/notes.txt", [b"hello"])
    await root.store.put_if_absent(first.replace("hidden/_", "hidden/"), [whole])
    assert await _problems(root) == [
        ("FOREIGN_OBJECT", first.replace("hidden/_", "hidden/")),
        ("FOREIGN_OBJECT", "hidden/notes.txt"),
    ]
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    assert checked.worst is Severity.UNTIDY, "no reader of Parquet sees it"
    assert (await root.store.get(first))[:4] == b"PAR1"


@virtual
async def test_fsck_finds_rows_of_a_users_topic_in_a_hidden_file() -> None:
    root = await _filled(virtual_sources(7))
    hidden = (await _hidden_keys(root))[0]
    name = keys.parse_parquet(hidden)
    assert name is not None
    data = await root.store.get(hidden)
    assert find_wrong_rows(data, hidden, name) is None
    assert "other than t" in (find_wrong_rows(data, hidden, replace(name, topic="t")) or "")
    [shown] = await parquet_keys(root.store)
    users = keys.parse_parquet(shown)
    assert users is not None
    data = await root.store.get(shown)
    assert find_wrong_rows(data, shown, users) is None
    assert "not hidden" in (find_wrong_rows(data, shown, replace(users, topic=None)) or "")


@virtual
async def test_a_hidden_file_that_nothing_refers_to_is_garbage() -> None:
    root = await _filled(virtual_sources(8))
    note = FooterNote(root.cluster.cluster_id, 1, root.topics[FAR].id, 1, 0, 0, 1, "00", failed="f")
    left = keys.ParquetName(None, 1, 0, 0, root.topics[FAR].id, 1).key
    before = await _hidden_keys(root)
    await root.store.put_if_absent(left, [bytes(empty_file(note))])
    await root.store.put_if_absent("hidden/notes.txt", [b"hello"])
    found = await find_garbage(root.store, root.cluster)
    assert [each.key for each in found.files[1]] == [left]
    assert (await collect_garbage(root.store, root.cluster)).keys == [], "too young"
    await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
    assert (await collect_garbage(root.store, root.cluster)).keys == [left]
    assert await _hidden_keys(root) == sorted([*before, "hidden/notes.txt"])


@virtual
async def test_files_of_a_hidden_topic_go_with_it() -> None:
    root = await _filled(virtual_sources(9))
    await root.remove_topic(FAR)
    compaction = Compaction(root.store, root.cluster, root.sources, LocalEngine(root.sources, run_inline))
    assert {each.key for each in await removed.find(root.store, await root.catalog())} == set(await _hidden_keys(root))
    for _ in range(3):
        assert not (await removed.remove(compaction, await root.catalog())).failures
        await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
    assert await _hidden_keys(root) == []
    assert not (await collect_garbage(root.store, root.cluster)).failures
    assert (await read_parquet_rows(root.store))["t", 0] == {0: b"a"}
    assert await _problems(root) == []


@virtual
async def test_a_release_that_does_not_know_hidden_topics_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may know staged topics. It would clean a hidden one by key, and delete the rest."""
    root = await _root(virtual_sources(10))
    await root.produce(FAR, (0, [b"f0", b"f1"]))
    before = [info.key async for info in root.store.list("")]
    kind = topic_settings._FIELDS["internal.kind"]

    def of_before(text: str) -> str:
        if text not in (topic_settings.COMPACTED, topic_settings.STAGED):
            raise ValueError("it has to be one of compacted, staged")
        return text

    older_kind = SimpleNamespace(name=kind.name, metadata={"parse_stored": of_before})
    with monkeypatch.context() as older:
        older.setitem(topic_settings._FIELDS, "internal.kind", older_kind)  # type: ignore[arg-type]
        report = await root.compact()
        assert isinstance(report.failures[0], FormatNotSupported)
        assert "internal.kind" in report.failures[0].message
    assert report.rounds == []
    assert [info.key async for info in root.store.list("")] == before
    assert not (await root.compact()).failures
    assert await _hidden_rows(root) == {0: {0: b"f0", 1: b"f1"}}

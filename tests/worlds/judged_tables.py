"""Judge the Delta log of a topic's table, version by version (design Z1, Z4, Z5, Z7)."""

from __future__ import annotations

from itertools import pairwise

from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import Add, Remove, decode_commit
from ledgermq_ledger.delta.names import FOLDER, choose, commit_name
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, partition_of
from tests.worlds.roots import Root

Runs = dict[int, list[tuple[int, int]]]
"""By partition: first offset and the offset after the last, of each file, ascending."""


def runs_of(table: Table, folder: str) -> Runs:
    found: Runs = {}
    for path in table.files:
        name = keys.parse_parquet(folder + path)
        assert name is not None
        found.setdefault(name.partition, []).append((name.first_offset, name.last_offset + 1))
    return {partition: sorted(run) for partition, run in found.items()}


async def judge(root: Root, topic: str) -> tuple[Table, int]:
    """Replay a log that was never cleaned, and check each version. Return the newest, and how many versions
    begin a generation.
    """
    folder = keys.parquet_topic(topic)
    log = folder + FOLDER
    needed = choose([info.key.removeprefix(log) async for info in root.store.list(log)], log)
    table, before, generations, ids = Table(), Runs(), 0, list[str]()
    for version in range(needed.newest + 1):
        key = log + commit_name(version)
        commit = decode_commit(await root.store.get(key), key)
        assert commit.info is not None
        ids.append(commit.info.txn_id)
        adds = [action.path for action in commit.actions if isinstance(action, Add)]
        removes = [action.path for action in commit.actions if isinstance(action, Remove)]
        begins = any(
            action not in (table.metadata, None) for action in commit.actions if hasattr(action, "schema_string")
        )
        ends = {name: txn.version for name, txn in table.txns.items()}
        assert begins or not set(adds) & set(table.files), f"{key} adds a file twice"
        assert set(removes) <= set(table.files), f"{key} removes a file that is not in the table"
        table.apply(version, commit, key)
        runs = runs_of(table, folder)
        _check_runs(key, runs, before)
        generations += begins
        if not begins:
            assert not (adds and removes), f"{key} adds and removes"
            assert adds or removes or table.txns != {}, f"{key} says nothing"
            assert all(table.txns[name].version >= end for name, end in ends.items()), f"{key} goes back"
        before = runs
    assert len(set(ids)) == len(ids), "each put has an id of its own"
    return table, generations


def _check_runs(key: str, runs: Runs, before: Runs) -> None:
    for partition, run in runs.items():
        assert all(end == first for (_, end), (first, _) in pairwise(run)), f"{key}: partition {partition} has {run}"
        assert run[-1][1] >= before.get(partition, [(0, 0)])[-1][1], f"{key}: partition {partition} shows less"


async def check_complete(root: Root, topic: str, table: Table) -> None:
    """The table has exactly the listed files above each log start."""
    found, runs = root.topics[topic], runs_of(table, keys.parquet_topic(topic))
    for partition, bundle in enumerate(found.bundles):
        place = PartitionId(found.id, partition)
        checkpoint = await checkpoint_in_charge(root.store, bundle, place)
        assert checkpoint is not None
        counters = partition_of(checkpoint, *place)
        run = runs.get(partition, [])
        if not run:
            assert counters.parquet_end <= counters.log_start
            continue
        assert run[-1][1] == counters.parquet_end
        assert run[0][0] <= counters.log_start < run[0][1], (run, counters.log_start)


async def lost_files(root: Root, topic: str, keep_ms: int) -> list[str]:
    """Return the files that are gone, although a version of the topic's table names them that a reader may have open:
    the newest, or one whose next version came less than `keep_ms` ago (design Z6). The log was never cleaned.
    """
    folder = keys.parquet_topic(topic)
    dates = {info.key: info.modified_ms async for info in root.store.list(folder)}
    table, now_ms, lost = Table(), await root.store.store_time_ms(), set[str]()
    version = 0
    while (key := folder + FOLDER + commit_name(version)) in dates:
        table.apply(version, decode_commit(await root.store.get(key), key), key)
        version += 1
        after = dates.get(folder + FOLDER + commit_name(version))
        if after is None or now_ms - after < keep_ms:
            lost |= {folder + path for path in table.files} - dates.keys()
    return sorted(lost)

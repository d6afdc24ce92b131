"""A follower says what a table waits for, and asks only for a LIST for each bundle while nothing changes.
A partition that moves is looked for from the bundle on that it leaves.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.tables.describe import describe_table
from ledgermq_ledger.tables.follower import TableFollower
from ledgermq_ledger.tables.registrar import Registrar
from tests.virtual_time import virtual
from tests.worlds.judged_tables import judge
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.set_tables import KEEP_MS, a_root, make_round, raise_start, registrar, set_table, tell


def follower_of(root: Root) -> TableFollower:
    now_s = asyncio.get_running_loop().time
    return TableFollower(root.store, root.cluster, root.topics["t"], root.sources, now_s)


@virtual
async def test_what_a_table_waits_for_is_said_and_looked_at_when_a_bundle_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = list[int]()
    turn = Registrar.turn

    async def counted(registrar: Registrar) -> object:
        turns.append(1)
        return await turn(registrar)

    monkeypatch.setattr(Registrar, "turn", counted)
    root = await a_root()
    await make_round(root)
    await root.decide_move("t", 0, 2)
    await root.seal("t", 0)
    await tell(root, 2)
    await advance_checkpoint(ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources))
    follower = follower_of(root)
    for _ in range(3):
        assert await follower.follow() == 0, "the first version is of all partitions"
        await asyncio.sleep(2000)
    assert follower.state.why == "partition 0 is between two bundles"
    assert follower.state.behind_s >= 6000
    assert "is 100 minutes behind" in follower.state.alarms()[0]
    assert len(turns) == 1
    await root.open_moved("t", 0)
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    follower = follower_of(root)
    assert await follower.follow() == 1
    assert (follower.state.why, follower.state.behind_s) == ("", 0.0)


@virtual
async def test_a_partition_that_is_to_move_counts_where_it_is() -> None:
    """The bundle that it moves to has no file of it, and a rebuild would leave out all of them."""
    root = await a_root()
    await make_round(root)
    await registrar(root).catch_up()
    await make_round(root)
    await raise_start(root, 2)
    await registrar(root).catch_up()
    await root.decide_move("t", 0, 2)
    for bundle in (1, 2):
        await tell(root, bundle)
    turn = await registrar(root).catch_up()
    assert (turn.waits, turn.stopped) == ("", {})
    topic = root.topics["t"]
    facts = await describe_table(root.store, root.cluster.cluster_id, topic)
    assert [each.parquet_end for each in facts.partitions] == [4, 4]
    assert [fault async for fault in find_faults(root.store, root.cluster, topic)] == []
    assert await registrar(root).held_bytes() > 0
    await set_table(root, 2, KEEP_MS)
    await registrar(root).catch_up()
    assert len((await judge(root, "t"))[0].files) == 3

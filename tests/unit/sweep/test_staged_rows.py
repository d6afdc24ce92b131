"""Staged rows of Spark sinks: rows of epochs that are done, or too old to be decided, go; rows
that a driver may still publish stay.
"""

from __future__ import annotations

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.found import Kind
from ledgermq_ledger.garbage.staged_rows import STAGED_AGE_MS
from tests.stores.backends import memory_store
from tests.unit.sweep.test_sweep import HOUR_MS, Untidied


async def test_only_rows_that_no_driver_will_publish_go(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        staged = {
            name: keys.sink_staged_rows(write, epoch, sources.new_id())
            for name, write, epoch in (
                ("done", "q", 3),
                ("settled", "q", 1),
                ("decided", "q", 4),
                ("open", "q", 5),
                ("other", "r", 0),
            )
        }
        for key in staged.values():
            await store.put_if_absent(key, [b"rows"])
        for epoch in (3, 4):
            await store.put_if_absent(keys.sink_decision("q", epoch), [b"{}"])
        await store.put_if_absent(keys.sink_done_epoch("q", 3), [b"{}"])

        async def swept() -> set[str]:
            removed = {each.key for each in (await untidied.sweep(HOUR_MS)).removed if each.kind is Kind.STAGED}
            return {name for name, key in staged.items() if key in removed}

        assert await swept() == set(), "younger than the grace"
        untidied.pass_time(2)
        assert await swept() == {"done", "settled"}
        untidied.pass_time(STAGED_AGE_MS / HOUR_MS - 3)
        assert await swept() == set()
        untidied.pass_time(2)
        assert await swept() == {"open", "other"}
        left = [info.key async for info in store.list(keys.SINKS)]
        assert sorted(left) == sorted(
            [staged["decided"], keys.sink_decision("q", 3), keys.sink_decision("q", 4), keys.sink_done_epoch("q", 3)]
        )

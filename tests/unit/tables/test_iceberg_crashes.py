"""A process that registers files in an Iceberg table dies at each of its steps; the next one recovers."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.tables.check import find_faults
from tests.stores.dying import Crash
from tests.unit.tables.test_iceberg import a_root
from tests.virtual_time import run_virtual
from tests.worlds.iceberg_tables import catch_up, configure, registrar, runs, set_iceberg
from tests.worlds.roots import Root
from tests.worlds.set_tables import make_round, raise_start, tidy


class Steps:
    """Counts the steps of a process on the catalog and on files of metadata. It dies at step `dies_at`, before its
    effect; a call of the catalog has one more step behind its effect.
    """

    def __init__(self, patch: pytest.MonkeyPatch, dies_at: int) -> None:
        self.taken, self._dies_at = 0, dies_at
        for owner, name in (
            (PyArrowFileIO, "new_input"),
            (PyArrowFileIO, "new_output"),
            (PyArrowFileIO, "delete"),
            (SqlCatalog, "create_table"),
            (SqlCatalog, "commit_table"),
        ):
            patch.setattr(owner, name, self._counted(getattr(owner, name), dies_behind=owner is SqlCatalog))

    def _counted(self, real: Any, *, dies_behind: bool) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self._step()
            found = real(*args, **named)
            if dies_behind:
                self._step()
            return found

        return call

    def _step(self) -> None:
        self.taken += 1
        if self.taken >= self._dies_at:
            raise Crash


async def some_life(root: Root) -> None:
    """Begin the table; rows, a removal, a generation, and snapshots that are let go of."""
    one = registrar(root, every=1)
    for start in (0, 2, 4):
        await make_round(root)
        await raise_start(root, start)
        await catch_up(root, one)
        await asyncio.sleep(61)
        await one.raise_gates()
    await set_iceberg(root, 7, 60_000)
    await catch_up(root, registrar(root, every=1))


STEPS = 150
"""More than `some_life` has."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(5))
def test_a_process_dies_at_each_step(part: int, tmp_path: Path) -> None:
    for dies_at in range(part + 1, STEPS, 5):
        with pytest.MonkeyPatch.context() as patch:
            configure(patch, tmp_path / f"lake{dies_at}")
            done = run_virtual(partial(dies_and_recovers, dies_at))
        if done:
            break
    else:
        raise AssertionError("the life has more steps")


async def dies_and_recovers(dies_at: int) -> bool:
    """Return whether the life ended before the step."""
    root, done = await a_root(keep_ms=60_000), False
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, dies_at)
        try:
            await some_life(root)
            done = True
        except Crash:
            pass
    await make_round(root)
    await asyncio.sleep(20)
    await catch_up(root, registrar(root, every=1))
    found, ends = await runs(root), {}
    for partition, run in found.items():
        checkpoint = await newest_checkpoint(root.store, 1)
        counters = partition_of(checkpoint, root.topics["t"].id, partition)
        ends[partition] = counters.parquet_end
        assert (run[0][0] <= counters.log_start < run[0][1], run[-1][1]) == (True, counters.parquet_end), dies_at
    assert ends.keys() == {0, 1}
    await asyncio.sleep(125)
    await registrar(root).raise_gates()
    await tidy(root)
    faults = [each async for each in find_faults(root.store, root.cluster, root.topics["t"])]
    assert faults == [], dies_at
    return done

"""Bugs in what collects staged rows and heartbeats, and in what the driver of a sink may decide
(docs/decisions/0024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import ledgermq_spark.sink.driver
from ledgermq_ledger import keys
from ledgermq_ledger.garbage import heartbeats, staged_rows
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("sinks")
def staged_rows_of_an_open_decision_deleted(patch: Patch) -> None:
    """Rows count as published once they are decided."""

    async def find(store: ObjectStore) -> list[Removable]:
        found = []
        async for info in store.list(keys.SINKS):
            name = keys.parse_sink(info.key)
            if name is None or name.kind != "staged":
                continue
            decided = {each.key async for each in store.list(keys.sink_decided(name.write))}
            if keys.sink_decision(name.write, name.epoch) in decided:
                found.append(Removable.of(Kind.STAGED, info, "decided"))
        return found

    patch.setattr(staged_rows, "find", find)


@mutant("sinks")
def staged_rows_deleted_at_any_age(patch: Patch) -> None:
    """Rows of which nothing is decided yet are garbage at once."""
    real = staged_rows.find

    async def find(store: ObjectStore) -> list[Removable]:
        return [replace(each, age_ms=0) for each in await real(store)]

    patch.setattr(staged_rows, "find", find)


@mutant("sinks")
def rows_decided_at_any_age(patch: Patch) -> None:
    """A driver decides without a look at how old the rows are, and whether they are there."""

    async def check_age(*args: Any) -> None:
        return None

    patch.setattr(ledgermq_spark.sink.driver, "_check_age", check_age)


@mutant("sinks")
def living_heartbeat_deleted(patch: Patch) -> None:
    """Every heartbeat is taken for that of a broker that is gone."""

    async def find(store: ObjectStore, now_ms: int) -> list[Removable]:
        return [Removable.of(Kind.HEARTBEAT, info, "a heartbeat") async for info in store.list(keys.BROKERS)]

    patch.setattr(heartbeats, "find", find)


@mutant("sinks")
def heartbeat_that_was_written_again_deleted(patch: Patch) -> None:
    """What was silent for an hour when it was listed goes, whatever came since."""

    async def remove(store: ObjectStore, found: Sequence[Removable]) -> None:
        await store.delete([each.key for each in found])

    patch.setattr(heartbeats, "remove", remove)

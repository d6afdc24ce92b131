"""Bugs in checkpoints, trimming and stale plans of one ledger (docs/design.md, Checkpoints)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ledgermq_ledger.log.chains.checkpoint
import ledgermq_ledger.log.chains.plans
import ledgermq_ledger.log.recovery
import ledgermq_ledger.parquet.compacting.round
import tests.simulation.ledger_run
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.simulation.ledger_broker import BUNDLE, LedgerBroker
from tests.simulation.mutants import mutant
from tests.worlds.ledgers import ledger_of

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("ledger")
def checkpoint_retried_with_stale_content(patch: Patch) -> None:
    """A checkpoint that lost its number is put again under the next one, unchanged."""
    real = ledgermq_ledger.log.recovery.draft_next
    stale: dict[int, fmt.Checkpoint] = {}

    def draft_next(base: fmt.Checkpoint, state: LedgerState, sources: Sources) -> fmt.Checkpoint:
        draft = stale.get(id(sources))
        if draft is None or draft.number > base.number:
            draft = stale[id(sources)] = real(base, state, sources)
            return draft
        again = fmt.Checkpoint()
        again.CopyFrom(draft)
        again.number = base.number + 1
        stale.pop(id(sources))
        return again

    patch.setattr(ledgermq_ledger.log.recovery, "draft_next", draft_next)
    patch.setattr(ledgermq_ledger.log.recovery, "check_successor", lambda base, new: None)


@mutant("ledger")
def checkpoint_of_what_is_not_durable(patch: Patch) -> None:
    """The owner writes the state that it has given out into the checkpoint."""

    async def upkeep(self: LedgerBroker, writer: LedgerWriter) -> None:
        try:
            await ledgermq_ledger.log.recovery.advance_checkpoint(
                ledger_of(self._store, BUNDLE, cluster=self._plan.cluster, sources=self._sources),
                durable=writer._issued,
            )
        except LedgerMQError:
            pass

    patch.setattr(LedgerBroker, "_upkeep", upkeep)


@mutant("ledger")
def deleted_by_memory(patch: Patch) -> None:
    """Slots are deleted as soon as a plan names them, not when a checkpoint has trimmed them."""

    async def delete_segments(store: ObjectStore, bundle: int) -> int:
        for number in [keys.number(info.key) async for info in store.list(keys.compactions(bundle))]:
            plan = await ledgermq_ledger.log.chains.plans.read_plan(store, bundle, number)
            for slot in plan.slots if plan is not None else ():
                await store.delete([keys.segment(bundle, slot.slot)])
        return 0

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "require_open", _delete_first(delete_segments))


def _delete_first(delete: Any) -> Any:
    real = ledgermq_ledger.parquet.compacting.round.require_open

    async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
        await delete(store, plan.bundle)
        return await real(store, plan)

    return require_open


@mutant("ledger")
def stale_plan_run(patch: Patch) -> None:
    """Who reads a plan runs it and commits it, whatever the newest checkpoint says."""

    async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
        return await newest_checkpoint(store, plan.bundle)

    def commit_move(plan: fmt.CompactionPlan, stored: Any, **_: Any) -> Any:
        def move(draft: fmt.Checkpoint) -> bool:
            draft.finished_plan = plan.number
            draft.planned_slot = plan.last_slot
            draft.trim_slot = plan.trim_slot
            return True

        return move

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "require_open", require_open)
    patch.setattr(ledgermq_ledger.parquet.compacting.round, "commit_move", commit_move)
    patch.setattr(ledgermq_ledger.log.recovery, "check_successor", lambda base, new: None)


@mutant("ledger")
def newest_checkpoint_deleted(patch: Patch) -> None:
    """A process that has won a checkpoint deletes all others."""

    async def tidy_checkpoints(store: ObjectStore, bundle: int) -> None:
        seen = [info.key async for info in store.list(keys.checkpoints(bundle))]
        await asyncio.sleep(0.2)
        await store.delete([key async for key in _keys(store, bundle) if key not in seen[-1:]])

    patch.setattr(tests.simulation.ledger_run, "tidy_checkpoints", tidy_checkpoints)


async def _keys(store: ObjectStore, bundle: int) -> Any:
    async for info in store.list(keys.checkpoints(bundle)):
        yield info.key

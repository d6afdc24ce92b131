"""Close fences: a fence may be closed when its plan is finished, because any later put under it
comes too late (design S4). It must be closed before any Parquet file of the plan is deleted: a put
after the deletion would bring the file back.

The fence of an open plan stays open, unless the plan is cut short
(`ledgermq_ledger.log.chains.plans.cut_short`): the process that runs it would be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.plans import PlansByFence, open_fences
from ledgermq_ledger.object_store.contract import FENCES, ObjectStore


async def find(store: ObjectStore, bundle: int, open_: PlansByFence) -> list[Removable]:
    """Return those of a bundle's open fences whose plan is finished."""
    if not open_:
        return []
    finished = (await newest_checkpoint(store, bundle)).finished_plan
    return [
        Removable(Kind.FENCE, f"{FENCES}{name}", 0, 0, f"temporary files of plan {plan}, which is finished")
        for name, plan in open_.items()
        if plan <= finished
    ]


async def remove(store: ObjectStore, fences: Sequence[Removable]) -> None:
    for each in fences:
        await store.close_fence(each.key.removeprefix(FENCES))


async def close_finished(store: ObjectStore, bundle: int) -> None:
    """Close all fences of finished plans, before a Parquet file is deleted."""
    open_ = (await open_fences(store)).get(bundle, {})
    await remove(store, await find(store, bundle, open_))

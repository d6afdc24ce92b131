"""Plans as objects: a numbered chain `compactions/<plan>`, each put once, with its fence opened
before it (design Q1).

    envelope( CompactionPlan )

Whoever wins or reads plan k reads the newest checkpoint afterwards and runs k only if that has
finished exactly k−1: `require_open`. A plan that was put again after it had been finished and
deleted is thereby never run.
"""

from __future__ import annotations

from ledger import keys
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.log.checkpoint import newest_checkpoint
from ledger.log.envelope import ObjectKind, seal, unseal
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.object_store.settle import PutOutcome, settle_put
from ledgermq.errors import DataDamaged, RetriableError, Unavailable
from ledgermq.sources import Sources


class PlanOvertaken(RetriableError):
    """Somebody else has finished the plan meanwhile: nothing of it may be done any more."""

    code = "PLAN_OVERTAKEN"


def fence_of(plan: fmt.CompactionPlan) -> str:
    return keys.fence(plan.bundle, plan.number, plan.put_id)


def decode_plan(data: bytes, key: str) -> fmt.CompactionPlan:
    """Raises DataDamaged, FormatNotSupported, naming `key`."""
    plan = unseal(ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan(), data, key)
    if key != keys.compaction(plan.bundle, plan.number):
        raise DataDamaged(f"{key}: it says bundle {plan.bundle}, plan {plan.number}", object_key=key)
    named = {slot.slot for slot in (*plan.slots, *plan.lagging)}
    read = [slot for file in plan.files for slot in file.slots] + [
        slot for part in plan.internal for slot in part.slots
    ]
    if not named.issuperset(read):
        raise DataDamaged(f"{key}: it reads slots that it does not name", object_key=key)
    return plan


async def read_plan(store: ObjectStore, bundle: int, number: int) -> fmt.CompactionPlan | None:
    key = keys.compaction(bundle, number)
    try:
        return decode_plan(await store.get(key), key)
    except ObjectMissing:
        return None


async def put_plan(store: ObjectStore, plan: fmt.CompactionPlan, sources: Sources) -> bool:
    """Open the plan's fence, then put it.

    False: another process's plan has this number. Raises Unavailable: not to be told.
    """
    await store.open_fence(fence_of(plan))
    sealed = seal(ObjectKind.COMPACTION_PLAN, plan)
    outcome = await settle_put(store, keys.compaction(plan.bundle, plan.number), [sealed], sources=sources)
    if outcome is PutOutcome.LOST:
        await store.close_fence(fence_of(plan))  # nobody puts under the fence of a plan that was never put
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(
            f"bundle {plan.bundle}: outcome of the conditional put of plan {plan.number} is unknown; retry later"
        )
    return outcome is PutOutcome.WON


async def cut_short(store: ObjectStore, plan: fmt.CompactionPlan) -> None:
    """Let no more files be put for an open plan: those that are there are all that there will be.

    Only where fences close at once.
    """
    assert store.fences_close_at_once
    await store.close_fence(fence_of(plan))


async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
    """The newest checkpoint, looked at now, which has finished exactly the plan before.

    Raises PlanOvertaken.
    """
    checkpoint = await newest_checkpoint(store, plan.bundle)
    if checkpoint.finished_plan != plan.number - 1:
        raise PlanOvertaken(
            f"bundle {plan.bundle}: plan {plan.number} is no longer open, because plan {checkpoint.finished_plan} is finished"
        )
    return checkpoint


async def refuse(store: ObjectStore, plan: fmt.CompactionPlan, key: str, what: str) -> DataDamaged:
    """What to raise for an object that does not fit the plan: DataDamaged, if the plan is still
    open; raises PlanOvertaken otherwise.
    """
    await require_open(store, plan)
    return DataDamaged(f"{key}: {what}, but plan {plan.number} of bundle {plan.bundle} needs it", object_key=key)

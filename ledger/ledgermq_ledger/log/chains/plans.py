"""Read and put plans: a numbered chain `compactions/<plan>`, each put once, after its fence was
opened (design Q1).

    envelope( CompactionPlan )

A process that wins or reads plan k reads the newest checkpoint afterwards, and runs k only if that
has finished exactly k−1: `require_open`. So a plan that was put again after it had been finished
and deleted never runs.
"""

from __future__ import annotations

from ledgermq.errors import DataDamaged, RetriableError, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.envelope import FORMAT_VERSION, ObjectKind, seal, unseal
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put

PlansByFence = dict[str, int]

HAND_OVER_VERSION = 2
"""Of a plan that freezes or takes over file lists. A release that would commit it without them refuses it."""
TYPED_VERSION = 3
"""Of a plan with columns of typed values. A release that would leave them out refuses it."""


class PlanOvertaken(RetriableError):
    """Another process has finished the plan: do nothing more of it."""

    code = "PLAN_OVERTAKEN"


def fence_of(plan: fmt.CompactionPlan) -> str:
    return keys.fence(plan.bundle, plan.number, plan.put_id)


def encode_plan(plan: fmt.CompactionPlan) -> bytes:
    version = HAND_OVER_VERSION if plan.freezes or plan.takeovers else FORMAT_VERSION
    if any(file.HasField("schema") for file in plan.files):
        version = TYPED_VERSION
    return seal(ObjectKind.COMPACTION_PLAN, plan, version)


def decode_plan(data: bytes, key: str) -> fmt.CompactionPlan:
    """Decode a plan. Raises DataDamaged, FormatNotSupported, naming `key`."""
    plan = unseal(ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan(), data, key, TYPED_VERSION)
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
    """Open the plan's fence, then put the plan.

    Return False if another process's plan has this number. Raises Unavailable if the outcome is
    unknown.
    """
    await store.open_fence(fence_of(plan))
    sealed = encode_plan(plan)
    outcome = await settle_put(store, keys.compaction(plan.bundle, plan.number), [sealed], sources=sources)
    if outcome is PutOutcome.LOST:
        await store.close_fence(fence_of(plan))  # the plan was never put, so no task puts under its fence
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(
            f"bundle {plan.bundle}: outcome of the conditional put of plan {plan.number} is unknown; retry later"
        )
    return outcome is PutOutcome.WON


async def cut_short(store: ObjectStore, plan: fmt.CompactionPlan) -> None:
    """Refuse further files of an open plan: the files that exist are all that it will have.

    Only for stores whose fences close at once.
    """
    assert store.fences_close_at_once
    await store.close_fence(fence_of(plan))


async def open_fences(store: ObjectStore) -> dict[int, PlansByFence]:
    """Return the open fences by bundle, each with its plan, by one LIST."""
    found: dict[int, PlansByFence] = {}
    for name in await store.list_fences():
        if (fence := keys.parse_fence(name)) is not None:
            found.setdefault(fence.bundle, {})[name] = fence.plan
    return found


async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
    """Return the newest checkpoint, read now, which has finished exactly the plan before this one.

    Raises PlanOvertaken.
    """
    checkpoint = await newest_checkpoint(store, plan.bundle)
    if checkpoint.finished_plan != plan.number - 1:
        raise PlanOvertaken(
            f"bundle {plan.bundle}: plan {plan.number} is no longer open, because plan {checkpoint.finished_plan} is"
            " finished"
        )
    return checkpoint


async def refuse(store: ObjectStore, plan: fmt.CompactionPlan, key: str, what: str) -> DataDamaged:
    """Return DataDamaged for an object that does not match the plan, if the plan is still open;
    raise PlanOvertaken otherwise.
    """
    await require_open(store, plan)
    return DataDamaged(f"{key}: {what}, but plan {plan.number} of bundle {plan.bundle} needs it", object_key=key)

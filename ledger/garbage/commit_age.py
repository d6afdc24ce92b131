"""How old commits are, noted in the checkpoint (docs/decisions/0007).

Pages and the newest checkpoint witness the age of commits for nothing, but not always: a bundle
that goes on without new Parquet files puts no page, and its newest checkpoint is always young.
Where files wait for their age, a move notes which plans were finished, and when that was seen by
the store's clock. A note is replaced only once it is old enough to have served, so that waiting
ends however busy a bundle is.
"""

from __future__ import annotations

from ledger import keys
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.log.checkpoint import Move, newest_checkpoint
from ledger.log.ledger_ref import LedgerRef
from ledger.log.numbered import list_numbered
from ledger.log.recovery import advance_checkpoint
from ledger.object_store.contract import ObjectMissing, ObjectStore


def witness_move(plan: int, seen_ms: int, age_ms: int) -> Move:
    """`seen_ms`: store's clock, read after a checkpoint was seen that has finished `plan`.

    Declines while a note has yet to serve.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if plan <= draft.witnessed_plan or (draft.witnessed_plan and draft.witnessed_ms > seen_ms - age_ms):
            return False
        if plan > draft.finished_plan:
            raise AssertionError(
                f"bundle {draft.bundle}: plan {plan} was seen finished, but the last one is {draft.finished_plan}"
            )
        draft.witnessed_plan = plan
        draft.witnessed_ms = seen_ms
        return True

    return move


async def note_finished(ledger: LedgerRef, waits_for: int) -> None:
    """Files of plan `waits_for` wait until its commit is `parquet_min_age_ms` old: let a checkpoint tell that,
    unless one does or soon will.
    """
    checkpoint = await newest_checkpoint(ledger.store, ledger.bundle)
    if waits_for <= checkpoint.witnessed_plan:
        return
    move = witness_move(checkpoint.finished_plan, await ledger.store.store_time_ms(), ledger.cluster.parquet_min_age_ms)
    if move(checkpoint):  # to look the ledger up for nothing would cost more
        await advance_checkpoint(ledger, move)


async def finished_long_ago(store: ObjectStore, bundle: int, age_ms: int) -> int:
    """The highest plan of which it is certain that it was committed at least `age_ms` ago, by the
    store's clock.

    Witnesses: the newest checkpoint, if it is that old; what it notes; and pages: page p was put
    after plan p−1 had been committed.
    """
    limit_ms = await store.store_time_ms() - age_ms
    checkpoint = await newest_checkpoint(store, bundle)
    witnessed = checkpoint.witnessed_plan if checkpoint.witnessed_ms <= limit_ms else 0
    try:
        if (await store.head(keys.checkpoint(bundle, checkpoint.number))).modified_ms <= limit_ms:
            return checkpoint.finished_plan
    except ObjectMissing:
        pass  # none yet, or a newer one exists
    async for number, info in list_numbered(store, keys.file_pages(bundle)):
        if info.modified_ms <= limit_ms:
            witnessed = max(witnessed, number - 1)
    return min(witnessed, checkpoint.finished_plan)

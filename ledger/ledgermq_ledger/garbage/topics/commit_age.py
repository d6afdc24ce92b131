"""Note the age of commits in the checkpoint (docs/decisions/0007).

Pages and the newest checkpoint show the age of commits at no cost, but not always: a bundle without
new Parquet files puts no page, and its newest checkpoint is always young. If files wait for their
age, a move notes which plans were finished, and when that was seen by the store's clock. A note is
replaced only once it is old enough to have served, so the wait ends however busy a bundle is.
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore


def witness_move(plan: int, seen_ms: int, age_ms: int) -> Move:
    """Return the move that notes `plan`. `seen_ms`: store's clock, read after a checkpoint was seen
    that has finished `plan`.

    It declines while a note has yet to serve.
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
    if move(checkpoint):  # reading the ledger for nothing would cost more
        await advance_checkpoint(ledger, move)


async def finished_long_ago(store: ObjectStore, bundle: int, age_ms: int) -> int:
    """Return the highest plan that was certainly committed at least `age_ms` ago, by the store's
    clock.

    Sources: the newest checkpoint, if it is that old; what it notes; and pages: page p was put
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

"""Decide once what an epoch of a sink consists of: `put_if_absent` of one small object, before
anything is published.

A *write* is a streaming query, by its id in the checkpoint, or one `df.write`; its *epochs* are the
query's micro-batches (a `df.write` has one, 0). Invariant: the put id is the producer id under
which the epoch's batches are sent, and `opened_slots` were learned before the decision was put; so
every attempt to publish the epoch sends the same batches with the same sequences (design P1).
"""

from __future__ import annotations

from ledgermq.errors import Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.sinks import Decision, decode_decision, encode_decision


async def read_decision(store: ObjectStore, write: str, epoch: int, attempt: int = 0) -> Decision | None:
    """Return the decision, or None if nothing is decided. `attempt`: see `ledgermq_spark.sink.epochs.epochs`.

    Raises DataDamaged, FormatNotSupported, the store's errors.
    """
    key = keys.sink_decision(write, epoch, attempt)
    try:
        return decode_decision(await store.get(key), key)
    except ObjectMissing:
        return None


async def decide(
    store: ObjectStore, sources: Sources, write: str, epoch: int, wanted: Decision, attempt: int = 0
) -> Decision:
    """Return the decision of the epoch: `wanted`, or an earlier decision. Raises Unavailable,
    DataDamaged, the store's errors.
    """
    key = keys.sink_decision(write, epoch, attempt)
    outcome = await settle_put(store, key, [encode_decision(wanted)], sources=sources)
    decided = await read_decision(store, write, epoch, attempt) if outcome is not PutOutcome.UNKNOWN else None
    if decided is None:
        raise Unavailable(
            f"{store.url}: outcome of the conditional put of {key} is unknown; the epoch may be committed again"
        )
    return decided


async def is_settled(store: ObjectStore, write: str, epoch: int) -> bool:
    """Return whether this epoch's rows are decided, so that a task has nothing to add. That
    includes an old decision that was deleted since. A decision for a transaction does not count:
    it may be aborted, which the driver finds out.
    """
    async for info in store.list(keys.sink_decided(write)):
        if (oldest := keys.parse_sink(info.key)) is None:
            continue
        if oldest.epoch > epoch:
            return True
        decision = await read_decision(store, write, epoch)
        return decision is not None and not decision.transactional_id
    return False

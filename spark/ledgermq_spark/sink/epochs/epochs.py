"""Bring an epoch to its end, as its decision says: publish staged rows, or confirm that a transaction is
committed.

A decision for staged rows is final. A decision for a transaction names the transaction that is the
epoch. If that transaction is aborted, which is final, the next *attempt* is decided under the next
key. So at most one attempt of an epoch is ever visible. A transaction that the cluster does not know
was aborted, because a committed one is forgotten only after the epoch's done mark is put.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable

from ledgermq.errors import LedgerMQError, TransactionUnknown
from ledgermq_ledger.sinks import Decision
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.epochs.decision import decide, read_decision
from ledgermq_spark.sink.epochs.publishing import is_done, mark_done, publish

log = logging.getLogger("ledgermq.sink")

Propose = Callable[[], Awaitable[Decision | None]]
"""Return the decision to propose; None if the epoch has no rows. Called only if there is no decision."""


async def _nothing_more() -> None:
    pass


async def settle_epoch(
    place: Place, write: str, epoch: int, propose: Propose, won: Callable[[], Awaitable[None]] = _nothing_more
) -> bool:
    """Return True when the epoch is in its topics and marked as done; False if it has no rows. `won` is
    called when the proposal has become the decision.

    Raises the errors of `publish`, `propose` and `won`, and Unavailable; call it again then.
    """
    while not await is_done(place.store, write, epoch):
        decision, attempt = await _standing(place, write, epoch)
        if decision is None:
            wanted = await propose()
            if wanted is None:
                return False
            decision = await decide(place.store, place.sources, write, epoch, wanted, attempt)
            if decision.put_id == wanted.put_id:
                await won()
        if not decision.transactional_id:
            await publish(place, write, epoch, decision)
        elif await _is_committed(place, write, epoch, decision.transactional_id):
            await mark_done(place.store, place.sources, write, epoch)
            await _forget(place, decision.transactional_id)
        else:
            continue
        return True
    await _forget_done(place, write, epoch)
    return True


async def _standing(place: Place, write: str, epoch: int) -> tuple[Decision | None, int]:
    """Return the valid decision and its attempt, or None and the attempt to decide now."""
    for attempt in itertools.count():
        decision = await read_decision(place.store, write, epoch, attempt)
        if (
            decision is None
            or not decision.transactional_id
            or await _is_committed(place, write, epoch, decision.transactional_id)
        ):
            return decision, attempt
        log.warning("the transaction of attempt %d of epoch %d of %s was aborted", attempt + 1, epoch, write)
    raise AssertionError("attempts are counted without end")


async def _is_committed(place: Place, write: str, epoch: int, transactional_id: str) -> bool:
    """Return whether the transaction is committed. This waits until it is visible in all partitions, so
    that the next epoch cannot overtake it, and aborts an undecided transaction of another driver.

    Raises Unavailable.
    """
    try:
        return (await place.client.transactions.shared.completed(transactional_id)).committed
    except TransactionUnknown:
        return await is_done(place.store, write, epoch)  # another driver may have forgotten it just now


async def _forget_done(place: Place, write: str, epoch: int) -> None:
    """Forget the transaction of an epoch that is done: the driver that committed it may have died
    before. It is that of the last attempt.
    """
    newest: Decision | None = None
    try:
        for attempt in itertools.count():
            decision = await read_decision(place.store, write, epoch, attempt)
            if decision is None:
                break
            newest = decision
    except LedgerMQError as error:
        log.warning("epoch %d of %s is done, but its decision cannot be read: %s", epoch, write, error.message)
    if newest is not None and newest.transactional_id:
        await _forget(place, newest.transactional_id)


async def _forget(place: Place, transactional_id: str) -> None:
    try:
        await place.client.transactions.shared.forget(transactional_id)
    except LedgerMQError as error:
        log.warning(
            "transaction %s is committed, but the cluster still keeps its outcome (%s): remove the outcome with"
            " `ledgermq transaction forget %s`",
            transactional_id,
            error.message,
            transactional_id,
        )

"""Write a micro-batch as one transaction of the cluster.

The driver begins the transaction under a random id; the writer carries its name to the tasks. Each
attempt of a task stages in a separate branch. The driver's commit counts the branches of the attempts
that Spark has accepted; the cluster drops all other branches.

A write that may be repeated (a streaming query, a `df.write` with writeId) is decided first
(`ledgermq_spark.sink.epochs.epochs`): one put records which transaction the epoch is. Then that transaction is
committed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence

import pyarrow as pa

import ledgermq
from ledgermq.client.client import Client
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import settings_from
from ledgermq.client.transactions.two_phase.branch import SharedTransaction
from ledgermq.errors import InvalidConfig, InvalidRequest, LedgerMQError, TransactionTooLarge, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.garbage.staged_rows import remove_done
from ledgermq_ledger.sinks import Decision
from ledgermq_spark.sink.cluster import Place, opened
from ledgermq_spark.sink.epochs.epochs import settle_epoch
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.sink.staged import StagedInTransaction, note_topic
from ledgermq_spark.sink.task import collected, delivered, drawn

log = logging.getLogger("ledgermq.sink")

SMALLER = (
    "With transactional=true a micro-batch is one transaction. Make it smaller (maxOffsetsPerTrigger,"
    " maxFilesPerTrigger, or several writes). If it has too many small batches, use fewer tasks (coalesce), or a"
    " larger batchBytesMax and bufferBytesMax. Or write without transactional=true"
)


# -- in the driver, before tasks


async def begin(options: SinkOptions) -> SharedTransaction:
    """Begin a transaction for one run of a micro-batch. Raises InvalidConfig, Unavailable."""
    sources = Sources()
    async with ledgermq.connect(options.servers, sources=sources, **options.client_settings()) as client:
        return await begin_at(client, sources, options)


async def begin_at(client: Client, sources: Sources, options: SinkOptions) -> SharedTransaction:
    """Begin as `begin` does, with this client. Raises InvalidConfig, Unavailable."""
    timeout_s = options.transaction_timeout_s
    try:
        return await client.transactions.shared.begin(f"spark-{sources.new_id().hex()}", timeout_s=timeout_s)
    except InvalidRequest as error:
        raise InvalidConfig(f"transactionTimeoutS is {timeout_s:g}: {error.message}") from error


# -- in tasks


async def stage(
    options: SinkOptions, transaction: SharedTransaction, write: str, batches: Iterator[pa.RecordBatch]
) -> StagedInTransaction:
    """Stage as `stage_at` does, with the executor's own connections."""
    sources = Sources()
    async with ledgermq.connect(options.servers, sources=sources, **options.client_settings()) as client:
        return await stage_at(client, sources, options, transaction, write, drawn(batches))


async def stage_at(
    client: Client,
    sources: Sources,
    options: SinkOptions,
    transaction: SharedTransaction,
    write: str,
    batches: AsyncIterator[pa.RecordBatch],
) -> StagedInTransaction:
    """Stage rows in a new branch. On return they are durable, and invisible to readers.

    Raises InvalidRecord, MessageTooLarge, UnknownTopic, UnknownPartition, TransactionTooLarge,
    TransactionAborted (after the transaction's time-out), Unavailable.
    """
    settings = settings_from(ProducerSettings, options.producer_settings())
    branch_name = sources.new_id()
    records, topics = 0, dict[str, int]()
    async with client.transactions.shared.branch(transaction, branch_name, settings) as branch:
        try:
            async for routed in delivered(options, branch, collected(options, client, sources, batches)):
                records += routed.rows.num_rows
                note_topic(topics, routed.topic.name, routed.topic.topic_id)
            await branch.flush()
        except TransactionTooLarge as error:
            raise TransactionTooLarge(f"{error.message}. {SMALLER}") from error
        return StagedInTransaction(transaction, branch.counts(), write, records, topics)


# -- in the driver, after tasks


async def commit(
    options: SinkOptions, write: str, epoch: int, messages: Sequence[StagedInTransaction], *, repeatable: bool
) -> None:
    """Commit what these tasks have staged; on return readers see it. `repeatable`: Spark may repeat the
    write, and the repetition must add no rows.

    Raises TransactionAborted (nothing is written), TransactionOutcomeUnknown, Unavailable.
    """
    if repeatable:
        async with opened(options) as place:
            await commit_epoch(place, write, epoch, messages)
    elif messages:
        async with ledgermq.connect(options.servers, **options.client_settings()) as client:
            await _commit_alone(client, messages)


async def _commit_alone(client: Client, messages: Sequence[StagedInTransaction]) -> None:
    transaction = transaction_of(messages)
    if not any(message.records for message in messages):
        await drop(client, messages)
        return
    await _end(client, messages)
    await client.transactions.shared.completed(transaction.transactional_id)
    await client.transactions.shared.forget(transaction.transactional_id)


async def commit_epoch(place: Place, write: str, epoch: int, messages: Sequence[StagedInTransaction]) -> None:
    """Commit the epoch. If it is committed already, drop these rows instead. `messages`: those of all
    tasks.

    Raises as `settle_epoch`, and TransactionAborted.
    """
    if not messages:
        return
    transaction = transaction_of(messages)
    is_mine = False

    async def propose() -> Decision | None:
        if not any(message.records for message in messages):
            return None
        return Decision(
            put_id=place.sources.new_id(),
            created_ms=place.sources.now_ms(),
            records=sum(message.records for message in messages),
            objects=(),
            topics={},
            opened_slots={},
            transactional_id=transaction.transactional_id,
        )

    async def won() -> None:
        nonlocal is_mine
        is_mine = True
        await _end(place.client, messages)

    settled = await settle_epoch(place, write, epoch, propose, won)
    if not is_mine:
        await drop(place.client, messages)
    if settled:
        await remove_done(place.store, write, epoch)


def transaction_of(messages: Sequence[StagedInTransaction]) -> SharedTransaction:
    """Return the transaction of all these tasks. Raises Unavailable."""
    topics: dict[str, int] = {}
    for message in messages:
        if message.transaction != messages[0].transaction:
            raise Unavailable(
                "tasks of one write have staged in two transactions; nothing was written: run the write again"
            )
        for name, topic_id in message.topics.items():
            note_topic(topics, name, topic_id)
    return messages[0].transaction


async def _end(client: Client, messages: Sequence[StagedInTransaction]) -> None:
    await client.transactions.shared.commit(messages[0].transaction, [message.counts for message in messages])


async def drop(client: Client, messages: Sequence[StagedInTransaction]) -> None:
    """Abort the transaction of these tasks, unless it is decided. If no broker answers, the cluster aborts
    it at its time-out.
    """
    shared, transaction = client.transactions.shared, messages[0].transaction
    try:
        await shared.abort(transaction, [message.counts for message in messages])
        if not any(message.records for message in messages):
            await shared.forget(transaction.transactional_id)  # micro-batches without rows are frequent
    except LedgerMQError as error:
        log.warning(
            "transaction %s was not aborted, and is left to its time-out: %s",
            transaction.transactional_id,
            error.message,
        )


async def discard(options: SinkOptions, messages: Sequence[StagedInTransaction]) -> None:
    """Drop as `drop` does, with the driver's own connections."""
    if messages:
        async with ledgermq.connect(options.servers, **options.client_settings()) as client:
            await drop(client, messages)

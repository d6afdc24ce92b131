"""Publish an epoch in the driver: what the decision names goes to its topics, each batch once,
however often publishing starts again.

Every partition gets its batches in the order of the decision under the decision's producer id, with
sequences from 0; brokers report how far it came before, and that much is skipped. Once everything
is stored, the epoch is marked as done; only then may its staged rows be deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping

from ledgermq.client.client import Client
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.delivery import Outcome
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import (
    DataDamaged,
    LedgerMQError,
    OutcomeUnknown,
    OutOfOrderSequence,
    RetriableError,
    TopicBeingDeleted,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.sinks import Decision, DoneMark, encode_done
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.epochs.staging import StagedBatch, read_staged

log = logging.getLogger("ledgermq.sink")

ATTEMPTS_MAX = 3
"""Consecutive attempts in which no more is stored than before."""


async def is_done(store: ObjectStore, write: str, epoch: int) -> bool:
    try:
        await store.head(keys.sink_done_epoch(write, epoch))
    except ObjectMissing:
        return False
    return True


async def publish(place: Place, write: str, epoch: int, decision: Decision) -> None:
    """Wait until every record of the epoch is stored, and the epoch is marked as done.

    Raises Unavailable, DeadlineExceeded (commit again), OutcomeUnknown (brokers no longer know how
    far it came), DataDamaged, what a topic refuses.
    """
    names = await _living(place.client, decision)
    opened = {each: slot for each, slot in decision.opened_slots.items() if each.topic in names.values()}
    attempts_left, most_stored = ATTEMPTS_MAX, -1
    while True:
        try:
            stored = await place.client.open_sessions(decision.put_id, list(opened))
            if (records := sum(session.next_sequence for session in stored.values())) > most_stored:
                attempts_left, most_stored = ATTEMPTS_MAX, records
            await _Publisher(place, decision, names).run(
                {
                    each: Session(decision.put_id, opened[each], next_sequence=found.next_sequence)
                    for each, found in stored.items()
                }
            )
            break
        except (UnknownProducer, ObjectMissing) as error:
            if await is_done(place.store, write, epoch):
                return  # published meanwhile by another driver, which has deleted the staged rows
            raise _gone(error) if isinstance(error, ObjectMissing) else _forgotten(write, epoch, error) from error
        except (OutOfOrderSequence, OutcomeUnknown, RetriableError) as error:
            attempts_left -= 1
            if not attempts_left:
                raise
            log.warning("epoch %d of %s is published again: %s", epoch, write, error)
    await mark_done(place.store, place.sources, write, epoch)


async def _living(client: Client, decision: Decision) -> dict[int, str]:
    """Return names by id, without removed topics, even if another topic has the name now.

    Raises Unavailable.
    """
    names: dict[int, str] = {}
    for name, topic_id in decision.topics.items():
        if await _id_of(client, name) == topic_id:
            names[topic_id] = name
        else:
            log.warning("topic %s was deleted meanwhile: its rows are dropped", name)
    return names


async def _id_of(client: Client, name: str) -> int | None:
    """Return the topic's id, or None if there is no such topic, by what all brokers have
    acknowledged.

    A single broker may be behind.
    """
    try:
        return (await client.describe_topic(name)).topic_id
    except (UnknownTopic, TopicBeingDeleted) as error:
        if any(topic.name == name for topic in await client.list_topics()):
            raise Unavailable(f"topic {name} exists, but a broker has not read it yet: retry") from error
        return None


class _Publisher:
    def __init__(self, place: Place, decision: Decision, names: Mapping[int, str]) -> None:
        self._place = place
        self._decision = decision
        self._names = names
        self._sequences: dict[TopicPartition, int] = {}
        self._waiting: deque[Outcome] = deque()

    async def run(self, sessions: Mapping[TopicPartition, Session]) -> None:
        async with self._place.client.resumed_producer(sessions, **self._place.options.producer_settings()) as producer:
            async for staged in self._staged():
                await self._send(producer, staged, sessions)
            await producer.flush()
            for outcome in self._waiting:
                outcome.raise_error()

    async def _staged(self) -> AsyncIterator[StagedBatch]:
        for key in self._decision.objects:
            for staged in await read_staged(self._place.store, key):
                yield staged

    async def _send(self, producer: Producer, staged: StagedBatch, sessions: Mapping[TopicPartition, Session]) -> None:
        name = self._names.get(staged.topic_id)
        if name is None:
            return
        partition = TopicPartition(name, staged.partition)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = end = sequence + staged.batch.record_count
        stored = sessions[partition].next_sequence
        if end <= stored:
            return
        if sequence < stored:
            raise DataDamaged(
                f"{name}/{staged.partition}: {stored} records are stored, which is inside the batch from {sequence} to"
                f" {end - 1}"
            )
        self._waiting.append(
            await producer.send_encoded(name, staged.topic_id, staged.partition, staged.batch, sequence)
        )
        while self._waiting and self._waiting[0].settled:
            self._waiting.popleft().raise_error()


def _gone(missing: ObjectMissing) -> LedgerMQError:
    key = missing.object_key
    return DataDamaged(f"{key}: staged rows that were not published yet are missing", object_key=key)


def _forgotten(write: str, epoch: int, error: LedgerMQError) -> LedgerMQError:
    return OutcomeUnknown(
        f"epoch {epoch} of {write} was decided, and brokers no longer know how much of it is stored ({error.message});"
        " nothing was sent again. See docs/spark.md, 'When an epoch cannot be finished'"
    )


async def mark_done(store: ObjectStore, sources: Sources, write: str, epoch: int) -> None:
    """Mark the epoch as done. Raises Unavailable, the store's errors: without the mark, nothing of
    the epoch may be deleted.
    """
    mark = encode_done(DoneMark(sources.now_ms(), sources.new_id()))
    if await settle_put(store, keys.sink_done_epoch(write, epoch), [mark], sources=sources) is PutOutcome.UNKNOWN:
        raise Unavailable(
            f"epoch {epoch} of {write} is published; the outcome of the put of its done mark is unknown: commit the"
            " epoch again"
        )

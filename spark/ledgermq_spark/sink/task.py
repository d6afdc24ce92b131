"""Run one task of a write in an executor, in a separate event loop: rows in, staged or sent rows
out.

Rows come from Spark by a blocking iterator. A thread reads it, so that requests under way continue
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa

import ledgermq
from ledgermq.client.client import Client
from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.delivery import BatchDelivery
from ledgermq.client.producing.producer import Producer
from ledgermq.client.transactions.two_phase.branch import Branch
from ledgermq.sources import Sources
from ledgermq_spark.sink.cluster import Place, opened
from ledgermq_spark.sink.epochs.decision import is_settled
from ledgermq_spark.sink.epochs.staging import StagedWriter
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.sink.rows.collecting import PART_BYTES, Collector
from ledgermq_spark.sink.rows.rows import Routed, RowRouter
from ledgermq_spark.sink.staged import Sent, Staged, note_topic


async def stage(options: SinkOptions, write: str, epoch: int, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage as `stage_rows` does, with the executor's own connections."""
    async with opened(options) as place:
        return await stage_rows(place, write, epoch, drawn(batches))


async def stage_rows(place: Place, write: str, epoch: int, batches: AsyncIterator[pa.RecordBatch]) -> Staged:
    """Stage rows: they are durable on return, and no reader sees them. Rows of a decided epoch are
    not read.

    Raises InvalidRecord, MessageTooLarge, UnknownTopic, UnknownPartition, Unavailable, the store's
    errors.
    """
    staged = Staged(write, epoch)
    if await is_settled(place.store, write, epoch):
        return staged
    writer = StagedWriter(place.store, place.sources, write, epoch, place.options.compression)
    try:
        async for routed in collected(place.options, place.client, place.sources, batches):
            await writer.add(routed)
            staged.records += routed.rows.num_rows
            note_topic(staged.topics, routed.topic.name, routed.topic.topic_id)
            staged.partitions.add(TopicPartition(routed.topic.name, routed.partition))
        await writer.finish()
    except BaseException:
        await writer.abort()
        raise
    staged.objects = writer.objects
    return staged


async def send(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Send rows: they are stored in their topics on return. Raises as `stage`; what was sent before
    stays.
    """
    sources = Sources()
    sent = Sent(0)
    async with (
        ledgermq.connect(options.servers, sources=sources, **options.client_settings()) as client,
        client.producer(**options.producer_settings()) as producer,
    ):
        async for routed in delivered(options, producer, collected(options, client, sources, drawn(batches))):
            sent.records += routed.rows.num_rows
    return sent


async def delivered(
    options: SinkOptions, target: Producer | Branch, rows: AsyncIterator[Routed]
) -> AsyncIterator[Routed]:
    """Send rows and yield them; all are stored when the iteration ends.

    The target bounds the bytes under way. Batches are bounded here, because small batches take more
    than their rows' bytes.
    """
    waiting_max = max(options.buffer_bytes_max // PART_BYTES, 1)
    waiting: deque[BatchDelivery] = deque()
    async for routed in rows:
        waiting.append(await _send(target, routed))
        yield routed
        while waiting and (len(waiting) > waiting_max or all(batch.outcome.settled for batch in waiting[0].batches)):
            await waiting.popleft()
    for delivery in waiting:
        await delivery


async def _send(target: Producer | Branch, routed: Routed) -> BatchDelivery:
    return await target.send_batch(
        routed.topic.name, routed.rows.drop_columns(["timestampType"]), partition=routed.partition
    )


async def drawn(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch


async def collected(
    options: SinkOptions, client: Client, sources: Sources, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[Routed]:
    """Yield the rows of a task, by partition, in batches worth sending."""
    router = RowRouter(options.topic, _Topics(client).find, sources)
    collector = Collector(options.batch_bytes_max, options.buffer_bytes_max)
    async for batch in batches:
        for routed in await router.route(batch):
            for complete in collector.add(routed):
                yield complete
    for complete in collector.rest():
        yield complete


class _Topics:
    """Topics that a task requests once each, and again when a row names a partition that the topic
    did not have.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, TopicRoute] = {}

    async def find(self, name: str, again: bool) -> TopicRoute:
        if again or name not in self._known:
            found = await self._client.describe_topic(name)
            self._known[name] = TopicRoute(name, found.topic_id, len(found.partitions), found.settings, 0.0)
        return self._known[name]

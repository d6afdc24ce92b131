"""A producer of a client that traces: its records carry the trace of the program, and its batches have spans.

Without tracing, programs get a plain `Producer`, so a record costs nothing more. With it, a record that is sent outside
a recorded trace costs one look at the current span.

The span of a batch begins with its first record, and ends when it is stored, staged or has failed; all of its attempts
are in it. Which traces its records belong to is read from their headers when it is sent first. So records that carry
a trace from elsewhere, such as those of the gateway or of a retry topic, belong to it, too. Rows of Arrow data, and
batches that were encoded before, have no span.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.record import Record
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.buffering.send_buffer import OnFailure
from ledgermq.client.producing.delivery import Deliveries, Delivery
from ledgermq.client.producing.observed import BatchMeters, BatchObserver, Observed
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.producer import Producer
from ledgermq.client.producing.publishing import Producing, Publishing
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.telemetry.trace_context import TRACEPARENT, Pairs, with_context

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing


def make_producer(
    context: ClientContext,
    settings: ProducerSettings,
    publishing: Publishing | None = None,
    on_failure: OnFailure = lambda error: error,
) -> Producer[Any]:
    """Return a producer, as `Producer` has it: one whose records and batches are traced, if the client traces, and
    whose batches are counted, if it measures.
    """
    observers: list[BatchObserver] = []
    if context.tracing is not None:
        observers.append(BatchSpans(context.tracing))
    if context.metrics is not None:
        observers.append(BatchMeters(context.metrics))
    if observers:
        publishing = Observed(publishing or Producing(settings), observers)
    kind = Producer[Any] if context.tracing is None else TracedProducer[Any]
    made = kind(context, settings, publishing, on_failure)
    if context.metrics is not None:
        context.metrics.holds(made)
    return made


def carrying(context: ClientContext, headers: Any) -> Any:
    """Return the headers of a record that is sent now, with the trace that is current, if it is recorded."""
    carried = None if context.tracing is None else context.tracing.carried()
    return headers if carried is None else with_context(headers, carried)


class TracedProducer(Producer[S]):
    """See `ledgermq.Producer`."""

    def send(self, topic: str, value: Any, key: Any = None, headers: Any = None, *more: Any, **named: Any) -> Delivery:
        """See `ledgermq.Producer.send`."""
        tracing = self._context.tracing
        carried = None if tracing is None else tracing.carried()
        if carried is not None:
            headers = with_context(headers, carried)
        if more or named:
            return super().send(topic, value, key, headers, *more, **named)
        return super().send(topic, value, key, headers)  # passing on what is empty costs 0.1 µs

    def send_many(
        self, topic: str, records: Iterable[Any] | AsyncIterable[Any], *, timeout: Any = None
    ) -> Queuing[Deliveries]:
        """See `ledgermq.Producer.send_many`. All records carry what is current at this call."""
        tracing = self._context.tracing
        carried = None if tracing is None else tracing.carried()
        if carried is not None:
            if isinstance(records, AsyncIterable):
                records = _carrying_later(records, carried)
            else:
                made = map(partial(_carrying, carried), records)
                records = list(made) if isinstance(records, list | tuple) else made
        return super().send_many(topic, records, timeout=timeout)


def _carrying(carried: Pairs, record: Any) -> Record:
    if isinstance(record, Record):
        return record._replace(headers=with_context(record.headers, carried))
    return Record(record, headers=carried)


async def _carrying_later(records: AsyncIterable[Any], carried: Pairs) -> AsyncIterator[Record]:
    async for record in records:
        yield _carrying(carried, record)


class BatchSpans:
    """The spans of the batches of one producer. See `BatchObserver`."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._spans: dict[Batch, Any] = {}
        """Of batches that are not settled."""
        self._attempts: dict[Batch, int] = {}

    def prepared(self, batch: Batch) -> None:
        if batch in self._spans:
            return
        begun_ns = self._tracing.now_ns() - round(1e9 * (asyncio.get_running_loop().time() - batch.born_s))
        headers = batch.headers_with(TRACEPARENT)
        span = self._tracing.send_span(headers, batch.at.topic, batch.at.partition, batch.record_count, begun_ns)
        if span is not None:
            self._spans[batch] = span
            batch.outcome.call_when_settled(partial(self._end, batch))

    def attempted(self, batch: Batch, header: pb.ProduceBatch) -> None:
        span = self._spans.get(batch)
        if span is not None:
            self._attempts[batch] = self._attempts.get(batch, 0) + 1
            of = self._tracing.context_of(span)
            header.traceparent, header.tracestate = of.traceparent, of.state

    def _end(self, batch: Batch) -> None:
        span, attempts = self._spans.pop(batch), self._attempts.pop(batch, 0)
        if attempts > 1:
            span.set_attribute("ledgermq.attempts", attempts)
        if batch.outcome.error is None and batch.base_offset is not None and batch.base_offset >= 0:
            span.set_attribute("ledgermq.offset", batch.base_offset)
        self._tracing.end(span, batch.outcome.error)

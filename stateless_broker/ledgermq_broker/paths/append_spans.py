"""Spans of batches whose producers say that their trace is recorded: from the frame until its answer, and of the put
that stores them. Nothing of a trace is stored.

    append orders     of a batch; its parent is the batch's span in the producer
      put segment     of the put; its parent is the first batch of the segment that is traced, its links are the others

At most 100 traces a second have spans here, whatever callers ask for. Batches of others are served alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.telemetry.trace_context import TraceContext, context_of
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing


class Outcome(Protocol):
    """What is known of a batch; see `Entry`."""

    batch: Batch | None
    error: Any
    done: asyncio.Future[int] | None


@dataclass(slots=True)
class Arrived:
    """A frame with traced batches. `contexts`: by place in the frame. `spans`: likewise, once they are admitted."""

    headers: Sequence[pb.ProduceBatch]
    contexts: dict[int, TraceContext]
    begun_ns: int
    spans: dict[int, Any] = field(default_factory=dict)


class AppendSpans:
    """`broker_id`: of this broker."""

    def __init__(self, tracing: Tracing, broker_id: str) -> None:
        self._tracing = tracing
        self._broker_id = broker_id
        self._waiting: dict[asyncio.Future[int], Any] = {}
        """The spans of batches that are not stored yet, by the future of the base offset."""

    def arrived(self, headers: Sequence[pb.ProduceBatch]) -> Arrived | None:
        """Return the frame that these headers describe; None: no batch of it is traced."""
        contexts: dict[int, TraceContext] = {}
        for at, header in enumerate(headers):
            if header.traceparent:
                context = context_of(header.traceparent, header.tracestate)
                if context is not None and context.is_recorded and self._tracing.takes_another():
                    contexts[at] = context
        return Arrived(headers, contexts, self._tracing.now_ns()) if contexts else None

    def admitted(self, frame: Arrived, entries: Sequence[Outcome]) -> None:
        """Begin the spans of a frame whose batches are with their bundles, or refused."""
        for at, context in frame.contexts.items():
            header, entry = frame.headers[at], entries[at]
            topic = header.topic if entry.batch is not None else ""  # no name that a stranger made up
            span = self._tracing.append_span(
                topic, header.partition, header.record_count, context, frame.begun_ns, self._broker_id
            )
            frame.spans[at] = span
            if entry.done is not None and not entry.done.done():
                self._waiting[entry.done] = span
                entry.done.add_done_callback(lambda done: self._waiting.pop(done, None))

    def answered(self, frame: Arrived, entries: Sequence[Outcome]) -> None:
        """End the spans of a frame."""
        for at, span in frame.spans.items():
            entry = entries[at]
            error = entry.error
            if error is None and entry.done is not None and entry.done.done():
                error = asyncio.CancelledError() if entry.done.cancelled() else entry.done.exception()
            self._tracing.end(span, error)

    def putting(self, bundle: int, appends: Sequence[Append]) -> None:
        """Begin the span of a put that has just begun, if it stores a traced batch."""
        if not self._waiting:
            return
        found = {append.done: span for append in appends if (span := self._waiting.get(append.done)) is not None}
        if found:
            span = self._tracing.put_span(list(found.values()), bundle, len(appends))
            next(iter(found)).add_done_callback(partial(self._put, span))

    def _put(self, span: Any, done: asyncio.Future[int]) -> None:
        self._tracing.end(span, asyncio.CancelledError() if done.cancelled() else done.exception())

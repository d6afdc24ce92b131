"""Spans of messages, by OpenTelemetry's API: what a program sends, what its handlers process, what brokers store.

A span is made only inside a trace that is recorded: that of the caller, or of a message. So a record without a trace
costs one look at the current span, and nothing is ever recorded that no sampler has chosen.

    send       of a batch, from its first record until it is stored. Its parent is the context of the first record
               that carries one, its links are the contexts of all of them. No span for a record: it would cost 25
               times what sending one does
    process    of a call of a handler, with links to the contexts of its messages
    append     of a batch in a broker, and the put that stores it

Times are those of the caller's clock, so that a simulation has its own. No attribute holds a key, a value, a token or
the text of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Literal

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode

from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq.telemetry.trace_context import Pairs, TraceContext, recorded_context

LINKS_MAX = 128
"""Links of a span: the bound of OpenTelemetry's SDK."""
TRACES_PER_S_MAX = 100.0
"""Traces of others that a process records in a second: messages and requests say themselves that they are recorded."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM = "ledgermq"

ParentOfCalls = Literal["local", "message"]
Attributes = dict[str, str | int | bool]


def attributes_of(operation: str, topic: str, partition: int | None = None, records: int | None = None) -> Attributes:
    """Return the attributes that all spans about messages have, by the semantic conventions for messaging."""
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if partition is not None:
        found["messaging.destination.partition.id"] = str(partition)
    if records is not None:
        found["messaging.batch.message_count"] = records
    return found


class Tracing:
    """The spans of one client, or of one process. `parent`: of a handler's calls, "local" for what is current where
    the handler runs, "message" for the context of a single message. `now_us`: microseconds since the epoch.
    """

    def __init__(self, now_us: Callable[[], int], parent: ParentOfCalls = "local") -> None:
        self._now_us = now_us
        self._parent = parent
        self._tracer = trace.get_tracer("ledgermq", version("ledgermq"), schema_url=SCHEMA_URL)
        self._budget = TokenBucket(TRACES_PER_S_MAX, self._now_s())
        self._last: tuple[current.Context, Pairs | None] = current.Context(), None
        """The last context in which a record was sent, and the headers that it carried. A context never changes, and is
        the same object for all records of a loop.
        """

    def _now_s(self) -> float:
        return self._now_us() / 1_000_000

    def now_ns(self) -> int:
        return self._now_us() * 1000

    def carried(self) -> Pairs | None:
        """Return the headers of a record that is sent now; None: the current span is not of a recorded trace. Any
        thread may call this.
        """
        within = current.get_current()
        last = self._last  # one read, because other threads write it
        if last[0] is within:
            return last[1]
        found = trace.get_current_span(within).get_span_context()
        is_recorded = found.is_valid and found.trace_flags & TraceFlags.SAMPLED
        pairs = _own(found).headers if is_recorded else None
        self._last = within, pairs
        return pairs

    def send_span(
        self,
        headers: Iterable[Iterable[tuple[str, bytes | None]]],
        topic: str,
        partition: int,
        records: int,
        begun_ns: int,
    ) -> Span | None:
        """Return the span of a batch; None: no record belongs to a recorded trace. `headers`: of its records."""
        contexts = contexts_of(headers)
        if not contexts:
            return None
        return self._tracer.start_span(
            f"send {topic}",
            context=_as_parent(contexts[0]),
            kind=SpanKind.CLIENT,
            attributes=attributes_of("send", topic, partition, records),
            links=_links(contexts),
            start_time=begun_ns,
        )

    @contextmanager
    def within(self, span: Span) -> Iterator[None]:
        """Make a span the current one, for the block."""
        token = current.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            current.detach(token)

    def context_of(self, span: Span) -> TraceContext:
        """Return the context of a span, for what is called within it."""
        return _own(span.get_span_context())

    def end(self, span: Span, error: BaseException | None = None) -> None:
        """End a span, with the kind of the error that ended what it is about."""
        if error is not None:
            self.fail(span, getattr(error, "code", "") or type(error).__name__)
        span.end(self.now_ns())

    def fail(self, span: Span, kind: str) -> None:
        """Note that what a span is about has failed, by the kind of the error."""
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR))

    def append_span(
        self, topic: str, partition: int, records: int, parent: TraceContext, begun_ns: int, broker_id: str
    ) -> Span:
        """Return the span of a batch in a broker. `topic`: "" for one that was refused."""
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.batch.message_count": records,
            "messaging.destination.partition.id": str(partition),
            "ledgermq.broker": broker_id,
        }
        if topic:
            attributes["messaging.destination.name"] = topic
        return self._tracer.start_span(
            f"append {topic}".rstrip(),
            context=_as_parent(parent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=begun_ns,
        )

    def request_span(self, name: str, given: TraceContext, *, is_trusted: bool) -> Span | None:
        """Return the span of a request that names a recorded trace; None: too many were recorded lately. It is part of
        that trace if its sender is trusted, else it begins another one, with a link, if the sampler lets it.
        """
        if not self.takes_another():
            return None
        return self._tracer.start_span(
            name,
            context=_as_parent(given) if is_trusted else current.Context(),
            kind=SpanKind.SERVER,
            links=[] if is_trusted else _links([given]),
            start_time=self.now_ns(),
        )

    def put_span(self, batches: Sequence[Span], bundle: int, count: int) -> Span:
        """Return the span of a put that stores these traced batches, at least one, among `count`."""
        return self._tracer.start_span(
            "put segment",
            context=trace.set_span_in_context(batches[0], current.Context()),
            kind=SpanKind.CLIENT,
            attributes={"ledgermq.bundle": bundle, "ledgermq.batches": count},
            links=[Link(span.get_span_context()) for span in batches[1 : LINKS_MAX + 1]],
            start_time=self.now_ns(),
        )

    @contextmanager
    def processing(self, group: str, messages: Sequence[Any]) -> Iterator[Span | None]:
        """Make the span of a call that processes these messages the current one, for the block; None: neither a
        message nor the caller belongs to a recorded trace, or too many traces of others were recorded lately.
        """
        contexts = contexts_of(message.headers for message in messages)
        local = trace.get_current_span()
        if not contexts and not local.is_recording():
            yield None
            return
        if not local.is_recording() and not self.takes_another():
            yield None
            return
        span = self._process_span(group, messages, contexts, local)
        try:
            with self.within(span):
                yield span
        except BaseException as error:
            self.end(span, error)
            raise
        else:
            self.end(span)

    def _process_span(self, group: str, messages: Sequence[Any], contexts: Sequence[TraceContext], local: Span) -> Span:
        first = messages[0]
        attributes = attributes_of("process", first.topic, first.partition)
        attributes["messaging.consumer.group.name"] = group
        if len(messages) == 1:
            attributes["messaging.message.id"] = str(first.id)
            attributes["ledgermq.offset"] = first.offset
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        if self._parent == "message" and len(contexts) == 1 and len(messages) == 1:
            parent = _as_parent(contexts[0])
        else:
            parent = trace.set_span_in_context(local if local.is_recording() else trace.INVALID_SPAN)
        return self._tracer.start_span(
            f"process {first.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(contexts),
            start_time=self.now_ns(),
        )

    def takes_another(self) -> bool:
        """Return whether another trace of others may be recorded now, and count it."""
        now_s = self._now_s()
        if self._budget.level(now_s) < 1:
            return False
        self._budget.take(1, now_s)
        return True


def contexts_of(headers: Iterable[Iterable[tuple[str, bytes | None]]]) -> list[TraceContext]:
    """Return the contexts of the recorded traces to which records belong: each once, at most `LINKS_MAX`."""
    found: dict[TraceContext, None] = {}
    for each in headers:
        if each and (context := recorded_context(each)) is not None:
            found[context] = None
            if len(found) == LINKS_MAX:
                break
    return list(found)


def _own(found: SpanContext) -> TraceContext:
    is_recorded = bool(found.trace_flags & TraceFlags.SAMPLED)
    return TraceContext(found.trace_id, found.span_id, is_recorded, found.trace_state.to_header())


def _span_context(given: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if given.is_recorded else TraceFlags.DEFAULT)
    state = TraceState.from_header([given.state]) if given.state else None
    return SpanContext(given.trace_id, given.span_id, is_remote=True, trace_flags=flags, trace_state=state)


def _as_parent(given: TraceContext) -> current.Context:
    return trace.set_span_in_context(NonRecordingSpan(_span_context(given)), current.Context())


def _links(contexts: Sequence[TraceContext]) -> list[Link]:
    return [Link(_span_context(each)) for each in contexts]

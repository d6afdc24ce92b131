"""A collector of spans: a gRPC server of OpenTelemetry's protocol (OTLP), which keeps what exporters send it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as calls
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass(frozen=True)
class Received:
    """A span as it came. `parent`: "" for a root. `links`: trace and span of each. Times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: str
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: bool
    begun_s: float
    ended_s: float
    service: str
    text: str
    """The whole message, to look for what must not be in it."""

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


class Collector(calls.TraceServiceServicer):
    """`endpoint`: where exporters send to."""

    def __init__(self) -> None:
        self._spans: list[Received] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(2))
        calls.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: service.ExportTraceServiceRequest, context: Any) -> service.ExportTraceServiceResponse:  # noqa: N802
        with self._lock:
            for of_resource in request.resource_spans:
                resource = _values(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self._spans += [_received(span, resource.get("service.name", "")) for span in of_scope.spans]
        return service.ExportTraceServiceResponse()

    def received(self) -> list[Received]:
        with self._lock:
            return list(self._spans)

    def spans(self, name: str = "") -> list[Received]:
        """Return all spans of this process that have ended, or those of this name, in the order of their begin."""
        assert _relay.to is None or _relay.to.force_flush(30_000)
        return sorted((span for span in self.received() if name in ("", span.name)), key=lambda span: span.begun_s)

    def only(self, name: str) -> Received:
        [span] = self.spans(name)
        return span

    def close(self) -> None:
        self._server.stop(None).wait()


def _values(attributes: Any) -> dict[str, Any]:
    found = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = getattr(attribute.value, kind)
    return found


def _received(span: Any, of_service: str) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        KINDS[span.kind],
        _values(span.attributes),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.code == 2,
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        of_service,
        str(span),
    )


class _Relay(SpanProcessor):
    """A process has one provider; each test has its own collector."""

    def __init__(self) -> None:
        self.to: SpanProcessor | None = None

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.to is not None:
            self.to.on_start(span, parent_context)

    def on_end(self, span: Any) -> None:
        if self.to is not None:
            self.to.on_end(span)


class _Sampling(ParentBased):
    """All traces are recorded, unless a test says `never`."""

    def __init__(self) -> None:
        super().__init__(TraceIdRatioBased(1.0))

    def choose(self, ratio: float) -> None:
        self._root = TraceIdRatioBased(ratio)


_relay, _sampling = _Relay(), _Sampling()


def tracer() -> trace.Tracer:
    """The tracer of a program under test."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(sampler=_sampling, resource=Resource.create({"service.name": "program"}))
        provider.add_span_processor(_relay)
        trace.set_tracer_provider(provider)
    return trace.get_tracer("program")


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that gets the spans of this process during the block."""
    tracer()
    collector = Collector()
    exporting = _relay.to = BatchSpanProcessor(OTLPSpanExporter(collector.endpoint))
    try:
        yield collector
    finally:
        _relay.to = None
        exporting.shutdown()
        collector.close()


@contextmanager
def never_recorded() -> Iterator[None]:
    """Traces that begin during the block are not recorded."""
    tracer()
    _sampling.choose(0.0)
    try:
        yield
    finally:
        _sampling.choose(1.0)

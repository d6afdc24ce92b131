"""Send the spans of a process of ours, a broker or a gateway, to a collector by OTLP. Programs set OpenTelemetry up
themselves.

The variables of OpenTelemetry say how: OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4317), OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_….
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do

LAST_SPANS_S = 2.0
"""Longest wait, at the end of the process, until the last spans are sent."""


@contextmanager
def exporting(service: str) -> Iterator[None]:
    """Export the spans of this process during the block. `service`: its name, if OpenTelemetry's variables have none.

    Raises InvalidConfig if the exporter is not installed, or a variable has no value that it takes. A collector that
    does not answer costs spans, and nothing else.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except (ImportError, AttributeError) as error:
        advice = what_to_do(error, 'install its exporter: pip install "ledgermq[otlp]"')
        raise InvalidConfig(f"tracing: {advice}") from error
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    try:
        provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise InvalidConfig(f"tracing: a variable OTEL_… has a value that OpenTelemetry refuses: {error}") from error
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        ending = threading.Thread(target=provider.shutdown, name="sends the last spans", daemon=True)
        ending.start()
        ending.join(LAST_SPANS_S)

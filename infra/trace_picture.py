"""docs/images/trace.png: one trace, from a request over HTTP to what a handler sends on, drawn from its real spans.

python -m infra.trace_picture
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import httpx
import matplotlib as mpl
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ledgermq
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.settings import GatewaySettings

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

PICTURE = Path(__file__).parents[1] / "docs/images/trace.png"
COLOURS = {"program": "#4c72b0", "gateway": "#8172b2", "client": "#dd8452", "broker": "#55a868", "handler": "#c44e52"}
WARM = 3
"""Requests before the one that is drawn: first ones look topics up, and open sessions."""


async def spans_of_a_request(root: str) -> list[ReadableSpan]:
    """Return the spans of one request, and of what follows from it, on a cluster in this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    async with ledgermq.connect(root, tracing=True, tracing_parent="message") as client:
        await client.create_topic("orders", 1)
        await client.create_topic("invoices", 1)
        billed = asyncio.Event()
        producer = client.producer()

        @client.handler("orders", group="billing", commit_interval_ms=100)
        async def bill(message: ledgermq.GroupMessage) -> None:
            await producer.send("invoices", message.value)
            billed.set()

        stop = asyncio.Event()
        running = asyncio.create_task(client.run_handlers(stop=stop))
        settings = GatewaySettings(port=0, tracing="on", trusted_proxies="127.0.0.1", drain_ms=0, streams_end_ms=0)
        gateway = Gateway(settings, ClusterClock(), client.as_caller, client.as_caller)
        async with gateway.running(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as http:
            for _ in range(WARM + 1):
                billed.clear()
                exporter.clear()
                with trace.get_tracer("shop").start_as_current_span("checkout"):
                    headers: dict[str, str] = {}
                    propagate.inject(headers)
                    answer = await http.post(
                        "/v1/topics/orders/records", json={"records": [{"value": "two coffees"}]}, headers=headers
                    )
                    answer.raise_for_status()
                await billed.wait()
                await asyncio.sleep(0.2)  # the last spans end
        stop.set()
        await running
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def in_order(spans: list[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """Return the spans as a tree, each with its depth, children behind their parent."""
    by_id = {span.context.span_id: span for span in spans if span.context is not None}

    def walk(span: ReadableSpan, depth: int) -> list[tuple[int, ReadableSpan]]:
        assert span.context is not None
        own = [child for child in spans if child.parent is not None and child.parent.span_id == span.context.span_id]
        return [(depth, span), *(each for child in own for each in walk(child, depth + 1))]

    roots = [span for span in spans if span.parent is None or span.parent.span_id not in by_id]
    return [each for root in roots for each in walk(root, 0)]


def place_of(name: str) -> str:
    first = name.partition(" ")[0]
    return {"checkout": "program", "POST": "gateway", "send": "client", "process": "handler"}.get(first, "broker")


def draw(spans: list[ReadableSpan]) -> None:
    rows = in_order(spans)
    begun_ns = min(span.start_time or 0 for span in spans)
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1), dpi=120)
    most_ms = max((span.end_time or 0) - begun_ns for span in spans) / 1e6
    for row, (depth, span) in enumerate(rows):
        at_ms, took_ms = (
            ((span.start_time or 0) - begun_ns) / 1e6,
            ((span.end_time or 0) - (span.start_time or 0)) / 1e6,
        )
        axes.barh(row, max(took_ms, most_ms / 400), left=at_ms, height=0.62, color=COLOURS[place_of(span.name)])
        axes.text(at_ms + took_ms + most_ms / 100, row, f"{took_ms:.1f} ms", va="center", fontsize=8)
        label = "    " * depth + span.name
        axes.text(-0.48, row, label, va="center", fontsize=9, transform=axes.get_yaxis_transform(), clip_on=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, most_ms * 1.12)
    axes.set_yticks([])
    axes.set_xlabel("ms since the program began")
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    handles = [Patch(color=colour) for colour in COLOURS.values()]
    axes.legend(handles, list(COLOURS), loc="upper right", fontsize=8, frameon=False)
    figure.subplots_adjust(left=0.34, right=0.98, top=0.97, bottom=0.16)
    figure.savefig(PICTURE)


def main() -> None:
    os.environ["LEDGERMQ_TRACING"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        spans = asyncio.run(spans_of_a_request(f"file://{folder}/root"))
    draw(spans)
    print(f"{PICTURE}: {len(spans)} spans")


if __name__ == "__main__":
    main()

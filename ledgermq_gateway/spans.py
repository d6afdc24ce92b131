"""Spans of requests: each one whose header `traceparent` says that its trace is recorded has one, at most 100 a second.

Anybody may send that header. Only what a trusted proxy sends is continued; any other request begins another trace,
which links to the one that it names. `baggage` is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from ledgermq.telemetry.switch import make_tracing
from ledgermq.telemetry.trace_context import TRACEPARENT, TRACESTATE, context_of

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"})


class RequestSpan:
    """The span of one request; current while it is entered. `span` None: it has none."""

    __slots__ = ("_method", "_tracing", "_within", "span")

    def __init__(self, tracing: Any = None, span: Any = None, method: str = "") -> None:
        self._tracing = tracing
        self._method = method
        self.span = span
        self._within: AbstractContextManager[None] = nullcontext() if span is None else tracing.within(span)

    def __enter__(self) -> None:
        self._within.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._within.__exit__(kind, error, trace)

    def end(self, route: str, status: int, request_id: str) -> None:
        """`route`: the template of the path, "" for none that is known."""
        if self.span is None:
            return
        self.span.update_name(f"{self._method} {route}".rstrip())
        self.span.set_attribute("http.response.status_code", status)
        self.span.set_attribute("ledgermq.request_id", request_id)
        if route:
            self.span.set_attribute("http.route", route)
        if status >= 500:
            self._tracing.fail(self.span, str(status))
        self._tracing.end(self.span)


NO_SPAN = RequestSpan()


class RequestSpans:
    """`trusted`: hosts of trusted proxies. Raises InvalidConfig if OpenTelemetry is not installed."""

    def __init__(self, is_on: bool, trusted: Container[str], now_us: Callable[[], int]) -> None:
        self._tracing = make_tracing(is_on, "local", now_us)
        self._trusted = trusted

    def begin(self, method: str, headers: Mapping[str, str], host: str) -> RequestSpan:
        """Return the span of a request that comes from this address."""
        if self._tracing is None or TRACEPARENT not in headers:
            return NO_SPAN
        given = context_of(headers[TRACEPARENT].strip(), headers.get(TRACESTATE, ""))
        if given is None or not given.is_recorded:
            return NO_SPAN
        known = method if method in METHODS else "HTTP"
        span = self._tracing.request_span(known, given, is_trusted=host in self._trusted)
        if span is None:
            return NO_SPAN
        span.set_attribute("http.request.method", method if method in METHODS else "_OTHER")
        return RequestSpan(self._tracing, span, known)

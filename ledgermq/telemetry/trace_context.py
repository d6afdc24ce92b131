"""The context of a trace, as records carry it in their headers: `traceparent` and `tracestate` of W3C's Trace Context.

    traceparent   00-<32 hex digits: trace>-<16 hex digits: span>-<2 hex digits: flags; bit 0: recorded>
    tracestate    what tracing systems add, as "name=value" separated by commas

Pure. It knows nothing of OpenTelemetry. Headers that are not valid are treated as if they were not there, as the
standard asks for: they come from strangers, and no message may fail for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
TRACESTATE_CHARS_MAX = 512
TRACESTATE_MEMBERS_MAX = 32
RECORDED = 0x01

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}", re.ASCII)

Pairs = Sequence[tuple[str, bytes | None]]


class TraceContext(NamedTuple):
    """Trace and span, as numbers; `is_recorded`: whether the trace is kept. `state`: `tracestate`, "" for none."""

    trace_id: int
    span_id: int
    is_recorded: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_recorded:02x}"

    @property
    def headers(self) -> Pairs:
        """Return the headers of a record that belongs to this trace."""
        parent = (TRACEPARENT, self.traceparent.encode())
        return (parent, (TRACESTATE, self.state.encode())) if self.state else (parent,)


def context_of(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context that two headers say; None if the first is not valid. A `tracestate` that is not valid, or
    longer than 512 characters, is left out.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, later = found.groups()
    if version == "ff" or (version == "00" and later is not None):
        return None
    trace, span = int(trace_id, 16), int(span_id, 16)
    if not trace or not span:
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & RECORDED), valid_state(tracestate))


def valid_state(tracestate: str) -> str:
    """Return a `tracestate`, "" for one that is not valid."""
    if not tracestate or len(tracestate) > TRACESTATE_CHARS_MAX:
        return ""
    members = [member.strip(" \t") for member in tracestate.split(",")]
    given = [member for member in members if member]
    if len(given) > TRACESTATE_MEMBERS_MAX or not all(map(_MEMBER.fullmatch, given)):
        return ""
    return ",".join(given)


def recorded_context(headers: Iterable[tuple[str, bytes | None]]) -> TraceContext | None:
    """Return the context of the recorded trace that a record belongs to; None: it belongs to none. The last
    `traceparent` counts, because that is the one of who has sent the record on.
    """
    parent = state = None
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    if parent is None:
        return None
    found = context_of(parent.decode("latin-1"), (state or b"").decode("latin-1"))
    return found if found is not None and found.is_recorded else None


def trace_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return those headers of a record that say its trace."""
    return [(name, value) for name, value in headers if name in (TRACEPARENT, TRACESTATE)]


def with_context(headers: Any, carried: Pairs) -> Any:
    """Return the headers of a record together with those of a trace, unless they say a trace already. What is no
    headers is returned as it is, for the checks of the record.
    """
    if headers is None:
        return carried
    try:
        if isinstance(headers, Mapping):
            return headers if TRACEPARENT in headers else [*headers.items(), *carried]
        headers = list(headers)
        return headers if any(pair[0] == TRACEPARENT for pair in headers) else [*headers, *carried]
    except (TypeError, IndexError, KeyError):
        return headers

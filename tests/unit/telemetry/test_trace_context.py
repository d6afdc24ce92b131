"""W3C's Trace Context in headers of records. The examples of the standard, and what strangers may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.telemetry.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    context_of,
    recorded_context,
    trace_headers,
    valid_state,
    with_context,
)

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CARRIED = ((TRACEPARENT, PARENT.encode()),)

contexts = st.builds(
    TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans(), st.sampled_from(["", "a=1"])
)


def test_the_example_of_the_standard() -> None:
    assert context_of(PARENT) == TraceContext(TRACE, SPAN, True)
    assert context_of(PARENT.replace("-01", "-00")) == TraceContext(TRACE, SPAN, False)
    assert context_of(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7") == TraceContext(
        TRACE, SPAN, True, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
    )
    assert TraceContext(TRACE, SPAN, True).traceparent == PARENT


@given(contexts)
def test_what_is_written_is_read(context: TraceContext) -> None:
    assert context_of(context.traceparent, context.state) == context
    assert recorded_context(context.headers) == (context if context.is_recorded else None)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-00",
        PARENT + "\n",
        "ff" + PARENT[2:],
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        PARENT.replace("4bf9", "4bfg"),
        PARENT.replace("4bf9", "٤bf9"),
        PARENT + "0",
        "x" * 100_000,
    ],
)
def test_what_is_not_valid_is_as_if_it_were_not_there(parent: str) -> None:
    assert context_of(parent) is None
    assert recorded_context([(TRACEPARENT, parent.encode())]) is None


def test_a_later_version_may_say_more() -> None:
    assert context_of("01" + PARENT[2:] + "-what-comes-later") == TraceContext(TRACE, SPAN, True)
    assert context_of(PARENT.replace("-01", "-ff")) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("", ""),
        ("a=1", "a=1"),
        (" a=1 ,, b=2\t", "a=1,b=2"),
        ("tenant@vendor=x", "tenant@vendor=x"),
        ("a", ""),
        ("A=1", ""),
        ("a=1,b", ""),
        ("a=" + "x" * 300, ""),
        ("a=ü", ""),
        (",".join(f"a{number}=1" for number in range(32)), ",".join(f"a{number}=1" for number in range(32))),
        (",".join(f"a{number}=1" for number in range(33)), ""),
        (",".join(f"a{number}={'x' * 40}" for number in range(12)), ""),
    ],
)
def test_only_a_valid_state_of_512_characters_is_kept(state: str, kept: str) -> None:
    assert valid_state(state) == kept
    assert context_of(PARENT, state) == TraceContext(TRACE, SPAN, True, kept)


pairs = st.tuples(st.sampled_from([TRACEPARENT, TRACESTATE, "a"]), st.none() | st.binary(max_size=80))


@given(st.lists(pairs, max_size=6))
def test_headers_of_strangers_raise_nothing(headers: list[tuple[str, bytes | None]]) -> None:
    recorded_context([*headers, (TRACESTATE, b"\xff")])
    recorded_context([*CARRIED, *headers, (TRACESTATE, b"\xff")])


def test_the_last_header_counts() -> None:
    other = PARENT.replace("00f067aa0ba902b7", "00f067aa0ba902b8").encode()
    assert recorded_context([*CARRIED, ("h", None), (TRACEPARENT, other)]) == TraceContext(TRACE, SPAN + 1, True)
    assert recorded_context([*CARRIED, (TRACEPARENT, None)]) is None


def test_a_record_keeps_the_trace_that_its_headers_say() -> None:
    assert with_context(None, CARRIED) == CARRIED
    assert with_context({"a": b"1"}, CARRIED) == [("a", b"1"), *CARRIED]
    assert with_context([("a", b"1")], CARRIED) == [("a", b"1"), *CARRIED]
    assert with_context((pair for pair in [("a", b"1")]), CARRIED) == [("a", b"1"), *CARRIED]
    own = {TRACEPARENT: b"own"}
    assert with_context(own, CARRIED) == own
    assert with_context(list(own.items()), CARRIED) == [(TRACEPARENT, b"own")]
    assert trace_headers([("a", b"1"), *CARRIED, (TRACESTATE, b"a=1")]) == [*CARRIED, (TRACESTATE, b"a=1")]


@pytest.mark.parametrize("wrong", [5, [5], [()], "text", object()])
def test_wrong_headers_are_left_to_the_checks_of_the_record(wrong: object) -> None:
    with_context(wrong, CARRIED)

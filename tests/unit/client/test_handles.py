"""Handles of delayed messages: they keep what names the message, and no other text is taken for one."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.handles import PREFIX, handle_of, request_of
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb

MESSAGE = pb.RecallDelayedRequest(topic="orders", topic_id=7, partition=3, offset=2**40, row=9, due_us=-5)
HANDLE = handle_of(MESSAGE)


@given(
    st.builds(
        pb.RecallDelayedRequest,
        topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
        topic_id=st.integers(1, 2**64 - 1),
        partition=st.integers(0, 2**32 - 1),
        offset=st.integers(0, 2**64 - 1),
        row=st.integers(0, 2**32 - 1),
        due_us=st.integers(-(2**63), 2**63 - 1),
    )
)
def test_a_handle_keeps_what_it_names(message: pb.RecallDelayedRequest) -> None:
    handle = handle_of(message)
    assert request_of(handle) == message
    assert handle.isascii()
    assert handle.isprintable()
    assert " " not in handle


def test_a_handle_keeps_its_form() -> None:
    """Programs store handles."""
    assert HANDLE == "d1.ZPx0JAoGb3JkZXJzEAcYAyCAgICAgCAoCTD7__________8B"


@given(st.integers(0, len(HANDLE) - 1), st.sampled_from("AZaz09-_"))
def test_a_handle_with_another_character_is_refused(at: int, other: str) -> None:
    text = HANDLE[:at] + other + HANDLE[at + 1 :]
    if text != HANDLE:
        with pytest.raises(InvalidRequest, match="is not the handle of a delayed message"):
            request_of(text)


@given(st.text())
def test_other_text_is_refused(text: str) -> None:
    for given_text in (text, PREFIX + text):
        with pytest.raises(InvalidRequest, match="is not the handle"):
            request_of(given_text)


def of(data: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(crc32c(data).to_bytes(4, "big") + data).decode().rstrip("=")


@pytest.mark.parametrize(
    "handle",
    [of(b"\xff\xff"), of(b""), of(pb.RecallDelayedRequest(topic="t").SerializeToString()), HANDLE * 100, None, b"d1."],
)
def test_what_names_no_message_is_refused_with_a_fitting_checksum(handle: Any) -> None:
    with pytest.raises(InvalidRequest):
        request_of(handle)

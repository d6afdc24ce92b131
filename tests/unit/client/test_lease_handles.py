"""Handles of leased messages: they keep what names the message and its lease, and no other text is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.handles import HANDLE_CHARS_MAX, handle_of, text_of
from ledgermq.client.queues.leases.handles import (
    PREFIX,
    LeaseHandle,
    LeaseName,
    caller_hash,
    handle_of_lease,
    lease_of_handle,
)
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import OFFSET_MAX

LEASE = LeaseHandle("workers", TopicPartition("jobs", 3), 2**40, LeaseName(7, 9, 11), 2, 5, 30_000, True, 13)
HANDLE = handle_of_lease(LEASE)
U64 = st.integers(0, 2**64 - 1)
GROUPS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(
    st.builds(
        LeaseHandle,
        GROUPS,
        st.builds(TopicPartition, st.text("abzABZ019._-", min_size=1, max_size=200), st.integers(0, 2**31 - 1)),
        st.integers(0, OFFSET_MAX),
        st.builds(LeaseName, st.integers(1, 2**64 - 1), U64, U64),
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
        st.booleans(),
        U64,
    )
)
def test_a_handle_keeps_what_it_names(lease: LeaseHandle) -> None:
    handle = handle_of_lease(lease)
    assert lease_of_handle(handle) == lease
    assert len(handle) <= HANDLE_CHARS_MAX
    assert handle.isascii()


def test_a_handle_keeps_its_form() -> None:
    """One that an older release has given is answered by a newer one."""
    assert lease_of_handle(HANDLE) == LEASE
    assert HANDLE == (
        "q1.NfyouwAAAAAAAAAHAAAAAwAAAQAAAAAAAAAAAAAAAAkAAAAAAAAACwIFAAB1MAEAAAAAAAAADQAHd29ya2VycwAEam9icw"
    )


@given(st.integers(0, len(HANDLE) - 1), st.sampled_from("AZaz09-_"))
def test_a_handle_with_another_character_is_refused(at: int, other: str) -> None:
    text = HANDLE[:at] + other + HANDLE[at + 1 :]
    if text != HANDLE:
        with pytest.raises(InvalidRequest, match="is not the handle of a leased message"):
            lease_of_handle(text)


@given(st.binary(max_size=120))
def test_other_data_is_refused_with_a_fitting_checksum(data: bytes) -> None:
    text = text_of(PREFIX, data)
    try:
        found = lease_of_handle(text)
    except InvalidRequest:
        return
    assert handle_of_lease(found) == text


@pytest.mark.parametrize(
    "handle",
    [
        "",
        PREFIX,
        HANDLE[:-1],
        HANDLE + "A",
        HANDLE * 30,
        None,
        5,
        "q1.\udc80",
        handle_of(pb.RecallDelayedRequest(topic="jobs", topic_id=7)),
        handle_of_lease(LEASE._replace(offset=OFFSET_MAX + 1)),
        handle_of_lease(LEASE._replace(at=TopicPartition("jobs", 2**32 - 1))),
        handle_of_lease(LEASE._replace(lease=LeaseName(0, 1, 1))),
        handle_of_lease(LEASE._replace(dead_letters=2)),  # type: ignore[arg-type]
        handle_of_lease(LEASE._replace(group="")),
        handle_of_lease(LEASE._replace(at=TopicPartition("", 0))),
    ],
)
def test_what_names_no_lease_is_refused(handle: Any) -> None:
    with pytest.raises(InvalidRequest):
        lease_of_handle(handle)


def test_callers_are_told_apart() -> None:
    assert caller_hash("") == 0
    assert len({caller_hash(name) for name in ("", "user:alice", "user:bob", "user:alice ")}) == 4

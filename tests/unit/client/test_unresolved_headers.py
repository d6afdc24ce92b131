"""Records of other programs in a topic of unresolved messages."""

from __future__ import annotations

import pytest

from ledgermq.client.consuming.message import Message
from ledgermq.client.operating.unresolved import UnresolvedMessage, _take
from ledgermq.protocol.unresolved import CHECKS, ID, PARTITION, TOPIC


def message(partition: bytes, checks: bytes) -> Message:
    headers = ((ID, b"one"), (TOPIC, b"orders"), (PARTITION, partition), (CHECKS, checks))
    return Message("checkers.unresolved", 0, 7, None, b"x", headers, 0, None)


@pytest.mark.parametrize("text", [b"9" * 5_000, b"9" * 10, b"-1", "\u0662".encode(), b"1_0"])
def test_a_number_that_is_none_ends_no_list(text: bytes) -> None:
    """A program that may write to the topic ended each list of it."""
    found: dict[str, UnresolvedMessage] = {}
    _take(found, "checkers", message(text, b"0"), lambda name: True)
    assert not found, "it is no unresolved message"
    _take(found, "checkers", message(b"3", text), lambda name: True)
    assert (found["one"].partition, found["one"].checks) == (3, 0)

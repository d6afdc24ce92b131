"""Records of other programs in a topic of unresolved messages."""

from __future__ import annotations

import pytest

from ledgermq.client.consuming.message import Message
from ledgermq.client.operating.unresolved import UnresolvedMessage, _take
from ledgermq.protocol.naming.unresolved import CHECKS, ID, PARTITION, TOPIC


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


def test_a_record_that_the_cluster_stored_again_does_not_count() -> None:
    """Records of one half message that differ count, each once."""
    found: dict[str, UnresolvedMessage] = {}
    first, other = message(b"3", b"1"), message(b"3", b"1")._replace(value=b"other")
    for record in (first, other, first._replace(offset=9), other._replace(offset=10)):
        _take(found, "checkers", record, lambda name: True)
    assert [each.value for each in found["one"].messages] == [b"x", b"other"]
    assert (found["one"].offset, found["one"].bytes) == (7, len("xother"))

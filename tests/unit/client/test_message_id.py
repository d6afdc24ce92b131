"""Ids of messages: text and back, and what is no id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.producing.delivery import Failed, SendResult, Spilled
from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol.limits import OFFSET_MAX

names = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(names, st.integers(0, 10**6), st.integers(0, OFFSET_MAX))
def test_an_id_is_read_back(topic: str, partition: int, offset: int) -> None:
    wanted = MessageId(topic, partition, offset)
    assert MessageId.parse(str(wanted)) == wanted


@given(st.text().filter(lambda text: text.count(":") != 2))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give TOPIC:PARTITION:OFFSET"):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["orders:3:４", "orders:3:1\n", " orders:3:1", "orders/3:1", f"o:0:{OFFSET_MAX + 1}"])
def test_nearly_an_id(text: str) -> None:
    with pytest.raises(InvalidRequest):
        MessageId.parse(text)


def test_results_without_an_offset_have_no_id() -> None:
    assert SendResult("orders", 3, 7, 0).message_id == MessageId("orders", 3, 7)
    for result in (
        SendResult("orders", 3, -1, 0),
        SendResult("orders", 3, None, 0),
        Spilled("orders", 3, None, 0),
        Failed.at(TopicPartition("orders", 3), Unavailable("no broker")),
    ):
        assert result.message_id is None

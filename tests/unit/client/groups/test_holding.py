"""What a program says of messages counts as long as the partition is held, and never for more than
it said.
"""

from __future__ import annotations

from ledgermq.client.consuming.reading import Reading
from ledgermq.client.groups.holding.holding import Event, Holding
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import GivenPartition
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources


def held(sought: list[int]) -> Holding:
    at = TopicPartition("t", 0)
    holding = Holding(GivenPartition(at, 1, 7), lambda _: None, lambda _, offset, delay_s: sought.append(offset))
    holding.load(0, None)
    holding.reading = Reading(at, 1, 0, Backoff(Sources(), 0.001, 0.001))
    holding.progress.hand_out(0, 10)
    return holding


def test_what_is_refused_while_the_partition_is_let_go_is_not_committed_with_what_is_behind_it() -> None:
    sought: list[int] = []
    holding = held(sought)
    holding.advance(Event.ANNOUNCE)
    holding.advance(Event.BEGIN)
    holding.advance(Event.LET_GO)
    assert holding.roll_back(4, 0, 0.0)
    assert sought == [], "it comes again to another member"
    assert [holding.ack(offset, 0) for offset in range(10)] == [True] * 4 + [False] * 6
    assert (holding.to_commit, holding.outstanding) == (4, 0)


def test_a_refusal_seeks_back_to_the_message() -> None:
    sought: list[int] = []
    holding = held(sought)
    assert holding.roll_back(4, 0, 0.0)
    assert sought == [4]


def test_nothing_counts_once_it_is_gone() -> None:
    holding = held([])
    holding.advance(Event.END)
    assert not holding.ack(0, 0)
    assert not holding.roll_back(1, 0, 0.0)
    assert holding.to_commit is None

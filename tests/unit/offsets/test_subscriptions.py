"""What a member may ask for, and what its pattern means."""

from __future__ import annotations

import time

import pytest

from ledgermq.errors import InvalidGroupName, InvalidRequest, InvalidTopicName
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.membership.subscriptions import Meanings, compile_pattern, read_subscription
from ledgermq_offsets.names import check_group_name
from ledgermq_offsets.state.records import Subscription
from tests.worlds.coordinators import Catalog

LIMITS = GroupLimits()


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "x" * 250, "a\n", "\x00"])
def test_illegal_group_names(name: str) -> None:
    with pytest.raises(InvalidGroupName):
        check_group_name(name)


@pytest.mark.parametrize("name", ["a", "x" * 249, "A-1_b.c", ".."])
def test_legal_group_names(name: str) -> None:
    assert check_group_name(name) == name


@pytest.mark.parametrize(
    "asked",
    [
        pb.GroupSubscription(),
        pb.GroupSubscription(topics=["t"], topic_pattern="t"),
        pb.GroupSubscription(topics=["t"], assignor="fair"),
        pb.GroupSubscription(topics=["t"], instance_id="a/b"),
        pb.GroupSubscription(topics=["t"], rack="r" * 250),
        pb.GroupSubscription(topics=["t"], client_id="c" * 250),
        pb.GroupSubscription(topics=["t"], session_timeout_ms=1),
        pb.GroupSubscription(topics=["t"], session_timeout_ms=4_000_000_000),
        pb.GroupSubscription(topics=["t"], rebalance_timeout_ms=4_000_000_000),
        pb.GroupSubscription(topics=[f"t{number}" for number in range(1001)]),
        pb.GroupSubscription(topics=[f"{number:0249}" for number in range(1000)]),
        pb.GroupSubscription(topics=["t"], filter="a" * 8193),
        pb.GroupSubscription(topic_pattern="("),
        pb.GroupSubscription(topic_pattern="x" * 1001),
        pb.GroupSubscription(topic_pattern=r"(a)\1"),
        pb.GroupSubscription(topic_pattern="(?:((a|[a-z0-9.-])?.?){250}){4}Q"),
        pb.GroupSubscription(topic_pattern="((((x{30}){30}){30}){30}){30}"),
    ],
)
def test_requests_that_a_member_may_not_make(asked: pb.GroupSubscription) -> None:
    with pytest.raises(InvalidRequest):
        read_subscription(asked, LIMITS)


@pytest.mark.parametrize(
    "pattern", ["|".join(f"orders-{number:03}" for number in range(90)), ".*".join("abcdefghijklmnopqrstuvwxyz" * 4)]
)
def test_patterns_that_a_member_may_name(pattern: str) -> None:
    assert read_subscription(pb.GroupSubscription(topic_pattern=pattern), LIMITS).topic_pattern == pattern


def test_an_illegal_topic_name_is_named() -> None:
    with pytest.raises(InvalidTopicName, match="a b"):
        read_subscription(pb.GroupSubscription(topics=["a b"]), LIMITS)


def test_defaults_are_filled_in() -> None:
    assert read_subscription(pb.GroupSubscription(topics=["u", "t", "u"]), LIMITS) == Subscription(
        ("t", "u"), "", "uniform", "", "", "", 45_000, 300_000, "*"
    )


def test_a_pattern_that_hangs_backtracking_engines_is_answered_at_once() -> None:
    begun = time.process_time()
    assert compile_pattern("(a+)+$", LIMITS).fullmatch("a" * 248 + "!") is None
    assert compile_pattern("(.*)(.*)(.*)(.*)(.*)(.*)x", LIMITS).fullmatch("a" * 249) is None
    assert time.process_time() - begun < 5  # a backtracking engine needs longer than the universe has had


def test_a_pattern_matches_whole_names_of_user_topics() -> None:
    catalog = Catalog()
    for name in ("orders", "orders-eu", "old-orders"):
        catalog.create(name, 1)
    meanings = Meanings(catalog, LIMITS)
    subscription = Subscription(topic_pattern="orders.*")
    assert [topic.name for topic in meanings.topics(subscription)] == ["orders", "orders-eu"]
    catalog.create("orders-us", 1)
    catalog.remove("orders")
    assert [topic.name for topic in meanings.topics(subscription)] == ["orders-eu", "orders-us"]


def test_what_patterns_mean_is_remembered_for_a_bounded_number_of_them() -> None:
    meanings = Meanings(Catalog(), GroupLimits(members_max=10))
    for number in range(100):
        meanings.topics(Subscription(topic_pattern=f"t{number}"))
    assert len(meanings._known) <= 10

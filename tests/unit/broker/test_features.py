"""The declarations of features: brokers walk them, so their order and their names are promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from ledgermq.errors import DataDamaged
from ledgermq_broker.exclusive.holders import EXCLUSIVE
from ledgermq_broker.features import ANNOUNCED, FEATURES
from ledgermq_broker.groups.groups import GROUPS
from ledgermq_broker.internal.feature import BrokerParts, Opened, Serving, one_of
from ledgermq_broker.queues.shares import QUEUES
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.timed.timers import TIMED
from ledgermq_broker.transactions.transactions import TRANSACTIONS

PARTS = cast(BrokerParts, None)


class Idle(Serving[Any]):
    """A feature that serves nothing and refuses one partition."""

    def __init__(self) -> None:
        pass

    def refused(self) -> dict[int, Any]:
        return {3: DataDamaged("the record is damaged", object_key="ledgers/0001/segments/1")}


def test_features_are_opened_in_this_order() -> None:
    assert FEATURES == (GROUPS, TRANSACTIONS, TIMED, QUEUES, EXCLUSIVE)
    assert [spec.name for feature in FEATURES for spec in feature.topics] == [
        "__consumer_offsets",
        "__staged",
        "__transactions",
        "__delayed",
        "__delayed_far",
        "__timers",
        "__shares",
        "__holders",
    ], "what holds bytes is created before anything can refer to it"


def test_heartbeats_announce_all_words_of_the_release_before() -> None:
    assert set(ANNOUNCED) >= {
        *("transactions", "timers", "shares", "exclusive producers"),
        *("rules", "quotas", "added bundles", "loads", "moves"),
    }
    assert len(set(ANNOUNCED)) == len(ANNOUNCED)
    assert not GROUPS.announced, "every release serves groups"


def test_each_feature_has_its_own_word_and_topics() -> None:
    assert len({feature.what for feature in FEATURES}) == len(FEATURES)
    names = [spec.name for feature in FEATURES for spec in feature.topics]
    assert len(set(names)) == len(names)
    metrics = [gauge.name for feature in FEATURES for gauge in feature.gauges(None)]
    assert len(set(metrics)) == len(metrics)
    assert all(any("refused" in gauge.name for gauge in feature.gauges(None)) for feature in FEATURES)


def test_a_feature_uses_only_those_that_are_open_before_it() -> None:
    features = [replace(feature, open=lambda parts: Idle()) for feature in (GROUPS, QUEUES)]
    opened = Opened()
    with pytest.raises(AssertionError, match="groups are not open yet"):
        opened.of(GROUPS)
    opened.open_all(features, PARTS)
    assert [opened.of(feature) for feature in features] == [*opened]
    assert opened.of(GROUPS) is not opened.of(QUEUES)


def test_a_partition_that_cannot_be_served_is_named_with_what_that_means() -> None:
    opened = Opened()
    opened.open_all([replace(feature, open=lambda parts: Idle()) for feature in (TIMED, EXCLUSIVE)], PARTS)
    assert opened.refusals() == [
        "timed messages of partition 3 of __timers: the record is damaged",
        "exclusive producers of partition 3 of __holders, whose bundle takes no records: the record is damaged",
    ]


def test_limits_and_observers_are_found_by_their_type() -> None:
    chosen = ShareLimits(ended_within_ms=1)
    assert one_of((object(), chosen), ShareLimits) is chosen
    assert one_of((), ShareLimits) == ShareLimits()

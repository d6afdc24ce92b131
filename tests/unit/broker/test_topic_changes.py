"""Changes of topics: what is allowed, what is refused and how, where partitions go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopicName,
    LedgerMQError,
    ResourceExhausted,
    TopicBeingDeleted,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq_broker.features import FEATURES
from ledgermq_broker.metadata.topic_changes import (
    TopicLimits,
    altered,
    created,
    created_internal,
    created_internal_topic,
    deleted,
    grace_ended,
    moved,
    undeleted,
    with_more_bundles,
)
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.partitions.moves import MOVES_END
from ledgermq_ledger.topics.catalog import Catalog, grown
from ledgermq_ledger.topics.topic import PartitionMove, Topic, Trash, encode_topic_record, topic_key

LIMITS = TopicLimits(default_partitions=4, partitions_max=100, topics_max=5)
BUNDLES = 5
CLUSTER = ClusterSettings(bundles=3)
SPECS = {spec.name: spec for feature in FEATURES for spec in feature.topics}


def put(catalog: Catalog, topic: Topic) -> Topic:
    catalog.apply(catalog.offset, topic_key(topic.name), encode_topic_record(topic, creation=topic.id < 0))
    return catalog.topics_by_name[topic.name]


def create(catalog: Catalog, name: str, partitions: int = 0, **settings: str) -> Topic:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return put(catalog, created(catalog, name, partitions, named, BUNDLES, LIMITS, now_ms=7))


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.apply(0, b"founding", b"")
    return catalog


@pytest.mark.parametrize("name", ["123", "2024-01-01", "true", "a", "x" * 249, "A.b_c-d", "_single", "1e5", "null"])
def test_names_that_look_like_something_else_are_names(catalog: Catalog, name: str) -> None:
    topic = create(catalog, name)
    assert (topic.name, topic.partitions, topic.id, topic.created_ms) == (name, 4, 1, 7)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "x" * 250, "naïve", "a b", "a\n", "__metadata", "__own", "a\x00"]
)
def test_names_that_are_refused(catalog: Catalog, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        create(catalog, name)


def test_partitions_go_where_fewest_are_and_never_to_bundle_0(catalog: Catalog) -> None:
    topics = [create(catalog, "a", 3), create(catalog, "b", 6), create(catalog, "c", 7)]
    load = Counter(bundle for topic in topics for bundle in topic.bundles)
    assert load == {1: 4, 2: 4, 3: 4, 4: 4}


@pytest.fixture
def moves() -> Catalog:
    """A catalog of a process that follows moves; topic `t` has its partitions in the bundles 1, 2 and 3."""
    catalog = Catalog()
    catalog.apply(0, b"founding", b"")
    create(catalog, "t", 3)
    return catalog


def move(catalog: Catalog, partition: int, bundle: int) -> Topic:
    return put(catalog, moved(catalog, "t", partition, bundle, BUNDLES))


def end_move(catalog: Catalog, partition: int) -> Topic:
    topic = catalog.living("t")
    ended = {**topic.moves, partition: replace(topic.moves[partition], ended=True)}
    return put(catalog, replace(topic, moves=ended))


def test_a_moved_partition_has_its_new_bundle_at_once_and_the_move_has_the_offset_as_id(moves: Catalog) -> None:
    offset = moves.offset
    topic = move(moves, 1, 4)
    assert topic.bundles == (1, 4, 3)
    assert topic.moves == {1: PartitionMove(offset, source=2, count=1)}
    assert (topic.id, topic.altered_ms, topic.settings.partitions_moved) == (1, 0, True)
    assert move(moves, 0, 4).moves[1] == PartitionMove(offset, source=2, count=1), "the move of another partition stays"


def test_a_repeated_move_changes_nothing_and_another_one_waits_for_the_end(moves: Catalog) -> None:
    topic = move(moves, 1, 4)
    assert moved(moves, "t", 1, 4, BUNDLES) is topic
    assert moved(moves, "t", 0, 1, BUNDLES) is topic, "it is there"
    with pytest.raises(Unavailable, match="t/1 still moves from bundle 2 to bundle 4"):
        moved(moves, "t", 1, 2, BUNDLES)
    first = end_move(moves, 1).moves[1]
    offset = moves.offset
    assert move(moves, 1, 2).moves == {1: PartitionMove(offset, source=4, before=first.id, count=2)}


def test_a_topic_is_not_deleted_while_a_partition_is_between_two_bundles(moves: Catalog) -> None:
    move(moves, 2, 1)
    with pytest.raises(Unavailable, match="t/2 still moves"):
        deleted(moves, "t", 0, 0, 7)
    end_move(moves, 2)
    assert deleted(moves, "t", 0, 0, 7).removed


@pytest.mark.parametrize(
    ("name", "partition", "bundle", "error"),
    [
        ("unknown", 0, 1, UnknownTopic),
        ("__metadata", 0, 1, InvalidTopicName),
        ("t", 3, 1, UnknownPartition),
        ("t", -1, 1, UnknownPartition),
        ("t", 0, 0, InvalidRequest),
        ("t", 0, BUNDLES, InvalidRequest),
        ("t", 0, -1, InvalidRequest),
    ],
)
def test_moves_that_are_refused(
    moves: Catalog, name: str, partition: int, bundle: int, error: type[LedgerMQError]
) -> None:
    with pytest.raises(error):
        moved(moves, name, partition, bundle, BUNDLES)


def test_no_move_gets_an_id_that_an_opened_slot_has_no_room_for(moves: Catalog) -> None:
    moves.offset = MOVES_END - 1
    moved(moves, "t", 0, 4, BUNDLES)
    moves.offset = MOVES_END
    with pytest.raises(InvalidRequest, match="only within the first 8388608 records"):
        moved(moves, "t", 0, 4, BUNDLES)


def test_an_altered_topic_keeps_its_moves(moves: Catalog) -> None:
    before = move(moves, 1, 4)
    topic = put(moves, altered(moves, "t", 5, {"retention.ms": "9"}, [], BUNDLES, LIMITS, now_ms=11))
    assert (topic.moves, topic.bundles[:3]) == (before.moves, before.bundles)
    with pytest.raises(InvalidConfig, match="set by the system only"):
        altered(moves, "t", 0, {}, ["partitions.moved"], BUNDLES, LIMITS, now_ms=12)


def test_topics_of_transactions_have_a_partition_in_each_user_bundle_and_unbalance_nothing(catalog: Catalog) -> None:
    users = [create(catalog, "a", 3)]
    staged = put(catalog, created_internal(catalog, SPECS["__staged"], BUNDLES, LIMITS, now_ms=7))
    transactions = put(catalog, created_internal(catalog, SPECS["__transactions"], BUNDLES, LIMITS, now_ms=8))
    assert staged.bundles == transactions.bundles == (1, 2, 3, 4)
    assert (staged.raw_settings, transactions.raw_settings) == (
        {"internal.kind": "staged"},
        {"transaction.coordinators": "4"},
    )
    assert (staged.staged, transactions.staged, users[0].staged) == (True, False, False)
    assert (staged.created_ms, transactions.created_ms) == (7, 8)
    users += [create(catalog, "b", 6), create(catalog, "c", 7)]
    load = Counter(bundle for topic in users for bundle in topic.bundles)
    assert load == {1: 4, 2: 4, 3: 4, 4: 4}
    for name in ("__staged", "__transactions"):
        with pytest.raises(TopicExists):
            created_internal(catalog, SPECS[name], BUNDLES, LIMITS, now_ms=9)


def test_topics_of_timed_messages_have_the_same_partitions_in_each_user_bundle(catalog: Catalog) -> None:
    create(catalog, "a", 3)
    near, far, timers = (
        put(catalog, created_internal(catalog, SPECS[name], BUNDLES, LIMITS, now_ms=7))
        for name in ("__delayed", "__delayed_far", "__timers")
    )
    assert timers.bundles == (1, 2, 3, 4)
    for bundle in range(1, BUNDLES):
        assert timers.bundles[keys.bundle_partition(bundle)] == bundle
        assert list(near.partitions_in(bundle)) == [keys.near_partition(bundle, j) for j in range(keys.NEAR_PARTITIONS)]
        assert list(far.partitions_in(bundle)) == [keys.far_partition(bundle, j) for j in range(keys.FAR_PARTITIONS)]
    assert (near.partitions, far.partitions) == (4 * 17, 4 * 128)
    assert list(far.partitions_in(0)) == []
    kinds = [(topic.compacted, topic.staged, topic.hidden) for topic in (timers, near, far)]
    assert kinds == [(True, False, False), (False, True, False), (False, False, True)]
    assert far.raw_settings["internal.kind"] == "hidden"
    assert far.settings.parquet_max_lag_ms == 3_600_000
    user = create(catalog, "b", 2)
    assert (user.compacted, user.staged, user.hidden) == (False, False, False)
    with pytest.raises(TopicExists):
        created_internal(catalog, SPECS["__delayed"], BUNDLES, LIMITS, now_ms=9)


def test_existing_names_and_names_that_are_not_free_yet(catalog: Catalog) -> None:
    topic = create(catalog, "a")
    with pytest.raises(TopicExists):
        create(catalog, "a")
    put(catalog, deleted(catalog, "a", 0, 0, 7))
    with pytest.raises(TopicBeingDeleted) as refused:
        create(catalog, "a")
    assert refused.value.retry_after_ms
    with pytest.raises(TopicBeingDeleted):
        deleted(catalog, "a", 0, 0, 7)
    catalog.apply(catalog.offset, topic_key("a"), None)
    assert create(catalog, "a").id > topic.id


def test_a_topic_with_files_as_large_as_an_older_version_allowed_can_be_altered(catalog: Catalog) -> None:
    too_large = {"parquet.target.bytes": str(2**34)}
    with pytest.raises(InvalidConfig, match="from 1024 to 1073741824"):
        created(catalog, "t", 1, too_large, BUNDLES, LIMITS, now_ms=7)
    put(catalog, Topic(-1, "t", (1,), too_large))
    wish = altered(catalog, "t", 0, {"retention.ms": "1000"}, [], BUNDLES, LIMITS, now_ms=8)
    assert (wish.settings.retention_ms, wish.settings.parquet_target_bytes) == (1000, 2**30)
    for change in (too_large, {"parquet.target.bytes": "many"}, {"no.such": "1"}):
        with pytest.raises(InvalidConfig):
            altered(catalog, "t", 0, change, [], BUNDLES, LIMITS, now_ms=8)


def test_bounds(catalog: Catalog) -> None:
    with pytest.raises(InvalidRequest):
        create(catalog, "a", 101)
    for i in range(5):
        create(catalog, f"t{i}")
        put(catalog, created_internal_topic(catalog, f"__{i}", (1,), {}, now_ms=7))  # a bound of users' topics
    with pytest.raises(ResourceExhausted):
        create(catalog, "one-more")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"retention.msx": "1"}, "did you mean 'retention.ms'"),
        ({"cleanup.policy": "x"}, "one of"),
        ({"internal.kind": "staged"}, "'internal.kind' is set by the system only"),
        ({"transaction.coordinators": "3"}, "'transaction.coordinators' is set by the system only"),
        ({"retention.ms": " " * 1000 + "1"}, "at most 200 characters"),
    ],
)
def test_settings_are_checked(catalog: Catalog, settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        created(catalog, "a", 1, settings, BUNDLES, LIMITS, 0)


def test_alter_grows_and_sets(catalog: Catalog) -> None:
    topic = create(catalog, "a", 2, retention_ms="5")
    changed = put(catalog, altered(catalog, "a", 5, {"accept.publish": "false"}, ["retention.ms"], BUNDLES, LIMITS, 9))
    assert changed.bundles[:2] == topic.bundles
    assert (changed.id, changed.partitions, changed.raw_settings) == (topic.id, 5, {"accept.publish": "false"})
    assert not changed.settings.accept_publish
    assert changed.settings.retention_ms == -1


@pytest.mark.parametrize(
    ("name", "partitions", "change", "unset", "error"),
    [
        ("a", 1, {}, [], InvalidRequest),
        ("a", 101, {}, [], InvalidRequest),
        ("b", 0, {}, [], UnknownTopic),
        ("__metadata", 9, {}, [], InvalidTopicName),
        ("a", 0, {}, ["retention.mss"], InvalidConfig),
        ("a", 0, {"retention.ms": "1"}, ["retention.ms"], InvalidConfig),
        ("a", 0, {"retention.ms": "-2"}, [], InvalidConfig),
        ("a", 0, {"internal.kind": "staged"}, [], InvalidConfig),
        ("a", 0, {}, ["transaction.coordinators"], InvalidConfig),
        ("__staged", 9, {}, [], InvalidTopicName),
    ],
)
def test_alterations_that_are_refused(
    catalog: Catalog, name: str, partitions: int, change: dict[str, str], unset: list[str], error: type[LedgerMQError]
) -> None:
    create(catalog, "a", 2)
    with pytest.raises(error):
        altered(catalog, name, partitions, change, unset, BUNDLES, LIMITS, 9)


def grow(catalog: Catalog, before: int, bundles: int) -> list[Topic]:
    changed = with_more_bundles(catalog, before, bundles, 9, SPECS.values())
    for topic in changed:
        put(catalog, topic)
    return changed


def test_added_bundles_come_with_their_internal_partitions(catalog: Catalog) -> None:
    put(catalog, created_internal(catalog, SPECS[keys.STAGED_TOPIC], 3, LIMITS, now_ms=1))
    put(catalog, created_internal(catalog, SPECS[keys.TRANSACTIONS_TOPIC], 3, LIMITS, now_ms=1))
    for name in (keys.DELAYED_TOPIC, keys.DELAYED_FAR_TOPIC, keys.TIMERS_TOPIC):
        put(catalog, created_internal(catalog, SPECS[name], 3, LIMITS, now_ms=1))
    put(catalog, created_internal(catalog, SPECS[keys.OFFSETS_TOPIC], 3, LIMITS, now_ms=1))
    before = dict(catalog.topics_by_name)
    changed = grow(catalog, 3, 5)
    assert [topic.name for topic in changed] == [
        keys.METADATA_TOPIC,
        keys.STAGED_TOPIC,
        keys.TRANSACTIONS_TOPIC,
        keys.DELAYED_TOPIC,
        keys.DELAYED_FAR_TOPIC,
        keys.TIMERS_TOPIC,
    ]
    for name, topic in before.items():
        now = catalog.topics_by_name[name]
        assert now.id == topic.id
        assert now.bundles[: topic.partitions] == topic.bundles
    assert catalog.topics_by_name[keys.OFFSETS_TOPIC] == before[keys.OFFSETS_TOPIC], "groups stay where they are"
    assert catalog.topics_by_name[keys.TRANSACTIONS_TOPIC].settings.transaction_coordinators == 2
    for bundle in range(1, 5):
        for name, place in (
            (keys.STAGED_TOPIC, bundle - 1),
            (keys.TRANSACTIONS_TOPIC, bundle - 1),
            (keys.TIMERS_TOPIC, keys.bundle_partition(bundle)),
            (keys.DELAYED_TOPIC, keys.near_partition(bundle, keys.NEAR_PARTITIONS - 1)),
            (keys.DELAYED_FAR_TOPIC, keys.far_partition(bundle, 0)),
        ):
            assert catalog.topics_by_name[name].bundles[place] == bundle
    whole = created_internal(catalog, SPECS[keys.SHARES_TOPIC], catalog.bundles(CLUSTER), LIMITS, now_ms=2)
    assert whole.bundles == (1, 2, 3, 4), "a topic that comes later is made for all"


def test_the_number_of_bundles_only_grows(catalog: Catalog) -> None:
    assert catalog.bundles(CLUSTER) == 3
    for wanted in (2, 3):
        assert with_more_bundles(catalog, 3, wanted, 9, SPECS.values()) == []
    grow(catalog, 3, 7)
    assert catalog.bundles(CLUSTER) == 7
    assert catalog.topics_by_id[keys.METADATA_TOPIC_ID].name == keys.METADATA_TOPIC
    assert with_more_bundles(catalog, 7, 6, 9, SPECS.values()) == []
    [metadata] = grow(catalog, 7, 9)
    assert (metadata.bundles, catalog.bundles(CLUSTER)) == ((keys.METADATA_BUNDLE,), 9)
    assert catalog.bundles(ClusterSettings(bundles=12)) == 12, "never less than what the cluster began with"
    assert grown(CLUSTER, catalog) == replace(CLUSTER, bundles=9)


def test_a_deleted_topic_is_kept_for_its_grace_and_comes_back_as_it_was(catalog: Catalog) -> None:
    topic = create(catalog, "a", 2, retention_ms="5000")
    put(catalog, deleted(catalog, "a", 0, 1000, 50))
    kept = catalog.topics_by_name["a"]
    assert (kept.trash, kept.living, kept.removed) == (Trash(50, 1000), False, False)
    assert (kept in catalog.living_topics(), list(catalog.trashed), list(catalog.removed)) == (False, ["a"], [])
    assert not catalog.is_removed(topic.id, catalog.offset)
    assert deleted(catalog, "a", 0, 9999, 60) is kept, "a repetition changes nothing"
    assert grace_ended(catalog, topic.id, 1049) is None
    with pytest.raises(TopicExists, match="undelete a` brings it back"):
        create(catalog, "a")
    back = put(catalog, undeleted(catalog, "a", 70))
    assert (back.id, back.bundles, back.raw_settings) == (topic.id, topic.bundles, topic.raw_settings)
    assert (back.trash, back.undeleted_ms, back.altered_ms) == (None, 70, 70)
    assert undeleted(catalog, "a", 80) is back, "a repetition changes nothing"
    assert grace_ended(catalog, topic.id, 10**15) is None


def test_what_is_removed_never_comes_back(catalog: Catalog) -> None:
    topic = create(catalog, "a")
    put(catalog, deleted(catalog, "a", 0, 1000, 50))
    over = grace_ended(catalog, topic.id, 1050)
    assert over is not None
    assert (over.removed, over.trash) == (True, None)
    put(catalog, over)
    with pytest.raises(UnknownTopic, match="deleted for good"):
        undeleted(catalog, "a", 1060)
    assert grace_ended(catalog, topic.id, 2000) is None
    catalog.apply(catalog.offset, topic_key("a"), None)
    with pytest.raises(UnknownTopic, match="does not exist"):
        undeleted(catalog, "a", 1070)


def test_a_grace_is_cut_short_on_demand_alone(catalog: Catalog) -> None:
    topic = create(catalog, "a")
    put(catalog, deleted(catalog, "a", 0, 1000, 50))
    with pytest.raises(UnknownTopic):
        deleted(catalog, "a", topic.id + 1, 0, 60)
    assert deleted(catalog, "a", topic.id, 0, 60).removed


def test_a_topic_sets_its_own_grace(catalog: Catalog) -> None:
    assert LIMITS.grace_ms_of(create(catalog, "a")) == 24 * 3600 * 1000
    assert LIMITS.grace_ms_of(create(catalog, "b", topic_delete_grace_ms="0")) == 0
    assert LIMITS.grace_ms_of(create(catalog, "c", topic_delete_grace_ms="7000")) == 7000

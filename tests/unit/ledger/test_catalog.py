"""Topics as a fold of `__metadata`, their settings, and how a removed one leaves a bundle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    InvalidConfig,
    InvalidTopicName,
    TopicBeingDeleted,
    UnknownTopic,
)
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import genesis
from ledgermq_ledger.topics.catalog import HINT_TOPICS_MAX, Catalog
from ledgermq_ledger.topics.facts import facts_in, may_remove
from ledgermq_ledger.topics.removal import confirm_deleted, is_past_barrier, note_barrier, take_in_facts
from ledgermq_ledger.topics.settings import (
    PARQUET_TARGET_BYTES_MAX,
    PARTITIONS_MOVED,
    TopicSettings,
    parse_settings,
    parse_stored_settings,
)
from ledgermq_ledger.topics.tables import GENERATION, LET_GO
from ledgermq_ledger.topics.topic import TRASHED, PartitionMove, Topic, Trash, encode_topic_record, removed, topic_key


def create(catalog: Catalog, offset: int, name: str, bundles: tuple[int, ...] = (1,)) -> Topic:
    catalog.apply(offset, topic_key(name), encode_topic_record(Topic(0, name, bundles), creation=True))
    return catalog.living(name)


def remove(catalog: Catalog, offset: int, topic: Topic) -> None:
    catalog.apply(offset, topic_key(topic.name), encode_topic_record(removed(topic)))


def test_a_topic_id_is_the_offset_of_its_creation_record() -> None:
    catalog = Catalog()
    assert create(catalog, 5, "t").id == 5
    assert catalog.offset == 6


def test_topics_with_tables_are_known_without_a_search_and_let_go_when_they_change() -> None:
    catalog = Catalog()
    topic = create(catalog, 5, "t")
    create(catalog, 6, "plain")
    for offset, generation, let_go in ((7, 3, 0), (8, 0, 3), (9, 0, 0)):
        raw = {name: str(value) for name, value in ((GENERATION, generation), (LET_GO, let_go)) if value}
        settings = parse_stored_settings(raw)
        changed = replace(topic, raw_settings=raw, settings=settings)
        catalog.apply(offset, topic_key("t"), encode_topic_record(changed))
        assert [*catalog.tabled] == ["t"] * bool(generation)
        assert [*catalog.let_go] == ["t"] * bool(let_go)
    tabled = replace(topic, raw_settings={GENERATION: "9"}, settings=parse_stored_settings({GENERATION: "9"}))
    catalog.apply(10, topic_key("t"), encode_topic_record(tabled))
    assert catalog.tabled["t"].version == 10
    remove(catalog, 11, catalog.living("t"))
    assert catalog.tabled == {}


class Unsearched(dict[str, Topic]):
    """Names that are found, and never looked through."""

    def values(self) -> Any:
        raise AssertionError("all topics were looked through")


def test_an_unknown_name_is_not_compared_with_those_of_a_large_catalog() -> None:
    catalog = Catalog()
    for offset in range(HINT_TOPICS_MAX):
        create(catalog, offset, f"topic-{offset}")
    with pytest.raises(UnknownTopic, match="did you mean 'topic-77'"):
        catalog.living("topic-77x")
    create(catalog, HINT_TOPICS_MAX, "one-more")
    catalog.topics_by_name = Unsearched(catalog.topics_by_name)
    with pytest.raises(UnknownTopic) as refused:
        catalog.living("topic-77x")
    assert "did you mean" not in refused.value.message


def moving(*, move: int = 0, source: int = 2, before: int = 0, partition: int = 0, setting: bool = True) -> bytes:
    """The record of topic `t`, with one partition in bundle 1, that came there by a move."""
    record = fmt.TopicRecord(topic_id=5, name="t", bundles=[1])
    if setting:
        record.settings[PARTITIONS_MOVED] = "true"
    if partition >= 0:
        record.moves.add(partition=partition, move=move, source=source, before=before)
    return record.SerializeToString()


def test_a_move_has_the_offset_of_its_record_as_id_and_keeps_it() -> None:
    catalog = Catalog()
    create(catalog, 5, "t")
    catalog.apply(8, topic_key("t"), moving(before=6))
    topic = catalog.living("t")
    assert topic.moves == {0: PartitionMove(8, source=2, before=6)}
    catalog.apply(11, topic_key("t"), encode_topic_record(topic))
    assert (catalog.living("t").moves, catalog.living("t").version) == (topic.moves, 11)
    assert catalog.living("t").id == 5


@pytest.mark.parametrize(
    "value",
    [
        moving(move=9),
        moving(before=8),
        moving(move=7, before=7),
        moving(source=1),
        moving(source=0),
        moving(partition=1),
        moving(partition=-1),
        moving(setting=False),
        moving() + fmt.TopicRecord(moves=[fmt.PartitionMove(partition=0, source=2)]).SerializeToString(),
    ],
)
def test_moves_that_contradict_their_topic_are_damage(value: bytes) -> None:
    catalog = Catalog()
    before = create(catalog, 5, "t")
    with pytest.raises(DataDamaged, match="record 8 of __metadata: the moves of topic 't' contradict"):
        catalog.apply(8, topic_key("t"), value)
    assert (catalog.offset, catalog.living("t")) == (6, before)


def test_a_name_that_is_created_again_is_another_topic() -> None:
    catalog = Catalog()
    old = create(catalog, 5, "t")
    remove(catalog, 6, old)
    with pytest.raises(TopicBeingDeleted):
        catalog.living("t")
    catalog.apply(7, topic_key("t"), None)
    with pytest.raises(UnknownTopic):
        catalog.living("t")
    new = create(catalog, 8, "t")
    assert new.id != old.id
    assert catalog.is_removed(old.id, catalog.offset)
    assert not catalog.is_removed(new.id, catalog.offset)


def test_an_id_above_the_known_facts_is_not_removed_but_unknown() -> None:
    catalog = Catalog()
    create(catalog, 5, "t")
    assert not catalog.is_removed(9, catalog.offset)
    assert catalog.is_removed(3, catalog.offset)
    assert not catalog.is_removed(3, 3)


def test_records_are_applied_once() -> None:
    catalog = Catalog()
    topic = create(catalog, 5, "t")
    remove(catalog, 6, topic)
    catalog.apply(5, topic_key("t"), encode_topic_record(topic))
    with pytest.raises(TopicBeingDeleted):
        catalog.living("t")


def test_a_damaged_record_is_an_error() -> None:
    with pytest.raises(DataDamaged, match="record 3"):
        Catalog().apply(3, topic_key("t"), b"\xff\xff\xff")


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "a" * 250, "ä", "a b", "a\n", "a\x00", "topic=1", "💡", "../x"]
)
def test_bad_topic_names(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        keys.check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "123", "2026-11-21", "1e5", "null", "a" * 249, "...", "-"])
def test_good_topic_names(name: str) -> None:
    assert keys.check_topic_name(name) == name


def test_settings_have_defaults_and_types() -> None:
    assert parse_settings({}) == TopicSettings()
    parsed = parse_settings({"retention.ms": "1000", "accept.publish": "False", "cleanup.policy": "compact"})
    assert (parsed.retention_ms, parsed.accept_publish, parsed.cleanup_policy) == (1000, False, "compact")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("retention.msec", "1", "did you mean 'retention.ms'"),
        ("retention.ms", "soon", "retention.ms"),
        ("retention.ms", "-2", "from -1"),
        ("cleanup.policy", "wipe", "delete, compact"),
        ("accept.publish", "maybe", "true, false"),
        ("max.message.bytes", "0", "from 1"),
        ("parquet.target.bytes", str(2**30 + 1), "from 1024 to 1073741824"),
        ("zzz", "1", "unknown"),
    ],
)
def test_bad_settings_are_named(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        parse_settings({name: text})


def test_a_file_size_that_an_older_version_allowed_counts_as_the_largest_of_today() -> None:
    """S3 takes no larger object in one put, and the topic must go on."""
    catalog = Catalog()
    raw = {"parquet.target.bytes": str(2**34), "retention.ms": "1000"}
    catalog.apply(3, topic_key("t"), encode_topic_record(Topic(-1, "t", (1,), raw), creation=True))
    topic = catalog.living("t")
    assert topic.settings == TopicSettings(retention_ms=1000, parquet_target_bytes=PARQUET_TARGET_BYTES_MAX)
    assert topic.raw_settings == raw
    raw["parquet.target.bytes"] = str(2**34 + 1)
    with pytest.raises(FormatNotSupported):
        catalog.apply(4, topic_key("t"), encode_topic_record(Topic(3, "t", (1,), raw)))


def test_a_removed_topic_leaves_a_bundle_step_by_step() -> None:
    catalog = Catalog()
    topic = create(catalog, 5, "t")
    draft = genesis(1)
    draft.finished_plan = 4
    draft.partitions.add(topic_id=5, partition=0, parquet_end=10)
    assert not take_in_facts(catalog)(draft)  # nothing was removed
    remove(catalog, 6, topic)
    assert take_in_facts(catalog)(draft)
    assert (draft.metadata_offset, draft.removed_topics[0].named_at_plan) == (7, 4)
    assert not take_in_facts(catalog)(draft)
    assert not is_past_barrier(draft, 5)
    assert not note_barrier(5, 1000)(draft)
    draft.finished_plan = 5
    assert is_past_barrier(draft, 5)
    assert not confirm_deleted(5)(draft)
    assert note_barrier(5, 1000)(draft)
    assert confirm_deleted(5)(draft)
    assert len(draft.partitions) == 0
    catalog.apply(7, topic_key("t"), None)
    assert take_in_facts(catalog)(draft)
    assert list(draft.removed_topics) == []


def test_facts_of_an_older_catalog_are_declined() -> None:
    catalog = Catalog()
    remove(catalog, 6, create(catalog, 5, "t"))
    draft = fmt.Checkpoint(bundle=1, metadata_offset=9)
    assert not take_in_facts(catalog)(draft)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"\xff\xff", DataDamaged),
        (fmt.TopicRecord(name="another", bundles=[1]).SerializeToString(), DataDamaged),
        (fmt.TopicRecord(name="t", bundles=[1], settings={"of.tomorrow": "1"}).SerializeToString(), FormatNotSupported),
        (
            fmt.TopicRecord(name="t", bundles=[1], settings={"compression.type": "of tomorrow"}).SerializeToString(),
            FormatNotSupported,
        ),
    ],
)
def test_a_record_that_cannot_be_read_changes_nothing_however_often_it_is_tried(
    value: bytes, error: type[Exception]
) -> None:
    """Were it half taken in, the topic would be below M and not among the living, which means
    removed: its data would be dropped.
    """
    catalog = Catalog()
    topic = create(catalog, 5, "t")
    for _ in range(2):
        with pytest.raises(error):
            catalog.apply(6, topic_key("t"), value)
        assert catalog.offset == 6
        assert catalog.living("t") == topic
        assert not catalog.is_removed(topic.id, catalog.offset)


def trash(catalog: Catalog, offset: int, topic: Topic) -> Topic:
    record = encode_topic_record(replace(topic, trash=Trash(50, 1000)))
    catalog.apply(offset, topic_key(topic.name), record)
    return catalog.topics_by_name[topic.name]


def test_a_trashed_topic_is_unknown_to_clients_and_protected_in_checkpoints() -> None:
    catalog = Catalog()
    topic = create(catalog, 5, "t")
    before = genesis(1)
    take_in_facts(catalog)(before)
    assert may_remove(before, topic, 0)
    kept = trash(catalog, 6, topic)
    assert (kept.id, kept.raw_settings, kept.trash) == (5, {}, Trash(50, 1000))
    with pytest.raises(UnknownTopic, match=r"until 1970-01-01T00:00:01Z `ledgermq topic undelete t` brings it back"):
        catalog.living("t")
    [fact] = facts_in(catalog, 1)
    assert (fact.topic_id, fact.version, fact.held) == (5, 6, True)
    checkpoint = genesis(1)
    assert take_in_facts(catalog)(checkpoint)
    assert not checkpoint.removed_topics
    assert not may_remove(before, kept, 0), "by this catalog"
    assert not may_remove(checkpoint, topic, 0), "by the checkpoint alone"


def test_earlier_releases_refuse_a_trashed_topic_by_a_setting_that_they_do_not_know() -> None:
    record = fmt.TopicRecord.FromString(encode_topic_record(Topic(5, "t", (1,), trash=Trash(50, 1000))))
    assert (record.state, record.settings[TRASHED]) == (fmt.TRASHED, "true")
    with pytest.raises(InvalidConfig, match="unknown topic setting"):
        parse_settings(dict(record.settings))
    back = fmt.TopicRecord.FromString(encode_topic_record(Topic(5, "t", (1,), undeleted_ms=7)))
    assert (back.state, TRASHED in back.settings, back.undeleted_ms) == (fmt.LIVING, False, 7)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"deleted_ms": 0}, DataDamaged),
        ({"delete_grace_ms": 0}, DataDamaged),
        ({"settings": {}}, DataDamaged),
        ({"state": 3}, FormatNotSupported),
        ({"state": fmt.LIVING}, FormatNotSupported),
    ],
)
def test_a_record_of_a_trashed_topic_that_contradicts_itself(change: dict[str, Any], error: type[Exception]) -> None:
    fields = {"deleted_ms": 50, "delete_grace_ms": 9, "settings": {TRASHED: "true"}, "state": fmt.TRASHED} | change
    record = fmt.TopicRecord(topic_id=5, name="t", bundles=[1], **fields)
    with pytest.raises(error):
        Catalog().apply(6, topic_key("t"), record.SerializeToString())

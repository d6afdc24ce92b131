"""What an owner answers about writers while it does not know yet who has which partition."""

from __future__ import annotations

import pytest

from ledgermq.errors import PartitionHeld, Unavailable
from ledgermq_broker.bundle.committing.exclusive_writers import ExclusiveWriters
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import HOLDERS, INTERNAL_KIND, parse_stored_settings
from ledgermq_ledger.topics.topic import Topic

KEY = PartitionId(4, 0)


def catalog_of(*topics: Topic) -> Catalog:
    catalog = Catalog()
    for topic in topics:
        catalog.topics_by_name[topic.name] = topic
        catalog.topics_by_id[topic.id] = topic
    catalog.offset = 10
    return catalog


def topic_of(topic_id: int, name: str, *bundles: int) -> Topic:
    raw = {INTERNAL_KIND: HOLDERS} if name == keys.HOLDERS_TOPIC else {}
    return Topic(topic_id, name, bundles, raw, parse_stored_settings(raw))


USER = topic_of(4, "orders", 1)


def test_everybody_writes_where_no_producer_was_ever_exclusive() -> None:
    ExclusiveWriters(1, lambda: catalog_of(USER), newest_topic=9).check(KEY, b"")
    elsewhere = catalog_of(USER, topic_of(5, keys.HOLDERS_TOPIC, 2, 3))
    ExclusiveWriters(1, lambda: elsewhere, newest_topic=9).check(KEY, b"")


def test_nothing_is_written_before_the_holders_are_loaded_but_what_belongs_to_the_system() -> None:
    staged = topic_of(6, keys.STAGED_TOPIC, 1)
    writers = ExclusiveWriters(1, lambda: catalog_of(USER, staged, topic_of(5, keys.HOLDERS_TOPIC, 1)), newest_topic=6)
    with pytest.raises(Unavailable, match="not known yet which producers"):
        writers.check(KEY, b"")
    writers.check(PartitionId(6, 0), b"")
    asked = []
    writers.asks = lambda *given: asked.append(given)
    writers.check(KEY, b"p", 4711)
    assert asked == [(KEY, b"p", 4711)]

    def refuse(key: PartitionId, producer: bytes, principal: int) -> None:
        raise PartitionHeld("held")

    writers.asks = refuse
    with pytest.raises(PartitionHeld):
        writers.check(KEY, b"p")


def test_nothing_is_written_before_the_broker_knows_of_every_topic_in_the_ledger() -> None:
    """One of them may be the topic of the holders."""
    catalog = catalog_of(USER)
    writers = ExclusiveWriters(1, lambda: catalog, newest_topic=10)
    with pytest.raises(Unavailable, match="has records of a topic that this broker has not read of yet"):
        writers.check(KEY, b"")
    catalog.offset = 11
    writers.check(KEY, b"")

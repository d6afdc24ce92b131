"""Topics that are declared: how a file is read, and what has to change for a cluster to have them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ledgermq import TopicChange, TopicDescription, TopicSpec
from ledgermq.client.admin.topic_plan import plan_topics, read_topics
from ledgermq.client.messages.descriptions import PartitionDescription
from ledgermq.errors import InvalidConfig


def there(name: str, partitions: int, **settings: str) -> TopicDescription:
    found = (PartitionDescription(0, 0, "here:1"),) * partitions
    return TopicDescription(name, 7, found, {key.replace("_", "."): value for key, value in settings.items()}, 0)


YAML = """
topics:
  - name: orders
    partitions: 12
    settings:
      retention.ms: 7d
      max.message.bytes: 1000000
      keyed: true
  - name: clicks
"""
TOML = """
[[topics]]
name = "orders"
partitions = 12
settings.retention.ms = "7d"
settings."max.message.bytes" = 1000000
settings.keyed = true
[[topics]]
name = "clicks"
"""
JSON = """{"topics": [{"name": "orders", "partitions": 12,
 "settings": {"retention.ms": "7d", "max.message.bytes": 1000000, "keyed": true}}, {"name": "clicks"}]}"""


@pytest.mark.parametrize(("text", "form"), [(YAML, "yaml"), (TOML, "toml"), (JSON, "json")])
def test_each_form_declares_the_same(text: str, form: str) -> None:
    orders = TopicSpec("orders", 12, {"retention.ms": "7d", "max.message.bytes": 1000000, "keyed": True})
    assert read_topics(text, form, "a file") == [orders, TopicSpec("clicks")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topics: [", "not valid YAML"),
        ("- name: a", "expected one key, topics"),
        ("topics: {a: 1}", "expected one key, topics"),
        ("topics: []\nmore: 1", "expected one key, topics"),
        ("topics: [{partitions: 1}]", "topic 1 has no name"),
        ("topics: [{name: 12}]", "topic 1 has no name"),
        ("topics: [{name: a}, {name: b, partition: 3}]", r"topic 2 \(b\): unknown partition;"),
        ("topics: [{name: a, partitions: many}]", "partitions must be a whole number"),
        ("topics: [{name: a, partitions: true}]", "partitions must be a whole number"),
        ("topics: [{name: a, partitions: -1}]", "partitions must be a whole number"),
        ("topics: [{name: a, settings: [b]}]", "settings must map names to values"),
        ("topics: [{name: a, settings: {retention.ms: }}]", "the setting 'retention.ms' must be text"),
        ("topics: [{name: a, settings: {b: {c: [1]}}}]", "the setting 'b.c' must be text"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        read_topics(text, "yaml", "topics.yaml")


def test_a_new_topic_is_created() -> None:
    spec = TopicSpec("orders", 3, {"retention.ms": timedelta(hours=1), "keyed": True})
    assert plan_topics([spec], []) == [TopicChange("orders", "create", 3, {"retention.ms": "3600000", "keyed": "true"})]


def test_only_what_differs_is_altered() -> None:
    found = there("orders", 3, retention_ms="3600000", tag_max="5", compression_type="lz4")
    spec = TopicSpec("orders", 4, {"retention.ms": "1h", "compression.type": "zstd"})
    assert plan_topics([spec], [found]) == [
        TopicChange("orders", "alter", 4, {"compression.type": "zstd"}, ("tag.max",))
    ]


@pytest.mark.parametrize("partitions", [0, 3])
def test_what_is_as_declared_stays(partitions: int) -> None:
    found = there("orders", 3, retention_ms="3600000")
    spec = TopicSpec("orders", partitions, {"retention.ms": "1h"})
    assert plan_topics([spec], [found, there("other", 1)]) == [TopicChange("orders", "unchanged")]


def test_partitions_cannot_be_removed() -> None:
    with pytest.raises(InvalidConfig, match="orders has 3 partitions, and 2 are declared"):
        plan_topics([TopicSpec("orders", 2)], [there("orders", 3)])


def test_a_topic_is_declared_once() -> None:
    with pytest.raises(InvalidConfig, match="more than once: orders"):
        plan_topics([TopicSpec("orders"), TopicSpec("orders", 2)], [])

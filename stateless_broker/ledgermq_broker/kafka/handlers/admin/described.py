"""Settings as DescribeConfigs shows them: the value in force, where it comes from, and what would count without it.

source 1   set on the topic
source 4   set in the settings of the broker
source 5   the default

A broker shows the names that Kafka's programs look for, all read-only: its settings come from its file, variables
and flags. So does a share group: what counts for one counts for all. No setting that is shown is secret, so none is
sensitive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from ledgermq.errors import InvalidConfig
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.admin.topic_settings import DELETE, SET, outside
from ledgermq_broker.kafka.handlers.groups.share_members import INTERVAL_MS, SESSION_S
from ledgermq_broker.kafka.handlers.shares.converting import DELIVERIES_MAX
from ledgermq_broker.kafka.handlers.shares.fetching import LOCK_MS
from ledgermq_broker.kafka.wire.generated.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger.topics.settings import NAMES, TopicSettings, parse_stored_settings

ON_THE_TOPIC, ON_THE_BROKER, BY_DEFAULT = 1, 4, 5
BOOLEAN, TEXT, LONG, DOUBLE, LIST = 1, 2, 5, 6, 7
TYPES = {"bool": BOOLEAN, "int": LONG, "int | None": LONG, "float": DOUBLE, "str": TEXT}

BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
}
"""Kafka's names of the defaults of topic settings."""
OF_BROKERS = {
    "message.ttl.ms": "message_ttl_ms",
    "message.ttl.ms.max": "message_ttl_ms_max",
    "topic.delete.grace.ms": "topic_delete_grace_ms",
}
"""Topic settings whose default is a setting of ours of the brokers."""
ALWAYS = {
    "default.replication.factor": ("1", LONG),
    "delete.topic.enable": ("true", BOOLEAN),
    "min.insync.replicas": ("1", LONG),
    "unclean.leader.election.enable": ("false", BOOLEAN),
}
OF_GROUPS = {
    "share.delivery.count.limit": DELIVERIES_MAX,
    "share.heartbeat.interval.ms": INTERVAL_MS,
    "share.record.lock.duration.ms": LOCK_MS,
    "share.session.timeout.ms": round(1000 * SESSION_S),
}
RESET = "share.auto.offset.reset"
"""The one setting of share groups that brokers set."""

Level = tuple[str, str | None, int]
"""Name, value and source."""
_FIELDS = {name: field for field in fields(TopicSettings) if (name := field.name.replace("_", ".")) in NAMES}


def of_topic(
    info: pb.TopicInfo, brokers: BrokerSettings, chosen: Collection[str], *, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    """Return the settings of a topic. `chosen`: their names; empty: all."""
    own = parse_stored_settings(info.settings)
    found = []
    for name, field in _FIELDS.items():
        if chosen and name not in chosen:
            continue
        levels = [(name, _text(name, getattr(own, field.name)), ON_THE_TOPIC)] if name in info.settings else []
        if name in OF_BROKERS:
            levels.append(_of_brokers(name, info, brokers))
        else:
            levels.append((BROKER_NAMES.get(name, name), _text(name, field.default), BY_DEFAULT))
        found.append(_entry(name, _type(name), tuple(levels), is_fixed=False, synonyms=synonyms))
    return found


def of_broker(
    node: int, brokers: BrokerSettings, chosen: Collection[str], *, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    """Return the settings of a broker that Kafka's programs look for. `chosen`: as above."""
    found: dict[str, tuple[int, str | None, int]] = {
        name: (kind, value, BY_DEFAULT) for name, (value, kind) in ALWAYS.items()
    }
    for name, kafkas in BROKER_NAMES.items():
        found[kafkas] = _type(name), _text(name, _FIELDS[name].default), BY_DEFAULT
    found["broker.id"] = LONG, str(node), ON_THE_BROKER
    found["auto.create.topics.enable"] = BOOLEAN, *_set(brokers, "auto_create_topics")
    found["num.partitions"] = LONG, *_set(brokers, "default_partitions")
    minutes = str(brokers.offsets_retention_ms // 60_000)
    found["offsets.retention.minutes"] = LONG, minutes, _set(brokers, "offsets_retention_ms")[1]
    return [
        _entry(name, kind, ((name, value, source),), is_fixed=True, synonyms=synonyms)
        for name, (kind, value, source) in sorted(found.items())
        if not chosen or name in chosen
    ]


def of_group(
    brokers: BrokerSettings, chosen: Collection[str], *, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    """Return the settings of any share group. `chosen`: as above."""
    return [
        _entry(name, kind, ((name, value, source),), is_fixed=True, synonyms=synonyms)
        for name, (kind, value, source) in sorted(_group_levels(brokers).items())
        if not chosen or name in chosen
    ]


def check_group(configs: Iterable[tuple[str, int, str | None]], brokers: BrokerSettings) -> None:
    """Check that these operations leave the settings of a share group as they are. Raises InvalidConfig."""
    levels = _group_levels(brokers)
    for name, operation, value in configs:
        if name not in levels:
            raise InvalidConfig(f"groups have no setting {name!r} here; they have {', '.join(sorted(levels))}")
        if operation == DELETE or (operation == SET and value == levels[name][1]):
            continue
        why = "set kafka_share_auto_offset_reset of the brokers" if name == RESET else "it does not change"
        raise InvalidConfig(f"{name} is {levels[name][1]} for all groups: {why}")


def _group_levels(brokers: BrokerSettings) -> dict[str, tuple[int, str | None, int]]:
    """Return type, value and source of each setting."""
    fixed: dict[str, tuple[int, str | None, int]] = {
        name: (LONG, str(value), BY_DEFAULT) for name, value in OF_GROUPS.items()
    }
    return {**fixed, RESET: (TEXT, *_set(brokers, "kafka_share_auto_offset_reset"))}


def _of_brokers(name: str, info: pb.TopicInfo, brokers: BrokerSettings) -> Level:
    ours = OF_BROKERS[name]
    value, source = _set(brokers, ours)
    if name not in info.settings and ours in info.DESCRIPTOR.fields_by_name and not getattr(info, ours):
        return ours, None, BY_DEFAULT  # the topic is of a kind for which the brokers' does not count
    return ours, value, source


def _set(brokers: BrokerSettings, name: str) -> tuple[str | None, int]:
    """Return the value of a broker's setting, and its source."""
    value = getattr(brokers, name)
    is_default = value == BrokerSettings.model_fields[name].default
    return _text(name, value), BY_DEFAULT if is_default else ON_THE_BROKER


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    return outside(name, str(value).lower() if isinstance(value, bool) else str(value))


def _type(name: str) -> int:
    return LIST if name == "cleanup.policy" else TYPES[str(_FIELDS[name].type)]


@lru_cache(4096)
def _entry(
    name: str, kind: int, levels: tuple[Level, ...], *, is_fixed: bool, synonyms: bool
) -> DescribeConfigsResourceResult:
    """Return one setting. Most topics share most of them, so an answer of many topics stays small."""
    _, value, source = levels[0]
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=is_fixed,
        config_source=source,
        synonyms=[DescribeConfigsSynonym(*level) for level in levels] if synonyms else [],
        config_type=kind,
        documentation=None,
    )

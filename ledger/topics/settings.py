"""The settings of a topic: names as in Kafka where Kafka has them, typed, with units and defaults;
the one place that knows them.

name                    default     meaning
retention.ms            -1          records older than this may be deleted; -1 = kept for ever
retention.bytes         -1          a partition's Parquet bytes above this may be deleted; -1 = no bound
cleanup.policy          delete      delete | compact (the latest record of each key stays) | compact,delete
min.cleanable.dirty.ratio  0.5      keyed topics: cleaned when so much of a partition's bytes in Parquet is not cleaned yet
delete.retention.ms     86400000    keyed topics: a tombstone stays this long after it was cleaned first
min.compaction.lag.ms   0           keyed topics: records younger than this are not cleaned
compression.type        producer    producer (as it was sent) | none | lz4 | zstd: what producers should use
max.message.bytes       1048576     largest record: key, value and headers
accept.publish          true        false: producing is refused
accept.subscribe        true        false: fetching is refused
parquet.target.bytes    134217728   size of a Parquet file, 1073741824 at most
parquet.max.lag.ms      3600000     a record is in Parquet at the latest after this
parquet.bloom.key       false       Bloom filter on the key column
delete.action           delete      what becomes of records that retention takes: delete | archive
delete.when             none        cron expression of the times at which retention takes effect; none = at any time
delete.when.timezone    UTC         by whose clocks
archive.url             none        store URL of the archive; none = the folder archive/ of the cluster's own root
legal.hold              false       true: nothing of the topic is deleted, by whatever means
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ledger.topics.archive_location import check_archive_url
from ledger.topics.deletion_times import ZONE, check_cron, check_zone
from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean


@dataclass(frozen=True, slots=True)
class TopicSettings:
    retention_ms: int = -1
    retention_bytes: int = -1
    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    max_message_bytes: int = 1024 * 1024
    accept_publish: bool = True
    accept_subscribe: bool = True
    parquet_target_bytes: int = 128 * 1024 * 1024
    parquet_max_lag_ms: int = 60 * 60 * 1000
    parquet_bloom_key: bool = False
    delete_action: str = "delete"
    delete_when: str = ""
    delete_when_timezone: str = ZONE
    archive_url: str = ""
    legal_hold: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    min_compaction_lag_ms: int = 0

    @property
    def keyed(self) -> bool:
        """The latest record of each key is kept."""
        return self.cleanup_policy.startswith("compact")

    @property
    def forgets_keys(self) -> bool:
        """`compact,delete` with a bound: keys that were not written for `retention_ms` go."""
        return self.cleanup_policy == "compact,delete" and self.retention_ms >= 0


PARQUET_TARGET_BYTES_MAX = 2**30
"""A file is built in memory and put in one request, of which S3 takes 5 GiB."""

MILLISECONDS = "of milliseconds is needed, or a duration, as 7d or 604800000 for seven days"
BYTES = "of bytes is needed, as 134217728 for 128 MiB"


def _whole(least: int, most: int, needed: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"a whole number {needed}") from None
        if not least <= value <= most:
            raise ValueError(f"from {least} to {most}")
        return value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text

    return parse


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1 is needed")
    return value


def _policy(text: str) -> str:
    """Either order, as Kafka takes it."""
    return _one_of("delete", "compact", "compact,delete")("compact,delete" if text == "delete,compact" else text)


def _truth(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "retention_ms": _whole(-1, 2**62, MILLISECONDS),
    "retention_bytes": _whole(-1, 2**62, BYTES),
    "cleanup_policy": _policy,
    "compression_type": _one_of("producer", "none", "lz4", "zstd"),
    "max_message_bytes": _whole(1, 32 * 1024 * 1024, BYTES),
    "accept_publish": _truth,
    "accept_subscribe": _truth,
    "parquet_target_bytes": _whole(1024, PARQUET_TARGET_BYTES_MAX, BYTES),
    "parquet_max_lag_ms": _whole(0, 2**62, MILLISECONDS),
    "parquet_bloom_key": _truth,
    "min_cleanable_dirty_ratio": _share,
    "delete_retention_ms": _whole(0, 2**62, MILLISECONDS),
    "min_compaction_lag_ms": _whole(0, 2**62, MILLISECONDS),
    "delete_action": _one_of("delete", "archive"),
    "delete_when": check_cron,
    "delete_when_timezone": check_zone,
    "archive_url": check_archive_url,
    "legal_hold": _truth,
}

_PARSERS_OF_STORED = _PARSERS | {
    "parquet_target_bytes": lambda text: min(PARQUET_TARGET_BYTES_MAX, _whole(1024, 2**34, BYTES)(text)),
}

NAMES = tuple(field.name.replace("_", ".") for field in fields(TopicSettings))


def parse_settings(raw: Mapping[str, str]) -> TopicSettings:
    """As somebody wishes them. Raises InvalidConfig, naming the setting and what it may be."""
    return _parse(raw, _PARSERS)


def parse_stored_settings(raw: Mapping[str, str]) -> TopicSettings:
    """As a topic has them: a file size that an older version allowed counts as the largest of
    today. Raises as `parse_settings`.
    """
    return _parse(raw, _PARSERS_OF_STORED)


def _parse(raw: Mapping[str, str], parsers: Mapping[str, Callable[[str], Any]]) -> TopicSettings:
    values = {}
    for name, text in raw.items():
        if name not in NAMES:
            raise InvalidConfig(f"unknown topic setting {name!r}; {did_you_mean(name, NAMES)}")
        field = name.replace(".", "_")
        try:
            values[field] = parsers[field](text)
        except ValueError as error:
            raise InvalidConfig(f"topic setting {name}: {text!r} is not allowed: {error}") from error
    return TopicSettings(**values)

"""The settings of a topic: names as in Kafka where Kafka has them, typed, with units and defaults; the one place that knows them.

name                    default     meaning
retention.ms            -1          records older than this may be deleted; -1 = kept for ever
retention.bytes         -1          a partition's Parquet bytes above this may be deleted; -1 = no bound
cleanup.policy          delete      delete | compact
compression.type        producer    producer (as it was sent) | none | lz4 | zstd: what producers should use
max.message.bytes       1048576     largest record: key, value and headers
accept.publish          true        false: producing is refused
accept.subscribe        true        false: fetching is refused
parquet.target.bytes    134217728   size of a Parquet file
parquet.max.lag.ms      3600000     a record is in Parquet at the latest after this
parquet.bloom.key       false       Bloom filter on the key column
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ledgermq.errors import InvalidConfig


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


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
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


def _truth(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "retention_ms": _whole(-1, 2**62),
    "retention_bytes": _whole(-1, 2**62),
    "cleanup_policy": _one_of("delete", "compact"),
    "compression_type": _one_of("producer", "none", "lz4", "zstd"),
    "max_message_bytes": _whole(1, 32 * 1024 * 1024),
    "accept_publish": _truth,
    "accept_subscribe": _truth,
    "parquet_target_bytes": _whole(1024, 2**34),
    "parquet_max_lag_ms": _whole(0, 2**62),
    "parquet_bloom_key": _truth,
}

NAMES = tuple(field.name.replace("_", ".") for field in fields(TopicSettings))


def parse_settings(raw: Mapping[str, str]) -> TopicSettings:
    """Raises InvalidConfig, naming the setting and what it may be."""
    values = {}
    for name, text in raw.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise InvalidConfig(f"unknown topic setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        field = name.replace(".", "_")
        try:
            values[field] = _PARSERS[field](text)
        except ValueError as error:
            raise InvalidConfig(f"topic setting {name}: {text!r} is not allowed: {error}") from error
    return TopicSettings(**values)

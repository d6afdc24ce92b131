"""Topic settings between Kafka's words and ours. Names are the same where Kafka has them (`TopicSettings`).

`IGNORED`                accepted without effect: they say how Kafka stores a topic
numbers above 2**53      no bound, which is -1 here where it is allowed
compression.type         uncompressed is none; gzip and snappy are stored as lz4
cleanup.policy           blanks in the list do not count
everything else          as it is; what no setting of ours is, or not such a value, gets INVALID_CONFIG
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import InvalidConfig

IGNORED = frozenset(
    {
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "message.downconversion.enable",
        "message.format.version",
        "min.insync.replicas",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
ENDLESS_FROM = 2**53
"""Kafka's programs write the largest 64-bit number, Debezium for one, or a number near it."""
ENDLESS = frozenset(
    {
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "retention.bytes",
        "retention.ms",
    }
)
SET, DELETE = 0, 1
"""Kafka's numbers of what happens to a setting; others change a list."""
Change = tuple[dict[str, str], list[str]]
"""The settings of ours to set, and those to unset."""
CODECS = {"uncompressed": "none", "gzip": "lz4", "snappy": "lz4"}


def taken(configs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the settings of ours that these are. Raises InvalidConfig for one without a value."""
    found = {}
    for name, value in configs:
        if value is None:
            raise InvalidConfig(f"topic setting {name!r} has no value")
        if name not in IGNORED:
            found[name] = inside(name, value)
    return found


def changed(configs: Iterable[tuple[str, int, str | None]]) -> Change:
    """Return what these operations do. Raises InvalidConfig."""
    wanted: dict[str, str] = {}
    unset: list[str] = []
    for name, operation, value in configs:
        if operation == SET:
            wanted |= taken([(name, value)])
        elif operation != DELETE:
            raise InvalidConfig(f"topic setting {name!r}: a list is set as a whole, not added to or taken from")
        elif name not in IGNORED:
            unset.append(name)
    return wanted, unset


def inside(name: str, value: str) -> str:
    """Return a value in our words."""
    if name in ENDLESS and value.isdecimal() and int(value[:20]) > ENDLESS_FROM:
        return "-1"
    if name == "compression.type":
        return CODECS.get(value, value)
    if name == "cleanup.policy":
        return ",".join(part.strip() for part in value.split(","))
    return value


def outside(name: str, value: str) -> str:
    """Return a value in Kafka's words."""
    return "uncompressed" if name == "compression.type" and value == "none" else value

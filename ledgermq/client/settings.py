"""Settings of the SDK: plain frozen data, each with its unit in its name and its default here.

Whoever gives a name that does not exist gets InvalidConfig with the nearest one; a value out of
range likewise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, TypeVar

from ledgermq.client.consuming.direct_reads import check_place
from ledgermq.client.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.hints import did_you_mean
from ledgermq.offset_stores.contract import OffsetStore
from ledgermq.protocol.limits import BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX

MIB = 1024 * 1024
MEMBER_TIMEOUT_S_MAX = 24 * 3600.0
NAME_CHARS_MAX = 249
HEARTBEAT_WAIT_S, REVOKE_WAIT_S = 3.0, 30.0
HEARTBEATS_PER_SESSION = 3

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""

WINDOW_BATCHES = 5
"""Batches of one producer and partition that may be unacknowledged at once: as many as brokers
remember (design P2).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Of a connection to a cluster."""

    timeout_s: float = 30.0
    """Every call that is not a wait for messages is answered, or fails with a typed error, within
    this time; retries included.
    """
    attempt_timeout_s: float = 10.0
    """One attempt at one broker; after it the next broker is asked."""
    backoff_ms_first: int = 50
    backoff_ms_max: int = 2_000
    """Waits between attempts double from the first to the largest, with jitter."""
    metadata_age_s_max: float = 60.0
    """What is known of a topic is asked again after this time, so that added partitions are seen."""
    must_exist: bool = False
    """A root URL that holds no cluster is refused. Else one is made there."""
    on_trouble: Callable[[LedgerMQError | None], None] | None = None
    """Called with the error of each attempt that failed and is retried, and with None when a broker
    answers again.
    """

    def __post_init__(self) -> None:
        _above_zero(self, "timeout_s", "attempt_timeout_s", "backoff_ms_first", "backoff_ms_max", "metadata_age_s_max")
        if self.on_trouble is not None and not callable(self.on_trouble):
            raise InvalidConfig(f"on_trouble is a function of an error or None, not {self.on_trouble!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Of one producer. Times count from the call of `send`."""

    acks: Literal["durable", "received"] = "durable"
    """durable: answered when stored. received: answered on receipt; may lose the broker's last
    flush interval, has no idempotence.
    """
    idempotent: bool = True
    """No record is stored twice, whatever is retried.

    Without it a retry after a lost answer may store a record again.
    """
    delivery_timeout_s: float = 120.0
    """A record is stored, or its awaitable fails, within this time; all retries included."""
    request_timeout_s: float = 30.0
    """A request that is not answered within this time is tried again."""
    linger_ms: float | None = None
    """A batch waits this long for more records; not when it is full, and not in `flush`. Not set:
    at once, but while others are on their way no sooner than 5 after the last one was closed."""
    batch_bytes_max: int = MIB
    """Size of a batch of one partition, before compression; a larger record travels alone."""
    request_bytes_max: int = BATCH_BYTES_TYPICAL
    """Size of a request to one broker, all partitions together."""
    compression: Literal["auto", "none", "lz4", "zstd"] = "auto"
    """Unless the topic's own setting names one. auto: lz4, as long as a partition's batches become
    smaller by it.
    """
    buffer_bytes_max: int = 64 * MIB
    """Records that are not answered yet, with their overhead in memory; from here on producing
    waits or fails.
    """
    when_full: Literal["wait", "fail"] = "wait"
    """fail: `send` raises ResourceExhausted. wait: `send_many` and `send_batch` wait for room; what
    `send` returns waits by itself.
    """
    waiting_bytes_max: int = 64 * MIB
    """With when_full="wait": what plain `send` calls may add above `buffer_bytes_max` before it
    raises ResourceExhausted.
    """
    window_batches: int = WINDOW_BATCHES
    """Batches of one partition that are on their way at once."""
    partitioner: Partitioner | None = None
    """Chooses the partition; None: by Kafka's hash of the key, else one partition at a time,
    changed with each batch.
    """
    auto_create: bool = True
    """Ask for topics that do not exist to be made, where the cluster allows it."""

    def __post_init__(self) -> None:
        _above_zero(
            self, "delivery_timeout_s", "request_timeout_s", "batch_bytes_max", "request_bytes_max", "buffer_bytes_max"
        )
        _one_of(self, "acks", "durable", "received")
        _one_of(self, "compression", "auto", "none", "lz4", "zstd")
        _one_of(self, "when_full", "wait", "fail")
        if self.linger_ms is not None:
            _between(self, "linger_ms", 0, 60_000)
        _between(self, "waiting_bytes_max", 0, 2**40)
        _between(self, "window_batches", 1, WINDOW_BATCHES)
        _between(self, "batch_bytes_max", 1, FRAME_PAYLOAD_BYTES_MAX // 2)
        _between(self, "request_bytes_max", 1, FRAME_PAYLOAD_BYTES_MAX // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Of one consumer."""

    auto_offset_reset: Literal["error", "earliest", "latest"] = "error"
    """What to do when the offset to read is below the log start or above the end: raise
    OffsetOutOfRange, or go on from there.
    """
    prefetch_bytes_max: int = 32 * MIB
    """Batches fetched ahead of the reader, as they came over the wire."""
    fetch_bytes_max: int = BATCH_BYTES_TYPICAL
    """Size of one answer of a broker; one batch is always sent."""
    request_timeout_s: float = 30.0
    """When brokers have not answered for this time, the calls that wait for messages raise
    Unavailable; the next call tries again.
    """
    decoded_bytes_max: int = 256 * MIB
    """A batch that claims to decode to more is refused as damaged."""
    direct_reads: str = ""
    """A URL (file:///root/of/the/cluster, https://bucket.host/) below which this consumer may read
    segments by itself where brokers say so; what it cannot read there comes from brokers. Empty:
    everything does."""

    def __post_init__(self) -> None:
        check_place(self.direct_reads)
        _one_of(self, "auto_offset_reset", "error", "earliest", "latest")
        _above_zero(self, "prefetch_bytes_max", "fetch_bytes_max", "request_timeout_s", "decoded_bytes_max")
        _between(self, "fetch_bytes_max", 1, FRAME_PAYLOAD_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(ConsumerSettings):
    """Of one table."""

    table_bytes_max: int = 1024 * MIB
    """About what its rows may take in memory: key, value, headers and some 500 bytes each.

    Above it the table ends: ResourceExhausted.
    """

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        _one_of(
            self, "auto_offset_reset", "error"
        )  # a table that went on elsewhere would not be one: it reads everything again
        _above_zero(self, "table_bytes_max")


PartitionsCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(ConsumerSettings):
    """Of one consumer that is a member of a group."""

    commit: Literal["auto", "acked", "manual", "before"] = "auto"
    """What is committed. auto: what was handed out before the latest call for messages, or was
    acknowledged. acked: what was acknowledged. Both every `commit_interval_ms`, before partitions
    are let go, and at the end. manual: only what `commit` says. before: at most once; messages are
    committed before they are handed out."""
    commit_interval_ms: float = 5_000
    """How often what is finished is committed, with auto and acked."""
    session_timeout_s: float = 45.0
    """A member that the coordinator does not hear for this time loses its partitions."""
    max_poll_interval_s: float = 300.0
    """A program that neither asks for messages nor acknowledges any for this time lets its
    partitions go; the next call joins again.
    """
    heartbeat_wait_s: float | None = None
    """A heartbeat is held by the coordinator until something changes, at most for this time. Not
    set: 3, or a third of `session_timeout_s` where that is less; more than a third is refused."""
    revoke_wait_s: float | None = None
    """Before a partition is let go, the program is given this time to finish what it was handed of
    it. Not set: 30, or `max_poll_interval_s` where that is less; more than that is refused."""
    close_timeout_s: float = 10.0
    """`close` ends within this time, whether the cluster answers or not."""
    acked_ahead_max: int = 100_000
    """Messages of a partition that are acknowledged while an earlier one is not; from here on the
    partition waits for that one.
    """
    assignor: Literal["uniform", "range", "sticky", "consistent_hash"] = "uniform"
    """How partitions are shared out; the group does as most of its members say."""
    instance_id: str = ""
    """Static membership: a member that comes back under this id within the session time-out finds
    its partitions again.
    """
    rack: str = ""
    """Where this member runs: a hint for the assignor."""
    client_id: str = ""
    """For people who look at the group."""
    offset_store: OffsetStore | None = None
    """Keeps the committed offsets; None: the cluster does, of a broadcast this process's memory."""
    broadcast: bool = False
    """Every consumer reads all partitions of its topics, and nobody coordinates; the group's name
    is only the offset store's key.
    """
    on_assigned: PartitionsCallback | None = None
    """Called, and awaited, when partitions were given, before their first message; may seek."""
    on_revoked: PartitionsCallback | None = None
    """Called, and awaited, before partitions are let go; commits are still accepted."""
    on_lost: PartitionsCallback | None = None
    """Called when partitions are gone already: others may have them."""

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        _one_of(self, "commit", "auto", "acked", "manual", "before")
        _one_of(self, "assignor", "uniform", "range", "sticky", "consistent_hash")
        _above_zero(self, "commit_interval_ms", "session_timeout_s", "max_poll_interval_s", "close_timeout_s")
        if self.heartbeat_wait_s is not None:
            _above_zero(self, "heartbeat_wait_s")
            _within(self, "heartbeat_wait_s", "session_timeout_s", HEARTBEATS_PER_SESSION)
        if self.revoke_wait_s is not None:
            _within(self, "revoke_wait_s", "max_poll_interval_s", 1)
        _between(self, "session_timeout_s", 0, MEMBER_TIMEOUT_S_MAX)
        _between(self, "max_poll_interval_s", 0, MEMBER_TIMEOUT_S_MAX)
        _between(self, "acked_ahead_max", 1, 10_000_000)
        for name in ("instance_id", "rack", "client_id"):
            if not isinstance(getattr(self, name), str) or len(getattr(self, name)) > NAME_CHARS_MAX:
                raise InvalidConfig(
                    f"{name} is text of at most {NAME_CHARS_MAX} characters, not {getattr(self, name)!r}"
                )
        for name in ("on_assigned", "on_revoked", "on_lost"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidConfig(f"{name} is a function of a list of partitions, not {getattr(self, name)!r}")

    @property
    def longest_heartbeat_s(self) -> float:
        """`heartbeat_wait_s`, or what it is where it is not set."""
        return (
            min(HEARTBEAT_WAIT_S, self.session_timeout_s / HEARTBEATS_PER_SESSION)
            if self.heartbeat_wait_s is None
            else self.heartbeat_wait_s
        )

    @property
    def longest_revoke_s(self) -> float:
        """`revoke_wait_s`, likewise."""
        return min(REVOKE_WAIT_S, self.max_poll_interval_s) if self.revoke_wait_s is None else self.revoke_wait_s


S = TypeVar("S", ClientSettings, ProducerSettings, ConsumerSettings, GroupSettings, TableSettings)


def settings_from(kind: type[S], given: Mapping[str, Any]) -> S:
    """Raises InvalidConfig."""
    known = sorted(field.name for field in fields(kind))
    for name in given:
        if name not in known:
            raise InvalidConfig(f"unknown setting {name!r} of {kind.__name__}; {did_you_mean(name, known)}")
    return kind(**given)


def _above_zero(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InvalidConfig(f"{name} is a number above 0, not {value!r}")


def _between(settings: Any, name: str, least: float, most: float) -> None:
    value = getattr(settings, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidConfig(f"{name} is a number from {least} to {most}, not {value!r}")


def _within(settings: Any, name: str, other: str, parts: int) -> None:
    """At most one of so many parts of the other setting: both are named, and what would do for
    each.
    """
    value, whole = getattr(settings, name), getattr(settings, other)
    _between(settings, name, 0, inf)
    if value * parts > whole:
        of = f"a third of {other}" if parts == 3 else other
        raise InvalidConfig(
            f"{name} ({value:g}) is more than {of} ({whole:g}): leave {name} out, or give at most {whole / parts:g}, "
            f"or {other} of at least {value * parts:g}"
        )


def _one_of(settings: Any, name: str, *allowed: str) -> None:
    value = getattr(settings, name)
    if value not in allowed:
        raise InvalidConfig(f"{name} is one of {', '.join(allowed)}, not {value!r}")

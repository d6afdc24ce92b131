"""Settings of the SDK: plain frozen data.

Each is declared once: name (its last word is the unit), type, default, rule (`declared`), and below
it the help text of docs/settings.md. An unknown name raises InvalidConfig with the nearest known
name, a wrong value raises it with the setting's rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, TypeVar

from ledgermq.buffers import MIB
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.declared import (
    above_zero,
    between,
    check_fields,
    checked,
    filtering,
    function,
    functions,
    having,
    place,
    secret,
    switch,
    text,
)
from ledgermq.client.settings.producers import REMOVED, ProducerSettings
from ledgermq.client.settings.serializers import FromBytes
from ledgermq.client.settings.tls import Tls, check_tls
from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.filters.filter import parse_filter
from ledgermq.hints import did_you_mean
from ledgermq.offset_stores.contract import OffsetStore
from ledgermq.protocol.limits import (
    BATCH_BYTES_TYPICAL,
    FRAME_PAYLOAD_BYTES_MAX,
)
from ledgermq.protocol.naming.client_ids import check_client_id, check_rack
from ledgermq.protocol.naming.names import NAME_CHARS_MAX

MEMBER_TIMEOUT_S_MAX = 24 * 3600.0
HEARTBEAT_WAIT_S, REVOKE_WAIT_S = 3.0, 30.0
HEARTBEATS_PER_SESSION = 3
PATH_CHARS_MAX = 4096

Interceptor = Callable[[Any], Any]
"""An interceptor of consumers: a message -> the message that the program receives."""


def _check_sent(check: Callable[[str], object]) -> Callable[[str, object], None]:
    """Return the check of a text that calls carry; "": they carry none."""

    def checked_text(name: str, value: object) -> None:
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} must be text, not {value!r}")
        if value:
            check(value)

    return checked_text


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name} must be True or False, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of a connection to a cluster."""

    timeout_s: float = above_zero(30.0)
    """Longest time of a call, retries included; then it fails with a typed error. Calls that wait for
    messages are not bound by it.
    """
    attempt_timeout_s: float = above_zero(10.0)
    """Longest time of one attempt at one broker; then the next broker is tried."""
    backoff_ms_first: int = above_zero(50)
    """First wait between two attempts; each further wait is twice as long, with jitter."""
    backoff_ms_max: int = above_zero(2_000)
    """Longest wait between two attempts. Raise it if many clients retry against a busy cluster."""
    metadata_age_s_max: float = above_zero(60.0)
    """Age at which a topic's metadata is fetched again, so that added partitions are found."""
    tls: Tls | bool | None = checked(None, check_tls)
    """True: connect by TLS; `ledgermq.Tls(ca=…, cert=…, key=…)`: with these PEM files; False: plain. Not
    set: as LEDGERMQ_TLS, LEDGERMQ_TLS_CA_FILE, LEDGERMQ_TLS_CERT_FILE, LEDGERMQ_TLS_KEY_FILE and
    LEDGERMQ_TLS_SERVER_NAME say, or `tls`, `tls_ca_file`, … in the TOML file that LEDGERMQ_CONFIG names.
    True takes files from there, too. Brokers in this process take the settings of brokers instead.
    """
    must_exist: bool = switch(False)
    """Root URLs only: set True to refuse a root that holds no cluster, instead of creating one."""
    token: str = secret()
    """Token that proves to brokers who calls. Not set: that of `token_file`, else the variables
    LEDGERMQ_TOKEN and LEDGERMQ_TOKEN_FILE, else `token` or `token_file` in the TOML file that
    LEDGERMQ_CONFIG names. Root URLs need none.
    """
    token_file: str = text(PATH_CHARS_MAX)
    """File that holds the token. It is read again when it changes, so that a token can be renewed."""
    client_id: str = checked("", _check_sent(check_client_id))
    """Name of the program in every call, at most 249 ASCII signs. Quotas may bind it. Root URLs need none."""
    rack: str = checked("", _check_sent(check_rack))
    """Rack or availability zone in which the program runs, as `rack` of brokers, at most 249 ASCII signs. Records
    without a key go to partitions of brokers there, and members of groups get these first; brokers count by it what
    crosses racks (`ledgermq cost`). Root URLs need none.
    """
    tracing: bool | None = checked(None, _check_switch)
    """True: records carry the trace of the program, and batches and calls of handlers have spans (docs/tracing.md);
    needs the extra "otel". Not set: as LEDGERMQ_TRACING says, or `tracing` in the TOML file that LEDGERMQ_CONFIG
    names, which is off without either.
    """
    tracing_parent: Literal["local", "message"] = "local"
    """Parent of the span of a handler's call. local: what the program is in; the span is linked to the message's
    trace. message: the span is part of the trace of its message, if it has one message only.
    """
    metrics: bool | None = checked(None, _check_switch)
    """True: the client counts what it sends and reads for OpenTelemetry (docs/tracing.md); needs the extra "otel". Not
    set: as LEDGERMQ_METRICS says, or `metrics` in the TOML file that LEDGERMQ_CONFIG names; off without either.
    """
    on_trouble: Callable[[LedgerMQError | None], None] | None = function("an error or None")
    """Called with the error of each failed attempt that is retried, and with None when a broker
    answers again.
    """

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of one consumer."""

    auto_offset_reset: Literal["error", "earliest", "latest"] = "error"
    """What happens when the offset to read is below the log start or above the end. error: raise
    OffsetOutOfRange; earliest, latest: continue from there.
    """
    prefetch_bytes_max: int = above_zero(32 * MIB)
    """Memory for batches that are fetched ahead of the program, as they were sent."""
    fetch_bytes_max: int = between(BATCH_BYTES_TYPICAL, 1, FRAME_PAYLOAD_BYTES_MAX)
    """Size of one response of a broker; it holds at least one batch, however large."""
    request_timeout_s: float = above_zero(30.0)
    """How long brokers may not answer before calls that wait for messages raise Unavailable; the
    next call tries again.
    """
    decoded_bytes_max: int = above_zero(256 * MIB)
    """Largest size of a decoded batch; one that claims to be larger is refused as damaged."""
    direct_reads: str = place()
    """URL (file:///root/of/the/cluster, https://bucket.host/) below which this consumer may read
    segments from the store if brokers return their locations; it takes the rest from brokers. Not
    set: brokers send everything. Set it to take load off the brokers when reading old data.
    """

    deliver_expired: bool = switch(False)
    """Set True to get messages whose time to live is over, too, instead of skipping them."""
    filter: str = filtering()
    """Which messages are returned; the others are skipped. Tags ("TagA || TagB"), or a condition over
    headers ("region IN ('eu', 'us') AND price > 5"). Not set: all. All members of a group need the same.
    """
    deserializer: FromBytes | None = having("from_bytes")
    """Converts values from bytes: `ledgermq.Serializer.json()`, …, or any object with the method
    `from_bytes(data)`. A value that it refuses raises BadValue where the program reads `message.value`.
    Tombstones, and Arrow tables, are not converted. Not set: values are bytes.
    """
    interceptors: Sequence[Interceptor] = functions("a message")
    """Functions of a message that return it, or a changed one made with `message._replace(…)`. They are called
    in this order, once for each delivery, before the message is returned. If one fails, reading the message's
    `value` raises BadValue. Arrow tables are not passed to them.
    """

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(ConsumerSettings):
    """Settings of one table."""

    table_bytes_max: int = above_zero(1024 * MIB)
    """Approximate memory of its rows: key, value, headers and some 500 bytes each. Above it the
    table ends with ResourceExhausted.
    """
    deliver_expired: bool = switch(True)

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        if not self.deliver_expired:  # an older value of the key would come back
            raise InvalidConfig("deliver_expired must be True for a table: it keeps the newest value of each key")
        if parse_filter(self.filter) is not None:  # the same, and it would miss tombstones
            raise InvalidConfig("a table cannot have a filter: it keeps the newest value of each key; leave out filter")
        if self.interceptors:
            raise InvalidConfig("a table holds messages as they are stored: leave out interceptors")
        if self.auto_offset_reset != "error":  # a table that skipped records would lack keys
            raise InvalidConfig(f"auto_offset_reset must be error, not {self.auto_offset_reset!r}")


PartitionsCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(ConsumerSettings):
    """Settings of one consumer that is a member of a group."""

    commit: Literal["auto", "acked", "manual", "before"] = "auto"
    """What is committed. auto: messages returned before the latest call for messages, or
    acknowledged. acked: acknowledged messages. Both commit every `commit_interval_ms`, before
    partitions are let go, and at the end. manual: only the messages or offsets passed to `commit`.
    before: each message before it is returned, so that it is processed at most once.
    """
    commit_interval_ms: float = above_zero(5_000)
    """Time between two commits, with auto and acked. Lower it for fewer repeated messages after a
    crash.
    """
    session_timeout_s: float = above_zero(45.0, MEMBER_TIMEOUT_S_MAX)
    """How long a member may send no heartbeat before the coordinator gives its partitions to
    others. Lower it for a faster hand-over after a crash.
    """
    max_poll_interval_s: float = above_zero(300.0, MEMBER_TIMEOUT_S_MAX)
    """How long a program may neither call for messages nor acknowledge any before its partitions
    go to other members; the next call joins again. Raise it for messages that take long.
    """
    heartbeat_wait_s: float | None = above_zero(None)
    """How long the coordinator holds a heartbeat while nothing changes. Not set: 3, or a third of
    `session_timeout_s` if that is less; more than a third is refused.
    """
    revoke_wait_s: float | None = between(None, 0, inf)
    """How long a program may take to finish messages of a partition that goes to another member. Not
    set: 30, or `max_poll_interval_s` if that is less; more than that is refused.
    """
    close_timeout_s: float = above_zero(10.0)
    """Longest time of `close`, whether the cluster answers or not."""
    acked_ahead_max: int = between(100_000, 1, 10_000_000)
    """Messages of a partition that may be acknowledged while an earlier one is not; above it the
    partition waits for that one.
    """
    failed_held_max: int = between(10_000, 1, 10_000_000)
    """Messages of a partition that may be held in memory because they failed: those refused with `nack`
    until they are finished, those of `Retry.levels` until they are moved, and those of its retry topic
    until they are due. Above it the partition waits.
    """
    failed_held_bytes_max: int = above_zero(64 * MIB)
    """Size of such messages of a partition above which it waits."""
    assignor: Literal["uniform", "range", "sticky", "consistent_hash"] = "uniform"
    """How partitions are distributed; a group uses what most of its members name."""
    instance_id: str = text(NAME_CHARS_MAX)
    """Name for static membership: a member that restarts under the same name within the session
    time-out keeps its partitions.
    """
    rack: str = text(NAME_CHARS_MAX)
    """Rack or availability zone in which this member runs; not set: the `rack` of the client. A partition that needs a
    new member goes to one in the rack of its broker (setting `rack` of brokers), with the assignors uniform and sticky.
    """
    client_id: str = text(NAME_CHARS_MAX)
    """Name that `ledgermq group describe` shows."""
    offset_store: OffsetStore | None = having("load", "commit")
    """Where committed offsets are kept. Not set: in the cluster; those of a broadcast in memory."""
    broadcast: bool = switch(False)
    """Read all partitions in every consumer, without coordination; the group is only the key in the
    offset store.
    """
    on_assigned: PartitionsCallback | None = function("a list of partitions")
    """Called, and awaited, when partitions were assigned, before their first message; may seek."""
    on_revoked: PartitionsCallback | None = function("a list of partitions")
    """Called, and awaited, before partitions are let go; commits are still accepted."""
    on_lost: PartitionsCallback | None = function("a list of partitions")
    """Called when partitions are lost: other members may have them already."""

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        if self.heartbeat_wait_s is not None:
            _within(self, "heartbeat_wait_s", "session_timeout_s", HEARTBEATS_PER_SESSION)
        if self.revoke_wait_s is not None:
            _within(self, "revoke_wait_s", "max_poll_interval_s", 1)

    @property
    def longest_heartbeat_s(self) -> float:
        """Return `heartbeat_wait_s`, or its default if it is not set."""
        return (
            min(HEARTBEAT_WAIT_S, self.session_timeout_s / HEARTBEATS_PER_SESSION)
            if self.heartbeat_wait_s is None
            else self.heartbeat_wait_s
        )

    @property
    def longest_revoke_s(self) -> float:
        """Return `revoke_wait_s`, or its default if it is not set."""
        return min(REVOKE_WAIT_S, self.max_poll_interval_s) if self.revoke_wait_s is None else self.revoke_wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of one member of a queue group."""

    lease_s: float = between(30.0, 1.0, 12 * 3600.0)
    """How long a message belongs to this member; then any member may get it. `extend` makes it longer. Raise
    it for work that takes long, lower it so that the messages of a member that died come back sooner.
    """
    attempts_max: int = between(5, 1, 60)
    """Deliveries of a message; after the last one it goes to the dead-letter topic. Members of one group
    should have the same number.
    """
    dead_letters: bool = switch(True)
    """Put messages into the topic `<group>.dlq` after their last attempt. False: they are dropped."""
    iteration_records_max: int = between(50, 1, 2_000)
    """Messages that `async for` leases at a time. Lower it if one message takes long, so that other members
    get the rest.
    """
    fetch_bytes_max: int = between(BATCH_BYTES_TYPICAL, 1, FRAME_PAYLOAD_BYTES_MAX)
    """Size of one answer. It holds whole batches, also if only some of their messages are leased."""
    decoded_bytes_max: int = above_zero(256 * MIB)
    """Largest size of a decoded batch; one that claims to be larger is refused as damaged."""
    request_timeout_s: float = above_zero(30.0)
    """How long `fetch` and `async for` go on while no broker answers; then they raise the error."""
    filter: str = filtering()
    """Which messages are returned, as for consumers, without FUNCTION; the others are finished without a delivery.
    Not set: all. All members of a queue group need the same.
    """
    client_id: str = text(NAME_CHARS_MAX)
    """Name that `ledgermq queue describe` shows before the member's id."""
    deserializer: FromBytes | None = having("from_bytes")
    """As for consumers: converts values from bytes where the program reads `message.value`."""
    interceptors: Sequence[Interceptor] = functions("a message")
    """As for consumers: functions of a message that return it, or a changed one."""

    def __post_init__(self) -> None:
        check_fields(self)
        found = parse_filter(self.filter)
        if found is not None and found.function:
            raise InvalidConfig("the filter of a queue cannot have a FUNCTION: its members judge messages themselves")


S = TypeVar("S", ClientSettings, ProducerSettings, ConsumerSettings, GroupSettings, TableSettings, QueueSettings)


def settings_from(kind: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings with these values. Raises InvalidConfig."""
    known = sorted(field.name for field in fields(kind))
    for name in given:
        if kind is ProducerSettings and name in REMOVED:
            raise InvalidConfig(f"setting {name!r} of {kind.__name__} was removed: {REMOVED[name]}")
        if name not in known:
            raise InvalidConfig(f"unknown setting {name!r} of {kind.__name__}; {did_you_mean(name, known)}")
    return kind(**given)


def _within(settings: Any, name: str, other: str, parts: int) -> None:
    """Check that a setting is at most the other one divided by `parts`; the error names both, and
    the accepted values.
    """
    value, whole = getattr(settings, name), getattr(settings, other)
    if value * parts > whole:
        of = f"a third of {other}" if parts == 3 else other
        raise InvalidConfig(
            f"{name} ({value:g}) is more than {of} ({whole:g}): leave {name} out, or give at most {whole / parts:g}, "
            f"or {other} of at least {value * parts:g}"
        )

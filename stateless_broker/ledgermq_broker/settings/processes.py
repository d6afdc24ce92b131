"""The settings of LedgerMQ's processes (broker, embedded broker, compaction service): frozen and
typed.

Each setting is declared once, here: name, type, default, range, help text, and whether a running
process takes a change (`_live`). `LIVE`, the flags of the commands, `docs/settings.md` and the
limits that the parts of a broker get (`from_settings`) are derived from these declarations.
`settings_sources` reads flags, environment and file. The last word of a name is its unit. Settings
of a new cluster (`bundles`, `producer_states_max`) count only in the process that creates the
cluster; afterwards `cluster.json` holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ledgermq.buffers import KIB, MIB
from ledgermq.protocol.naming.names import HOST_PATTERN
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_broker.settings.sources import names_of, read_sources, settle
from ledgermq_ledger.cluster import BUNDLES_MAX, ClusterDefaults
from ledgermq_ledger.topics.archive_location import archive_urls_of
from ledgermq_ledger.topics.settings import GRACE_MS_MAX
from ledgermq_offsets.limits import GroupLimits

PORT = 9650
ADMIN_PORT = 9651

HEARTBEAT_MS = {"file": 500, "hdfs": 1000, "s3": 3000}
TTL_MS_MAX = 100 * 365 * 24 * 3600 * 1000

SPACING_MS = {"file": 0, "hdfs": 100, "s3": 100}
"""Flush spacing by the scheme of the root; other schemes count as files.

A put to HDFS takes 40 ms, or half a second without the NameNode's setting of decision 14.
"""
SHARED_WITHIN_MS = {"file": 10, "hdfs": 1000, "s3": 500}
"""How long what principals send is in service while several of them send, by the scheme of the root: some
puts one after the other.
"""
GIVING_WAY_SHARES = {"file": 0.25, "hdfs": 0.0, "s3": 0.0}
"""How long a reader of a backlog waits for puts, for each second that it does not wait, by the scheme of the root. A
put to a distant store waits for the store, and a reader does not disturb it.
"""

T = TypeVar("T")


def _setting(default: Any, help_text: str, **rules: Any) -> Any:
    """Declare a setting that a process reads when it starts; `rules` as in pydantic's `Field`."""
    return Field(default, description=help_text, **rules)


def _live(default: Any, help_text: str, **rules: Any) -> Any:
    """Declare a setting that SIGHUP changes in a running process."""
    return Field(default, description=help_text, json_schema_extra={"live": True}, **rules)


def _is_live(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, Mapping) and field.json_schema_extra.get("live") is True


class ProcessSettings(BaseSettings):
    """Settings of every process."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **by_name: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Ignore all sources: only `load_settings` reads the environment."""
        return (init_settings,)

    cluster_id: str | None = _setting(
        None,
        "Accept only the root of this cluster; the process refuses any other root, and an empty one. Set it where a "
        "wrong root URL must not start a second cluster. `ledgermq inspect cluster ROOT` prints the id",
        pattern=r"^[0-9a-f]{32}$",
    )

    log_format: Literal["console", "json"] = _live(
        "console", "Format of the log lines on stderr: console for people, json for log collectors"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _live(
        "info", "Lowest level that is logged. Set debug to look into a problem, warning for less output"
    )

    shutdown_ms: int = _live(
        20_000,
        "Longest time after SIGTERM to flush and to hand over bundles; 3 s later the process exits in any case. Keep "
        "it shorter than the grace period of the supervisor, such as Kubernetes' terminationGracePeriodSeconds",
        ge=100,
    )

    admin_host: str = _setting(
        "127.0.0.1",
        "Address on which the admin port (/livez, /readyz, /metrics) listens; 0.0.0.0 for all. Set it when another "
        "machine scrapes metrics or probes health",
    )
    admin_port: int | None = _setting(
        None,
        "Admin port, HTTP; 0 takes a free port, not set opens none. Set it to get metrics and probes",
        ge=0,
        le=65535,
    )
    admin_tls: Literal["off", "on", "mutual"] = _setting(
        "off",
        "TLS of the admin port: on serves HTTPS with `tls_cert_file`; mutual also refuses clients without a certificate"
        " of `tls_client_ca_file`. Set it when the port can be reached from other machines",
    )

    tls_cert_file: str | None = _setting(
        None,
        "PEM file of this process's certificate, with its chain. With it a broker's port accepts TLS only (1.2 or"
        " newer), and the broker connects to other brokers by TLS: set it alike in all brokers. Its names must include"
        " the host of `advertised_address` and of `peer_address`. A changed file is read within seconds",
        min_length=1,
    )
    tls_key_file: str | None = _setting(
        None, "PEM file of the private key of `tls_cert_file`, without a password", min_length=1
    )
    tls_client_ca_file: str | None = _setting(
        None,
        "PEM file of the authorities that sign certificates of clients, and of the other brokers, which are clients,"
        " too. Used where `tls_client_auth` is required or `admin_tls` is mutual",
        min_length=1,
    )


class BrokerSettings(ProcessSettings):
    """Settings of a broker. The defaults fit one machine; None means that the kind of store decides
    (see `flush_spacing_s` and `heartbeat_interval_s`).
    """

    host: str = _setting(
        "127.0.0.1", "Address on which the broker listens; 0.0.0.0 for all. Set it when clients run on other machines"
    )
    port: int = _setting(PORT, "Port on which the broker listens; 0 takes a free port", ge=0, le=65535)
    advertised_address: str | None = _setting(
        None,
        "host:port at which clients and other brokers reach this broker; not set: its host and port. Set it behind a "
        "proxy, and in containers",
    )
    peer_address: str | None = _setting(
        None,
        "host:port at which other brokers reach this broker; not set: the advertised address. Set it when only clients "
        "can use the advertised address",
    )
    kafka_port: int | None = _setting(
        None,
        "Port for clients of the Kafka protocol (docs/kafka.md), with TLS where `tls_cert_file` is set; 0 takes a free"
        " port, not set opens none. Set it in all brokers alike: partitions of a broker without it are out of these"
        " clients' reach. Needs ledgermq[kafka]",
        ge=0,
        le=65535,
    )
    kafka_host: str = _setting(
        "127.0.0.1",
        "Address on which the Kafka port listens; 0.0.0.0 for all. Set it when such clients run on other machines",
    )
    kafka_advertised_address: str | None = _setting(
        None,
        "host:port at which clients of the Kafka protocol reach this broker; not set: `kafka_host` and the port. Set it"
        " behind a proxy, and in containers",
    )
    kafka_connections_max: int = _setting(
        5_000,
        "Connections to the Kafka port, at most half of the files that the process may open. Java clients open three to"
        " each broker for each thread",
        ge=1,
    )
    tls_client_auth: Literal["none", "required"] = _setting(
        "none",
        "required: refuse clients that show no certificate signed by an authority of `tls_client_ca_file`. Set it to"
        " let only machines and programs in that you gave a certificate",
    )
    tls_ca_file: str | None = _setting(
        None,
        "PEM file of the authorities that sign the certificates of the other brokers; not set: those that this machine"
        " trusts. Clients on this machine read it, too",
        min_length=1,
    )
    tls_server_name: str | None = _setting(
        None,
        "Name that the certificates of the other brokers must be made out for; not set: the host of each one's address."
        " Set it where all brokers share a certificate, as in Kubernetes. Clients on this machine read it, too",
        pattern=rf"^({HOST_PATTERN})$",
    )
    broker_id: str | None = _setting(
        None,
        "Name of this broker, unique in the cluster; not set: a random name at each start. Set it to recognise a broker"
        " in logs and metrics after a restart",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
    )
    rack: str = _setting(
        "",
        "Rack or availability zone in which this broker runs. Group members that give the same `rack` get partitions of"
        " this broker first, which saves traffic between zones",
        max_length=249,
    )

    security: Literal["auto", "open", "rules"] = _setting(
        "auto",
        "auto: rules if the root holds access rules or tokens, or if a broker of the cluster enforces them when this"
        " one starts, else open. open: every caller may do everything. rules: callers need a token or a client"
        " certificate, and only what access rules allow is served (docs/access.md). A broker refuses to start with"
        " rules while one of an older release, which would ignore them, is in the cluster",
    )
    super_principals: str = _live(
        "",
        "Principals that may do everything, whatever the rules say: user:NAME, cert:NAME or jwt:SUBJECT, separated by"
        " commas. Set one to be able to grant the first rules",
        pattern=r"^\s*((user|cert|jwt):[^\s,]+\s*(,\s*(user|cert|jwt):[^\s,]+\s*)*)?$",
    )
    jwt_issuer: str | None = _setting(
        None,
        "Identity provider (OpenID Connect) whose signed tokens prove callers: the https:// URL that is their claim"
        " iss. The subject of a token is the principal jwt:SUBJECT. Needs jwt_audience and security = rules",
    )
    jwt_audience: str = _setting(
        "", "The claim aud that a signed token must have, so that tokens for other programs do not count here"
    )
    jwt_keys_url: str | None = _setting(
        None,
        "https:// URL of the provider's public keys (JWKS); not set: found by its discovery document. They are fetched"
        " in the background every 10 minutes, and when a token names an unknown one",
    )
    jwt_groups_claim: str = _setting("groups", "Claim with the list of the caller's groups, group:NAME in rules")
    audit_file: str | None = _setting(
        None,
        "File to which the audit log is appended, one JSON object a line: who did what, on what, allowed or not, from"
        " where. Not set: it is part of the ordinary log",
    )

    flush_spacing_ms: int | None = _live(
        None,
        "Least time between the puts of two segments of a bundle while one is under way; a full segment does not wait. "
        "Not set: 0 for files, 100 for S3 and HDFS. Raise it for fewer requests, lower it for lower latency",
        ge=0,
        le=10_000,
    )
    flush_bytes: int = _live(
        8 * MIB,
        "Size at which a segment is put at once, without waiting for `flush_spacing_ms`. Lower it if puts of large "
        "segments are slow",
        ge=64 * KIB,
        le=64 * MIB,
    )
    produce_memory_bytes_max: int = _live(
        256 * MIB,
        "Memory for records that are received and not yet stored. Above it producers get RESOURCE_EXHAUSTED and retry "
        "later. Raise it if that happens while memory is free",
        ge=MIB,
    )
    produce_wait_ms_max: int | None = _live(
        None,
        "Longest time that a received record may wait for its put to begin, before the bundle refuses new ones with"
        " RESOURCE_EXHAUSTED and the time to come back. Not set: only `produce_memory_bytes_max` bounds what waits. Set"
        " it, to some times of a put, if producers have short time-outs and the store is slow at times",
        ge=1,
    )
    cache_bytes_max: int = _live(
        256 * MIB,
        "Memory for the newest batches, from which consumers near the end of a partition are served. Raise it if "
        "consumers fall out of the cache: metric ledgermq_reads_total",
        ge=0,
    )
    answer_memory_bytes_max: int = _live(
        256 * MIB,
        "Memory for fetch responses, from the read until the connection has taken them. Above it consumers wait. Raise "
        "it if ledgermq_waiting_readers stays above 0",
        ge=MIB,
    )
    direct_reads: bool | None = _setting(
        None,
        "Return the location of old batches to consumers that ask for it, so that these read segments from the store"
        " themselves; not set: true for files, false for other stores. On S3 the locations are URLs signed for 15"
        " minutes, each valid for a whole segment, records of other topics included: set true only if consumers may"
        " read all of them",
    )
    fetch_wait_ms_max: int = _live(
        30_000,
        "Longest wait of a fetch for new records. Lower it if a proxy cuts quiet connections earlier",
        ge=0,
    )

    filter_message_ms_max: int = _setting(
        1000,
        "Longest time that a filter function may take for a message. Then its process is ended, and the message judged "
        "once more; after the second time it is left out. Raise it if functions wait for something, lower it so that "
        "those that hang cost less",
        ge=10,
        le=60_000,
    )

    reserve_bytes: int = _setting(
        64 * MIB,
        "Files only: disk space kept in .reserve at the root, so that deletions, takeovers and checkpoints still work"
        " on a full disk; a sixteenth of the disk at most, 0 keeps none. Set it alike in all brokers of a root",
        ge=0,
    )

    heartbeat_interval_ms: int | None = _setting(
        None,
        "Time between two heartbeats, each a PUT and a LIST. Not set: 500 for files, 1000 for HDFS, 3000 for S3. Lower "
        "it for a faster takeover after a crash, raise it for fewer requests; set it alike in all brokers",
        ge=20,
    )
    holding_ms: int = _live(
        10_000,
        "Least time for which a broker keeps a bundle that it took, so that bundles do not move to and fro. Lower it to"
        " spread bundles faster after brokers start",
        ge=0,
    )

    auto_create_topics: bool = _live(
        False, "Create a topic when a client produces to it and it does not exist. Useful in development"
    )
    default_partitions: int = _live(4, "Number of partitions of a new topic if the client gives none", ge=1, le=10_000)
    partitions_max: int = _live(10_000, "Largest number of partitions of one topic", ge=1)
    topics_max: int = _live(10_000, "Largest number of topics in the cluster. Raise it when it is reached", ge=1)
    message_ttl_ms: int | None = _live(
        None,
        "Time to live of messages without their own, in topics that do not set `message.ttl.ms`: consumers skip"
        " messages that are older. Not set: none. Set it alike in all brokers",
        ge=1,
        le=TTL_MS_MAX,
    )
    message_ttl_ms_max: int | None = _live(
        None,
        "Longest time to live of any message, in topics that do not set `message.ttl.ms.max`; a longer one ends then."
        " Not set: none. Set it alike in all brokers",
        ge=1,
        le=TTL_MS_MAX,
    )
    topic_delete_grace_ms: int = _live(
        24 * 60 * 60 * 1000,
        "How long a deleted topic can be brought back by `ledgermq topic undelete`, if it does not set"
        " `topic.delete.grace.ms`: until then it keeps its name, its records and its storage. 0: a deletion is final at"
        " once. A topic keeps the time that it was deleted with. Set it alike in all brokers",
        ge=0,
        le=GRACE_MS_MAX,
    )
    archive_urls: str = _live(
        "",
        "URLs below which topics may have archives (`archive.url`), separated by commas: brokers and compactors write"
        " there with their own credentials. Not set: at the root's own endpoint only, and in no other folder of this"
        " machine. Set it alike in all brokers",
    )
    offsets_partitions: int = _setting(
        16,
        "Number of partitions of __consumer_offsets, used when the first group of the cluster creates it. Raise it"
        " before that for thousands of groups",
        ge=1,
        le=1000,
    )
    offsets_retention_ms: int = _setting(
        GroupLimits.retention_ms,
        "How long committed offsets are kept after the last member left the group. Raise it for consumers that run less"
        " than once a week",
        ge=1000,
    )
    group_session_timeout_ms: int = _setting(
        GroupLimits.session_timeout_ms,
        "How long a group member may send no heartbeat before it loses its partitions, unless the member chooses its"
        " own `session_timeout_s`. Lower it for a faster hand-over after a crash, raise it if busy members are removed",
        ge=GroupLimits.session_timeout_ms_min,
        le=GroupLimits.session_timeout_ms_max,
    )
    group_members_max: int = _setting(
        GroupLimits.members_max,
        "Largest number of members of one group; another one gets RESOURCE_EXHAUSTED",
        ge=1,
        le=100_000,
    )
    background_compaction: bool = _live(
        True,
        "Write Parquet files from segments in this process, in the background. Set false when a compaction service "
        "(`ledgermq compactor`) or Spark does it",
    )
    compaction_memory_bytes_max: int = _live(
        256 * MIB,
        "Approximate memory of background compaction. With less memory row groups are smaller and segments are read"
        " more often",
        ge=16 * MIB,
    )
    checkpoint_slots: int = _live(
        256,
        "Number of segments of a bundle after which a checkpoint is written, at the latest. Lower it for faster "
        "takeovers, raise it for fewer requests",
        ge=1,
    )

    bundles: int = _setting(
        ClusterDefaults().bundles,
        "New cluster: number of bundles, one of them for metadata. At most this many brokers can own data. "
        "`ledgermq cluster add-bundles` adds some later, for new partitions: choose at least the number of brokers "
        "that shall share the first topics",
        ge=2,
        le=BUNDLES_MAX,
    )
    producer_states_max: int = _setting(
        ClusterDefaults().producer_states_max,
        "New cluster: number of producer sessions per bundle whose duplicates are recognised. It cannot change later. "
        "Raise it if more producers than this are active at once",
        ge=1,
    )

    def cluster_defaults(self, constants: BrokerConstants | None = None) -> ClusterDefaults:
        """Return what `cluster.json` gets if this process creates the cluster."""
        chosen = constants or BrokerConstants()
        return ClusterDefaults(self.bundles, self.producer_states_max, chosen.url_life_ms, chosen.parquet_min_age_ms)

    def supers(self) -> frozenset[str]:
        """Return the super principals."""
        return frozenset(name.strip() for name in self.super_principals.split(",") if name.strip())

    def heartbeat_interval_s(self, root_url: str) -> float:
        """Return the interval of heartbeats. A heartbeat is a PUT and a LIST: on S3, three seconds
        keep the bill below half a dollar per day and broker.
        """
        chosen = self.heartbeat_interval_ms
        return (chosen if chosen is not None else HEARTBEAT_MS.get(_scheme(root_url), HEARTBEAT_MS["file"])) / 1000

    @field_validator("archive_urls")
    @classmethod
    def _urls(cls, value: str) -> str:
        archive_urls_of(value)
        return value

    def shares_locations(self, root_url: str) -> bool:
        """Return whether consumers may read segments themselves.

        The path of a file grants no access beyond the file's permissions; a signed URL does.
        """
        return self.direct_reads if self.direct_reads is not None else _scheme(root_url) == "file"

    def flush_spacing_s(self, root_url: str) -> float:
        chosen = self.flush_spacing_ms
        return (chosen if chosen is not None else SPACING_MS.get(_scheme(root_url), SPACING_MS["file"])) / 1000


def shared_within_s(root_url: str) -> float:
    return SHARED_WITHIN_MS.get(_scheme(root_url), SHARED_WITHIN_MS["file"]) / 1000


def giving_way_share(root_url: str) -> float:
    return GIVING_WAY_SHARES.get(_scheme(root_url), GIVING_WAY_SHARES["file"])


class CompactionSettings(ProcessSettings):
    """Settings of the compaction service (`ledgermq compactor`)."""

    compaction_interval_ms: int = _live(
        60_000,
        "Compaction service: pause between two runs over all bundles. Lower it if records have to be in Parquet sooner",
        ge=100,
    )
    compaction_engine: str = _setting("local", "Compaction service: where its tasks run, local (this process) or spark")


def _scheme(root_url: str) -> str:
    return root_url.partition(":")[0]


KINDS: tuple[type[ProcessSettings], ...] = (BrokerSettings, CompactionSettings)
NAMES = names_of(*KINDS)
LIVE = frozenset(name for kind in KINDS for name, field in kind.model_fields.items() if _is_live(field))
"""Settings that SIGHUP changes in a running process; all others need a restart."""

_CONSTANT = "its value is a constant now"
_PRICES = (
    "ledgermq_store_dollars counts the list prices of S3 Standard; recompute other prices from"
    " ledgermq_store_requests_total"
)
_OF_CLUSTERS = "cluster.json of a new cluster holds the default, and that of an existing cluster counts"
REMOVED = {
    "price_write_dollars": _PRICES,
    "price_read_dollars": _PRICES,
    "price_delete_dollars": _PRICES,
    "metrics_topics_max": f"{_CONSTANT}: the first 100 topics have separate metrics",
    "fetch_bytes": f"{_CONSTANT}: 4 MiB; a consumer sets `fetch_bytes_max`",
    "produce_window": f"{_CONSTANT}: 64 requests of a stream; `produce_memory_bytes_max` bounds their memory",
    "calls_max": f"{_CONSTANT}: 2000 calls and streams",
    "ownership_wait_ms": f"{_CONSTANT}: 3 s; clients retry within `timeout_s`",
    "trouble_retry_ms": f"{_CONSTANT}: 30 s",
    "cleaning_bytes_max": (
        f"{_CONSTANT}: 256 MiB; `background_compaction = false` leaves cleaning to the compaction service"
    ),
    "checkpoint_bytes": f"{_CONSTANT}: 64 MiB; `checkpoint_slots` sets how often checkpoints are written",
    "url_life_ms": _OF_CLUSTERS,
    "parquet_min_age_ms": _OF_CLUSTERS,
}
"""Removed settings, each with what to do instead. Until the first release on a package index a setting goes without a
release that warns; from then on it works for one more release with a logged warning (docs/upgrades.md).
"""


@dataclass(frozen=True, slots=True)
class BrokerConstants:
    """Constants that no operator sets; tests and simulations inject other values.

    `damaged_retry_s`: pause before a bundle with damaged data is opened again. `ownership_wait_s`:
    how long a request waits for a bundle that this broker is taking over. `carry_slots`: how many
    slots staged batches may be behind before they are carried forward. `url_life_ms` and
    `parquet_min_age_ms` go into the `cluster.json` of a new cluster. `limits`: those of features that are not the
    defaults of their types (`BrokerParts.limits_of`). `loads`: how loads are measured, and when bundles move.
    """

    damaged_retry_s: float = 30.0
    ownership_wait_s: float = 3.0
    url_life_ms: int = ClusterDefaults().url_life_ms
    parquet_min_age_ms: int = ClusterDefaults().parquet_min_age_ms
    limits: tuple[object, ...] = ()
    carry_slots: int = 2048
    loads: LoadTimes = field(default_factory=LoadTimes)


def default_of(name: str) -> Any:
    """Return the default of a broker's setting."""
    return BrokerSettings.model_fields[name].default


def from_settings(kind: type[T], settings: ProcessSettings, **more: Any) -> T:
    """Return a value of the dataclass `kind`: fields named like settings have the values of those,
    `more` sets other fields, and the rest keep their defaults.
    """
    values = dict(settings)
    named = {field.name: values[field.name] for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**named, **more)


def load_settings(file: Path | None = None, **flags: Any) -> BrokerSettings:
    """Load the settings of a broker. `flags`: settings by name; None = not given.

    Raises InvalidConfig for a wrong value, an unknown name (with the nearest one), and a name that
    was removed (with what to do).
    """
    return settle(BrokerSettings, read_sources(KINDS, file, flags, REMOVED))


def is_reached_from_elsewhere(settings: BrokerSettings) -> bool:
    """Return whether a port of the broker for clients listens on more than this machine's own address."""
    return not is_local(settings.host) or (settings.kafka_port is not None and not is_local(settings.kafka_host))


def is_local(host: str) -> bool:
    """Return whether only programs on this machine reach a port at this address."""
    return host in ("127.0.0.1", "localhost", "::1")


def load_compaction_settings(file: Path | None = None, **flags: Any) -> CompactionSettings:
    """Load the settings of the compaction service, from the same file and variables."""
    return settle(CompactionSettings, read_sources(KINDS, file, flags, REMOVED))

"""The settings of a broker. Those of a new cluster (`bundles`, `producer_states_max`) count only in the process that
creates the cluster; afterwards `cluster.json` holds them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from ledgermq.buffers import KIB, MIB
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.naming.names import HOST_PATTERN
from ledgermq_broker.settings.by_store import heartbeat_s, scheme_of, spacing_s
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.settings.declaring import ProcessSettings, live, setting
from ledgermq_ledger.cluster import BUNDLES_MAX, ClusterDefaults
from ledgermq_ledger.cuts.automatic import KEEP, Schedule, parse_schedule
from ledgermq_ledger.object_store.prices import Prices, prices_for
from ledgermq_ledger.topics.archive_location import archive_urls_of
from ledgermq_ledger.topics.settings import GRACE_MS_MAX
from ledgermq_offsets.limits import GroupLimits

PORT = 9650
ADMIN_PORT = 9651
TTL_MS_MAX = 100 * 365 * 24 * 3600 * 1000


class BrokerSettings(ProcessSettings):
    """Settings of a broker. The defaults fit one machine; None means that the kind of store decides
    (see `flush_spacing_s` and `heartbeat_interval_s`).
    """

    host: str = setting(
        "127.0.0.1", "Address on which the broker listens; 0.0.0.0 for all. Set it when clients run on other machines"
    )
    port: int = setting(PORT, "Port on which the broker listens; 0 takes a free port", ge=0, le=65535)
    advertised_address: str | None = setting(
        None,
        "host:port at which clients and other brokers reach this broker; not set: its host and port. Set it behind a "
        "proxy, and in containers",
    )
    peer_address: str | None = setting(
        None,
        "host:port at which other brokers reach this broker; not set: the advertised address. Set it when only clients "
        "can use the advertised address",
    )
    kafka_port: int | None = setting(
        None,
        "Port for clients of the Kafka protocol (docs/kafka.md), with TLS where `tls_cert_file` is set; 0 takes a free"
        " port, not set opens none. Set it in all brokers alike: partitions of a broker without it are out of these"
        " clients' reach. Needs ledgermq[kafka]",
        ge=0,
        le=65535,
    )
    kafka_host: str = setting(
        "127.0.0.1",
        "Address on which the Kafka port listens; 0.0.0.0 for all. Set it when such clients run on other machines",
    )
    kafka_advertised_address: str | None = setting(
        None,
        "host:port at which clients of the Kafka protocol reach this broker; not set: `kafka_host` and the port. Set it"
        " behind a proxy, and in containers",
    )
    kafka_share_auto_offset_reset: Literal["latest", "earliest"] = setting(
        "latest",
        "Where a share group of the Kafka protocol begins in a partition that it has not read yet: latest, as in Kafka,"
        " or earliest. Set it in all brokers alike",
    )
    kafka_connections_max: int = setting(
        5_000,
        "Connections to the Kafka port, at most half of the files that the process may open. Java clients open three to"
        " each broker for each thread",
        ge=1,
    )
    tracing: bool = setting(
        False,
        "Record spans of batches whose producers record their traces (docs/tracing.md). A broker process sends them to"
        " the collector that OTEL_EXPORTER_OTLP_ENDPOINT names; needs ledgermq[otlp]. Clients on this machine read it,"
        " too",
    )
    tls_client_auth: Literal["none", "required"] = setting(
        "none",
        "required: refuse clients that show no certificate signed by an authority of `tls_client_ca_file`. Set it to"
        " let only machines and programs in that you gave a certificate",
    )
    tls_ca_file: str | None = setting(
        None,
        "PEM file of the authorities that sign the certificates of the other brokers; not set: those that this machine"
        " trusts. Clients on this machine read it, too",
        min_length=1,
    )
    tls_server_name: str | None = setting(
        None,
        "Name that the certificates of the other brokers must be made out for; not set: the host of each one's address."
        " Set it where all brokers share a certificate, as in Kubernetes. Clients on this machine read it, too",
        pattern=rf"^({HOST_PATTERN})$",
    )
    broker_id: str | None = setting(
        None,
        "Name of this broker, unique in the cluster; not set: a random name at each start. Set it to recognise a broker"
        " in logs and metrics after a restart",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
    )
    rack: str = setting(
        "",
        "Rack or availability zone in which this broker runs. Records without a key from programs that give the same"
        " `rack` go to partitions of this broker, and their group members get these first, which saves traffic between"
        " zones",
        max_length=249,
    )

    security: Literal["auto", "open", "rules"] = setting(
        "auto",
        "auto: rules if the root holds access rules or tokens, or if a broker of the cluster enforces them when this"
        " one starts, else open. open: every caller may do everything. rules: callers need a token or a client"
        " certificate, and only what access rules allow is served (docs/access.md). A broker refuses to start with"
        " rules while one of an older release, which would ignore them, is in the cluster",
    )
    super_principals: str = live(
        "",
        "Principals that may do everything, whatever the rules say: user:NAME, cert:NAME or jwt:SUBJECT, separated by"
        " commas. Set one to be able to grant the first rules",
        pattern=r"^\s*((user|cert|jwt):[^\s,]+\s*(,\s*(user|cert|jwt):[^\s,]+\s*)*)?$",
    )
    delegates: str = live(
        "",
        "Principals that pass on the calls of others, such as HTTP gateways: user:NAME, cert:NAME or jwt:SUBJECT,"
        " separated by commas. Only they are believed when they name the address of a caller, which the audit log then"
        " has besides theirs (docs/security.md). They get no right by it",
        pattern=r"^\s*((user|cert|jwt):[^\s,]+\s*(,\s*(user|cert|jwt):[^\s,]+\s*)*)?$",
    )
    jwt_issuer: str | None = setting(
        None,
        "Identity provider (OpenID Connect) whose signed tokens prove callers: the https:// URL that is their claim"
        " iss. The subject of a token is the principal jwt:SUBJECT. Needs jwt_audience and security = rules",
    )
    jwt_audience: str = setting(
        "", "The claim aud that a signed token must have, so that tokens for other programs do not count here"
    )
    jwt_keys_url: str | None = setting(
        None,
        "https:// URL of the provider's public keys (JWKS); not set: found by its discovery document. They are fetched"
        " in the background every 10 minutes, and when a token names an unknown one",
    )
    jwt_groups_claim: str = setting("groups", "Claim with the list of the caller's groups, group:NAME in rules")
    audit_file: str | None = setting(
        None,
        "File to which the audit log is appended, one JSON object a line: who did what, on what, allowed or not, from"
        " where. Not set: it is part of the ordinary log",
    )

    flush_spacing_ms: int | None = live(
        None,
        "Least time between the puts of two segments of a bundle while one is under way; a full segment does not wait. "
        "Not set: 0 for files, 100 for S3 and HDFS. Raise it for fewer requests, lower it for lower latency",
        ge=0,
        le=10_000,
    )
    flush_bytes: int = live(
        8 * MIB,
        "Size at which a segment is put at once, without waiting for `flush_spacing_ms`. Lower it if puts of large "
        "segments are slow",
        ge=64 * KIB,
        le=64 * MIB,
    )
    produce_memory_bytes_max: int = live(
        256 * MIB,
        "Memory for records that are received and not yet stored. Above it producers get RESOURCE_EXHAUSTED and retry "
        "later. Raise it if that happens while memory is free",
        ge=MIB,
    )
    produce_wait_ms_max: int | None = live(
        None,
        "Longest time that a received record may wait for its put to begin, before the bundle refuses new ones with"
        " RESOURCE_EXHAUSTED and the time to come back. Not set: only `produce_memory_bytes_max` bounds what waits. Set"
        " it, to some times of a put, if producers have short time-outs and the store is slow at times",
        ge=1,
    )
    cache_bytes_max: int = live(
        256 * MIB,
        "Memory for the newest batches, from which consumers near the end of a partition are served. Raise it if "
        "consumers fall out of the cache: metric ledgermq_reads_total",
        ge=0,
    )
    answer_memory_bytes_max: int = live(
        256 * MIB,
        "Memory for fetch responses, from the read until the connection has taken them. Above it consumers wait. Raise "
        "it if ledgermq_waiting_readers stays above 0",
        ge=MIB,
    )
    direct_reads: bool | None = setting(
        None,
        "Return the location of old batches to consumers that ask for it, so that these read segments from the store"
        " themselves; not set: true for files, false for other stores. On S3 the locations are URLs signed for 15"
        " minutes, each valid for a whole segment, records of other topics included: set true only if consumers may"
        " read all of them",
    )
    fetch_wait_ms_max: int = live(
        30_000,
        "Longest wait of a fetch for new records. Lower it if a proxy cuts quiet connections earlier",
        ge=0,
    )

    filter_message_ms_max: int = setting(
        1000,
        "Longest time that a filter function may take for a message. Then its process is ended, and the message judged "
        "once more; after the second time it is left out. Raise it if functions wait for something, lower it so that "
        "those that hang cost less",
        ge=10,
        le=60_000,
    )

    reserve_bytes: int = setting(
        64 * MIB,
        "Files only: disk space kept in .reserve at the root, so that deletions, takeovers and checkpoints still work"
        " on a full disk; a sixteenth of the disk at most, 0 keeps none. Set it alike in all brokers of a root",
        ge=0,
    )

    heartbeat_interval_ms: int | None = setting(
        None,
        "Time between two heartbeats, each a PUT and a LIST. Not set: 500 for files, 1000 for HDFS, 3000 for S3. Lower "
        "it for a faster takeover after a crash, raise it for fewer requests; set it alike in all brokers",
        ge=20,
    )
    holding_ms: int = live(
        10_000,
        "Least time for which a broker keeps a bundle that it took, so that bundles do not move to and fro. Lower it to"
        " spread bundles faster after brokers start",
        ge=0,
    )

    auto_create_topics: bool = live(
        False, "Create a topic when a client produces to it and it does not exist. Useful in development"
    )
    default_partitions: int = live(4, "Number of partitions of a new topic if the client gives none", ge=1, le=10_000)
    partitions_max: int = live(10_000, "Largest number of partitions of one topic", ge=1)
    topics_max: int = live(10_000, "Largest number of topics in the cluster. Raise it when it is reached", ge=1)
    message_ttl_ms: int | None = live(
        None,
        "Time to live of messages without their own, in topics that do not set `message.ttl.ms`: consumers skip"
        " messages that are older. Not set: none. Set it alike in all brokers",
        ge=1,
        le=TTL_MS_MAX,
    )
    message_ttl_ms_max: int | None = live(
        None,
        "Longest time to live of any message, in topics that do not set `message.ttl.ms.max`; a longer one ends then."
        " Not set: none. Set it alike in all brokers",
        ge=1,
        le=TTL_MS_MAX,
    )
    topic_delete_grace_ms: int = live(
        24 * 60 * 60 * 1000,
        "How long a deleted topic can be brought back by `ledgermq topic undelete`, if it does not set"
        " `topic.delete.grace.ms`: until then it keeps its name, its records and its storage. 0: a deletion is final at"
        " once. A topic keeps the time that it was deleted with. Set it alike in all brokers",
        ge=0,
        le=GRACE_MS_MAX,
    )
    cut_every_ms: int = live(
        0,
        "Time between two cuts of the whole cluster that the controller takes by itself (docs/branches.md), named"
        " auto-TIME. 0: none. Set it, to some minutes, to go back to a point in time. Set it alike in all brokers",
        ge=0,
        le=GRACE_MS_MAX,
    )
    cut_keep: str = live(
        KEEP,
        "How long automatic cuts are kept: a time, and after it one cut of each period for longer, like '24h, then"
        " hourly 7d, then every 12h 30d'. What a cut names stays in the store. A cut keeps the time that it began with."
        " Set it alike in all brokers",
        validate_default=True,
    )
    archive_urls: str = live(
        "",
        "URLs below which topics may have archives (`archive.url`), separated by commas: brokers and compactors write"
        " there with their own credentials. Not set: at the root's own endpoint only, and in no other folder of this"
        " machine. Set it alike in all brokers",
    )
    offsets_partitions: int = setting(
        16,
        "Number of partitions of __consumer_offsets, used when the first group of the cluster creates it. Raise it"
        " before that for thousands of groups",
        ge=1,
        le=1000,
    )
    offsets_retention_ms: int = setting(
        GroupLimits.retention_ms,
        "How long committed offsets are kept after the last member left the group. Raise it for consumers that run less"
        " than once a week",
        ge=1000,
    )
    group_session_timeout_ms: int = setting(
        GroupLimits.session_timeout_ms,
        "How long a group member may send no heartbeat before it loses its partitions, unless the member chooses its"
        " own `session_timeout_s`. Lower it for a faster hand-over after a crash, raise it if busy members are removed",
        ge=GroupLimits.session_timeout_ms_min,
        le=GroupLimits.session_timeout_ms_max,
    )
    group_members_max: int = setting(
        GroupLimits.members_max,
        "Largest number of members of one group; another one gets RESOURCE_EXHAUSTED",
        ge=1,
        le=100_000,
    )
    background_compaction: bool = live(
        True,
        "Write Parquet files from segments in this process, in the background. Set false when a compaction service "
        "(`ledgermq compactor`) or Spark does it",
    )
    compaction_memory_bytes_max: int = live(
        256 * MIB,
        "Approximate memory of background compaction. With less memory row groups are smaller and segments are read"
        " more often",
        ge=16 * MIB,
    )
    checkpoint_slots: int = live(
        256,
        "Number of segments of a bundle after which a checkpoint is written, at the latest. Lower it for faster "
        "takeovers, raise it for fewer requests",
        ge=1,
    )

    price_put_dollars: float | None = live(None, "Price of a thousand PUTs. Default: 0.005 for S3, else 0", ge=0)
    price_get_dollars: float | None = live(None, "Price of a thousand GETs. Default: 0.0004 for S3, else 0", ge=0)
    price_tb_month_dollars: float | None = live(None, "Price of a TB kept a month. Default: 23 for S3, else 0", ge=0)

    bundles: int = setting(
        ClusterDefaults().bundles,
        "New cluster: number of bundles, one of them for metadata. At most this many brokers can own data. "
        "`ledgermq cluster add-bundles` adds some later, for new partitions: choose at least the number of brokers "
        "that shall share the first topics",
        ge=2,
        le=BUNDLES_MAX,
    )
    producer_states_max: int = setting(
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
        return _names(self.super_principals)

    def trusted(self) -> frozenset[str]:
        """Return the principals that are believed about addresses of callers (`delegates`)."""
        return _names(self.delegates)

    def heartbeat_interval_s(self, root_url: str) -> float:
        chosen = self.heartbeat_interval_ms
        return heartbeat_s(root_url) if chosen is None else chosen / 1000

    @field_validator("archive_urls")
    @classmethod
    def _urls(cls, value: str) -> str:
        archive_urls_of(value)
        return value

    @field_validator("cut_keep")
    @classmethod
    def _schedule(cls, value: str, info: ValidationInfo) -> str:
        try:
            parse_schedule(info.data.get("cut_every_ms", 0), value)
        except InvalidConfig as error:
            raise ValueError(error.message) from error
        return value

    def cut_schedule(self) -> Schedule:
        """Return when automatic cuts are taken, and how long each is kept."""
        return parse_schedule(self.cut_every_ms, self.cut_keep)

    def prices(self, root_url: str) -> Prices:
        """Return the prices of the store: those that are set, and the list prices of this kind of store."""
        chosen = (self.price_put_dollars, self.price_get_dollars, self.price_tb_month_dollars)
        return prices_for(root_url).changed(*chosen)

    def shares_locations(self, root_url: str) -> bool:
        """Return whether consumers may read segments themselves.

        The path of a file grants no access beyond the file's permissions; a signed URL does.
        """
        return self.direct_reads if self.direct_reads is not None else scheme_of(root_url) == "file"

    def flush_spacing_s(self, root_url: str) -> float:
        chosen = self.flush_spacing_ms
        return spacing_s(root_url) if chosen is None else chosen / 1000


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())

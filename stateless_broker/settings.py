"""The settings of LedgerMQ's processes (broker, embedded broker, compaction service): frozen,
typed, each with its default and range here.

Where they come from is `settings_sources`. Units are the last word of a name. What all brokers of a
cluster must agree on (`bundles` and below) counts only when this process is the one that creates
the cluster; afterwards `cluster.json` says it. docs/settings.md is made from these classes by
`settings_page`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ledger.cluster import BUNDLES_MAX, ClusterDefaults
from ledgermq.buffers import KIB, MIB
from stateless_broker.settings_sources import names_of, read_sources, settle

PORT = 9650
ADMIN_PORT = 9651


class ProcessSettings(BaseSettings):
    """Of every process. Prices are None where the kind of store decides (see `prices_for`)."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **by_name: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Plain data: only `load_settings` looks at the environment."""
        return (init_settings,)

    cluster_id: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}$",
        description="Refuse every root but the one of this cluster, an empty one too; `ledgermq inspect cluster ROOT` shows the id",
    )

    log_format: Literal["console", "json"] = Field(
        "console", description="How log lines on stderr look: for people or for programs"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least level that is logged"
    )

    shutdown_ms: int = Field(
        20_000, ge=100, description="SIGTERM: time to flush and hand over; 3 s later the process ends anyway"
    )

    admin_host: str = Field(
        "127.0.0.1", description="Address of the admin port (/livez, /readyz, /metrics); 0.0.0.0 for all"
    )
    admin_port: int | None = Field(
        None, ge=0, le=65535, description="Admin port over HTTP; 0 takes a free one, not set opens none"
    )
    metrics_topics_max: int = Field(
        100, ge=0, le=10_000, description="Topics with metrics of their own; all others are summed up"
    )

    price_write_dollars: float | None = Field(
        None, ge=0, le=1000, description="What the store asks for 1000 PUT or LIST requests; 0.005 for S3, 0 for others"
    )
    price_read_dollars: float | None = Field(
        None, ge=0, le=1000, description="The same for 1000 GET or HEAD requests; 0.0004 for S3"
    )
    price_delete_dollars: float | None = Field(None, ge=0, le=1000, description="The same for 1000 deleted objects; 0")


HEARTBEAT_MS = {"s3": 3000, "hdfs": 1000}
SPACING_MS = {"s3": 100, "hdfs": 100}
"""By the scheme of the root.

A put of HDFS takes half a second, so several have to be on their way.
"""


def _scheme(root_url: str) -> str:
    return root_url.partition(":")[0]


class BrokerSettings(ProcessSettings):
    """Defaults are for one machine; `None` where the kind of store decides (see `flush_spacing_s`
    and `heartbeat_interval_s`).
    """

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all")
    port: int = Field(PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    advertised_address: str | None = Field(
        None, description="host:port by which clients and other brokers reach this one"
    )
    peer_address: str | None = Field(
        None,
        description="host:port by which other brokers reach this one, where the advertised address is for clients alone",
    )
    broker_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of this process, unique in the cluster; drawn at random if not set",
    )

    flush_spacing_ms: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Between two segments of a bundle while a put is on its way, else none; 0 for files, 100 for S3 and HDFS",
    )
    flush_bytes: int = Field(
        8 * MIB, ge=64 * KIB, le=64 * MIB, description="A segment is put at once when this much waits"
    )
    produce_memory_bytes_max: int = Field(
        256 * MIB, ge=MIB, description="Admitted and not yet durable; above it producers are asked to come back"
    )
    cache_bytes_max: int = Field(256 * MIB, ge=0, description="Newest batches kept for consumers that are near the end")
    answer_memory_bytes_max: int = Field(
        256 * MIB,
        ge=MIB,
        description="Answers on their way to consumers, from the read until the connection has taken them; above it consumers wait",
    )
    fetch_bytes: int = Field(4 * MIB, ge=4 * KIB, description="Size of a fetch answer when the client does not say")
    direct_reads: bool | None = Field(
        None,
        description="Tell consumers that ask for it where old batches are, and let them read the segments themselves; not set: yes for "
        "files. On S3 by URLs signed for 15 minutes, each good for a whole segment, records of other topics included",
    )
    fetch_wait_ms_max: int = Field(30_000, ge=0, description="Longest long poll")
    produce_window: int = Field(
        64, ge=1, le=10_000, description="Produce requests of one stream that may wait for their answer"
    )
    calls_max: int = Field(2000, ge=10, description="gRPC calls and streams at the same time; more are refused")

    reserve_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Files: room kept in .reserve at the root for deletions, takeovers and checkpoints on a full disk; at most a sixteenth "
        "of the disk; the same for all brokers of a root; 0 keeps none",
    )

    heartbeat_interval_ms: int | None = Field(
        None, ge=20, description="Between two heartbeats; 500 for files, 1000 for HDFS, 3000 for S3"
    )
    holding_ms: int = Field(
        10_000, ge=0, description="A bundle that was taken stays at least this long, if its owner lives"
    )
    ownership_wait_ms: int = Field(
        3000, ge=0, description="A request for a bundle that this broker is just taking over waits this long"
    )
    trouble_retry_ms: int = Field(30_000, ge=10, description="A bundle with damaged data is tried again after this")

    auto_create_topics: bool = Field(False, description="Producing to a topic that does not exist creates it")
    default_partitions: int = Field(
        4, ge=1, le=10_000, description="Partitions of a topic when the client does not say"
    )
    partitions_max: int = Field(10_000, ge=1, description="Most partitions of one topic")
    topics_max: int = Field(10_000, ge=1, description="Most topics of the cluster")
    offsets_partitions: int = Field(
        16, ge=1, le=1000, description="Partitions of __consumer_offsets, when the first group makes it"
    )
    offsets_retention_ms: int = Field(
        7 * 24 * 3600 * 1000, ge=1000, description="Committed offsets stay this long after their group is empty"
    )
    group_session_timeout_ms: int = Field(
        45_000,
        ge=1000,
        le=1_800_000,
        description="A member of a group that is silent for this long is put out, if it does not choose itself",
    )
    group_members_max: int = Field(1000, ge=1, le=100_000, description="Most members of one group")
    background_compaction: bool = Field(True, description="Move segments to Parquet in this process, slowly")
    compaction_memory_bytes_max: int = Field(
        256 * MIB,
        ge=16 * MIB,
        description="What background compaction may take, about; with less, row groups are smaller and segments are read more often",
    )
    cleaning_bytes_max: int = Field(
        256 * MIB,
        ge=0,
        description="Keyed partitions whose files take more are cleaned by the compaction service, not in this process",
    )
    checkpoint_slots: int = Field(256, ge=1, description="A checkpoint at the latest after this many segments")
    checkpoint_bytes: int = Field(64 * MIB, ge=KIB, description="A checkpoint at the latest after this many bytes")

    bundles: int = Field(5, ge=2, le=BUNDLES_MAX, description="New cluster: bundles, the one for metadata included")
    producer_states_max: int = Field(100_000, ge=1, description="New cluster: producer sessions remembered per bundle")
    url_life_ms: int = Field(15 * 60 * 1000, ge=1000, description="New cluster: life of presigned URLs")
    parquet_min_age_ms: int = Field(
        60 * 60 * 1000, ge=4000, description="New cluster: least age of a Parquet file that is deleted"
    )

    def cluster_defaults(self) -> ClusterDefaults:
        return ClusterDefaults(self.bundles, self.producer_states_max, self.url_life_ms, self.parquet_min_age_ms)

    def heartbeat_interval_s(self, root_url: str) -> float:
        """A heartbeat is a PUT and a LIST: on S3 three seconds keep the bill below half a dollar a
        day and broker.
        """
        chosen = self.heartbeat_interval_ms
        return (chosen if chosen is not None else HEARTBEAT_MS.get(_scheme(root_url), 500)) / 1000

    def tells_places(self, root_url: str) -> bool:
        """A file's path opens nothing that its permissions keep shut; a signed URL does."""
        return self.direct_reads if self.direct_reads is not None else _scheme(root_url) == "file"

    def flush_spacing_s(self, root_url: str) -> float:
        chosen = self.flush_spacing_ms
        return (chosen if chosen is not None else SPACING_MS.get(_scheme(root_url), 0)) / 1000


class CompactionSettings(ProcessSettings):
    """Of the compaction service (`ledgermq compactor`)."""

    compaction_interval_ms: int = Field(
        60_000, ge=100, description="Compaction service: pause between two runs over all bundles"
    )
    compaction_engine: str = Field(
        "local", description="Compaction service: where the tasks run, local (this process) or spark"
    )


KINDS: tuple[type[ProcessSettings], ...] = (BrokerSettings, CompactionSettings)
NAMES = names_of(*KINDS)

LIVE = frozenset(
    {
        *("log_format", "log_level", "metrics_topics_max"),
        *("price_write_dollars", "price_read_dollars", "price_delete_dollars"),
        *("flush_spacing_ms", "flush_bytes", "produce_memory_bytes_max", "cache_bytes_max", "answer_memory_bytes_max"),
        *("fetch_bytes", "fetch_wait_ms_max", "produce_window"),
        *("holding_ms", "ownership_wait_ms", "trouble_retry_ms", "shutdown_ms"),
        *("auto_create_topics", "default_partitions", "partitions_max", "topics_max"),
        *(
            "checkpoint_slots",
            "checkpoint_bytes",
            "background_compaction",
            "cleaning_bytes_max",
            "compaction_interval_ms",
        ),
        "compaction_memory_bytes_max",
    }
)
"""What SIGHUP changes in a running process; everything else needs a restart."""


def load_settings(file: Path | None = None, **flags: Any) -> BrokerSettings:
    """`flags`: settings by name; None = not given. Raises InvalidConfig, naming the setting, and
    its nearest name where it is unknown.
    """
    return settle(BrokerSettings, read_sources(KINDS, file, flags))


def load_compaction_settings(file: Path | None = None, **flags: Any) -> CompactionSettings:
    """The same for the compaction service, from the same file and variables."""
    return settle(CompactionSettings, read_sources(KINDS, file, flags))

"""The settings of a broker process: one frozen, typed place, read from flags, then LEDGERMQ_… variables, then a TOML file.

Units are the last word of a name. What all brokers of a cluster must agree on (`bundles` and below) counts only when this process
is the one that creates the cluster; afterwards `cluster.json` says it.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from ledger.cluster import BUNDLES_MAX, ClusterDefaults
from ledgermq.errors import InvalidConfig

PORT = 9650
KIB, MIB = 1024, 1024 * 1024


class BrokerSettings(BaseSettings):
    """Defaults are for one machine; `None` where the kind of store decides (see `for_store`)."""

    model_config = SettingsConfigDict(env_prefix="LEDGERMQ_", frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all")
    port: int = Field(PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    advertised_address: str | None = Field(None, description="host:port by which clients and other brokers reach this one")
    broker_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of this process, unique in the cluster; drawn at random if not set"
    )

    flush_spacing_ms: int | None = Field(
        None, ge=0, le=10_000, description="Least time between two segments of a bundle; 0 for files, 100 for S3"
    )
    flush_bytes: int = Field(8 * MIB, ge=64 * KIB, le=64 * MIB, description="A segment is put at once when this much waits")
    produce_memory_bytes_max: int = Field(
        256 * MIB, ge=MIB, description="Admitted and not yet durable; above it producers are asked to come back"
    )
    cache_bytes_max: int = Field(256 * MIB, ge=0, description="Newest batches kept for consumers that are near the end")
    fetch_bytes: int = Field(4 * MIB, ge=4 * KIB, description="Size of a fetch answer when the client does not say")
    fetch_wait_ms_max: int = Field(30_000, ge=0, description="Longest long poll")
    produce_window: int = Field(64, ge=1, le=10_000, description="Produce requests of one stream that may wait for their answer")
    calls_max: int = Field(2000, ge=10, description="gRPC calls and streams at the same time; more are refused")

    heartbeat_interval_ms: int | None = Field(None, ge=20, description="500 for files, 3000 for S3")
    holding_ms: int = Field(10_000, ge=0, description="A bundle that was taken stays at least this long, if its owner lives")
    ownership_wait_ms: int = Field(3000, ge=0, description="A request for a bundle that this broker is just taking over waits this long")
    trouble_retry_ms: int = Field(30_000, ge=10, description="A bundle with damaged data is tried again after this")
    shutdown_ms: int = Field(20_000, ge=100, description="SIGTERM: time to flush and hand over before the process ends anyway")

    auto_create_topics: bool = Field(False, description="Producing to a topic that does not exist creates it")
    default_partitions: int = Field(4, ge=1, le=10_000, description="Partitions of a topic when the client does not say")
    partitions_max: int = Field(10_000, ge=1, description="Most partitions of one topic")
    topics_max: int = Field(10_000, ge=1, description="Most topics of the cluster")
    background_compaction: bool = Field(True, description="Move segments to Parquet in this process, slowly")
    checkpoint_slots: int = Field(256, ge=1, description="A checkpoint at the latest after this many segments")
    checkpoint_bytes: int = Field(64 * MIB, ge=KIB, description="A checkpoint at the latest after this many bytes")

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    bundles: int = Field(5, ge=2, le=BUNDLES_MAX, description="New cluster: bundles, the one for metadata included")
    producer_states_max: int = Field(100_000, ge=1, description="New cluster: producer sessions remembered per bundle")
    url_life_ms: int = Field(15 * 60 * 1000, ge=1000, description="New cluster: life of presigned URLs")
    parquet_min_age_ms: int = Field(60 * 60 * 1000, ge=4000, description="New cluster: least age of a Parquet file that is deleted")

    def cluster_defaults(self) -> ClusterDefaults:
        return ClusterDefaults(self.bundles, self.producer_states_max, self.url_life_ms, self.parquet_min_age_ms)

    def heartbeat_interval_s(self, root_url: str) -> float:
        """A heartbeat is a PUT and a LIST: on S3 three seconds keep the bill below half a dollar a day and broker."""
        chosen = self.heartbeat_interval_ms
        return (chosen if chosen is not None else 3000 if root_url.startswith("s3:") else 500) / 1000

    def flush_spacing_s(self, root_url: str) -> float:
        chosen = self.flush_spacing_ms
        return (chosen if chosen is not None else 100 if root_url.startswith("s3:") else 0) / 1000


NAMES = tuple(BrokerSettings.model_fields)


def load_settings(file: Path | None = None, **flags: Any) -> BrokerSettings:
    """`flags`: settings by name; None = not given. Raises InvalidConfig, naming the setting, and its nearest name where it is unknown."""
    given = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown(given, "")
    from_file = _read_toml(file) if file is not None else {}

    class FromEverywhere(BrokerSettings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *args: Any, **sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            # Kubernetes sets LEDGERMQ_PORT=tcp://… in every pod, where there is a service called ledgermq.
            environment = {name: value for name, value in sources["env_settings"]().items() if not str(value).startswith("tcp://")}
            lower = (InitSettingsSource(settings_cls, init_kwargs=values) for values in (environment, from_file))
            return sources["init_settings"], *lower

    try:
        return FromEverywhere(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidConfig(f"setting {name}: {first['msg']}, not {first.get('input')!r}") from error


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"settings file {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested for ever
        raise InvalidConfig(f"settings file {file}: {error}") from error
    _refuse_unknown(found, f"{file}: ")
    return found


def _refuse_unknown(values: dict[str, Any], where: str) -> None:
    for name in values:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise InvalidConfig(f"{where}unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

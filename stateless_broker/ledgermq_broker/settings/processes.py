"""Load the settings of LedgerMQ's processes (broker, embedded broker, compaction service).

Each setting is declared once: name, type, default, range, help text, and whether a running process takes a change
(`declaring.live`), a broker's in `brokers`. `LIVE`, the flags of the commands, `docs/settings.md` and the limits that
the parts of a broker get (`from_settings`) are derived from these declarations. `settings.sources` reads flags,
environment and file. The last word of a name is its unit.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings, is_live, live, setting
from ledgermq_broker.settings.sources import names_of, read_sources, settle

T = TypeVar("T")


class CompactionSettings(ProcessSettings):
    """Settings of the compaction service (`ledgermq compactor`)."""

    compaction_interval_ms: int = live(
        60_000,
        "Compaction service: pause between two runs over all bundles. Lower it if records have to be in Parquet sooner",
        ge=100,
    )
    compaction_engine: str = setting("local", "Compaction service: where its tasks run, local (this process) or spark")


KINDS: tuple[type[ProcessSettings], ...] = (BrokerSettings, CompactionSettings)
NAMES = names_of(*KINDS)
LIVE = frozenset(name for kind in KINDS for name, field in kind.model_fields.items() if is_live(field))
"""Settings that SIGHUP changes in a running process; all others need a restart."""

_CONSTANT = "its value is a constant now"
_OF_CLUSTERS = "cluster.json of a new cluster holds the default, and that of an existing cluster counts"
REMOVED = {
    "price_write_dollars": "set price_put_dollars, which is for a thousand requests, too",
    "price_read_dollars": "set price_get_dollars, which is for a thousand requests, too",
    "price_delete_dollars": "S3 charges nothing for it; recompute other prices from ledgermq_store_requests_total",
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

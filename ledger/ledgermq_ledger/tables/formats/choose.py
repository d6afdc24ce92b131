"""Choose the format of a topic's table by the topic's settings."""

from __future__ import annotations

import asyncio

from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.files.columns import SCHEMA
from ledgermq_ledger.tables.formats.contract import TableLog
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.topics.settings import ICEBERG, TopicSettings
from ledgermq_ledger.topics.topic import Topic


def table_of(cluster_id: str, topic: Topic, generation: int | None = None) -> versions.Topic:
    """Return what a registrar knows of a topic's table. `generation`: None: that of the topic's settings."""
    settings = topic.settings
    number = settings.table_generation if generation is None else generation
    at = f"table {settings.table_namespace}.{topic.name} of catalog {settings.table_catalog}"
    return versions.Topic(
        cluster_id,
        topic.name,
        (topic.id, number),
        topic.partitions,
        SCHEMA,
        settings.keyed,
        at if settings.table_format == ICEBERG else "",
    )


def is_of_former(table: Table, cluster: ClusterSettings) -> bool:
    """Return whether a cluster from which this one was restored made the table, so that it still may keep it."""
    if table.metadata is None:
        return False
    return table.metadata.configuration.get("ledgermq.cluster") in cluster.former_ids


def open_log(
    store: ObjectStore,
    of: versions.Topic,
    settings: TopicSettings,
    sources: Sources,
    run_blocking: RunBlocking = asyncio.to_thread,
) -> TableLog:
    """Return the versions of a topic's table. Raises InvalidConfig if its format needs an extra that is missing, or the
    catalog's own settings are wrong.
    """
    if settings.table_format == ICEBERG:
        return _iceberg(store, of, settings, sources, run_blocking)
    return DeltaLog(store, of.folder, sources)


def logs_to_empty(
    store: ObjectStore,
    of: versions.Topic,
    settings: TopicSettings,
    sources: Sources,
    run_blocking: RunBlocking = asyncio.to_thread,
) -> list[TableLog]:
    """Return the tables that a topic may have left. Without a format it is not known any longer which one it had.
    Raises as `open_log`.
    """
    found: list[TableLog] = []
    if settings.table_format != ICEBERG:
        found.append(DeltaLog(store, of.folder, sources))
    if settings.table_catalog and not settings.keyed:
        found.append(_iceberg(store, of, settings, sources, run_blocking))
    return found


def check_catalog(store_url: str, settings: TopicSettings) -> None:
    """Check that this process reaches the catalog of an Iceberg table, and that the table's metadata would lie apart
    from the root. It blocks. Raises InvalidConfig, Unavailable.
    """
    try:
        from ledgermq_ledger.iceberg.catalog import Place
    except ImportError as error:
        raise _missing(error) from error
    Place(settings.table_catalog, settings.table_namespace, "", store_url).check()


def _iceberg(
    store: ObjectStore, of: versions.Topic, settings: TopicSettings, sources: Sources, run_blocking: RunBlocking
) -> TableLog:
    try:
        from ledgermq_ledger.iceberg.catalog import Place
        from ledgermq_ledger.tables.formats.iceberg import IcebergLog
    except ImportError as error:
        raise _missing(error) from error
    place = Place(settings.table_catalog, settings.table_namespace, of.name, store.url)
    return IcebergLog(store, of, place, sources, run_blocking)


def _missing(error: ImportError) -> InvalidConfig:
    advice = what_to_do(error, "pip install 'ledgermq[iceberg]'")
    return InvalidConfig(f"table.format=iceberg needs PyIceberg: {advice}")

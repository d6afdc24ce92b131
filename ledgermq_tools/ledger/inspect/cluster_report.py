"""Run `ledgermq inspect cluster`: check everything that a root holds: brokers, topics, ledgers,
plans, pages, snapshots, Parquet files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta.names import is_in_a_log
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint, partitions_by_key
from ledgermq_ledger.log.chains.plans import decode_plan
from ledgermq_ledger.log.chains.snapshot import decode_snapshot
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.open_root import cluster_of
from ledgermq_ledger.parquet.files.stored_file import list_files
from ledgermq_ledger.parquet.pages import decode_page
from ledgermq_ledger.timestamps import from_ms
from ledgermq_ledger.topics.catalog import Catalog, grown, read_catalog
from ledgermq_tools.ledger.inspect.checkpoint_report import note_parked
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.ledger_report import LedgerView, ledger_facts, view_ledger

BUNDLE_COLUMNS = (
    "bundle",
    "claimed_by",
    "epoch",
    "last_slot",
    "segments",
    "segment_bytes",
    "checkpoint",
    "trim_slot",
    "finished_plan",
)
TOPIC_COLUMNS = (
    "topic",
    "topic_id",
    "partitions",
    "records",
    "in_parquet",
    "parquet_files",
    "parquet_bytes",
    "settings",
    "created",
)
BROKER_COLUMNS = ("broker", "address", "heartbeat")

OnBundle = Callable[[int, int], None]
"""(bundles done, bundles in all)"""


async def cluster_report(store: ObjectStore, sources: Sources, *, full: bool, on_bundle: OnBundle) -> Report:
    """Return the report. Raises NoCluster and the store's errors; damage is a finding."""
    cluster = await cluster_of(store)
    findings, catalog = Findings(), Catalog()
    with findings.collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    cluster = grown(cluster, catalog)
    views = []
    for bundle in range(cluster.bundles):
        views.append(await view_ledger(LedgerRef(store, bundle, cluster, sources), findings, full=full))
        await _check_sealed(store, bundle, findings)
        on_bundle(bundle + 1, cluster.bundles)
    for view in views:
        if view.checkpoint is not None:
            note_parked(view.checkpoint, findings)
    report = Report(f"cluster at {store.url}", _facts(cluster, store), findings=findings.all)
    report.tables = [
        Rows("brokers", BROKER_COLUMNS, await _brokers(store, findings)),
        Rows("bundles", BUNDLE_COLUMNS, [ledger_facts(view) for view in views]),
        Rows("topics", TOPIC_COLUMNS, await _topics(store, catalog, views, findings)),
    ]
    return report


def _facts(cluster: ClusterSettings, store: ObjectStore) -> dict[str, Any]:
    return {
        "root": store.url,
        "cluster_id": cluster.cluster_id,
        "format_version": cluster.format_version,
        "created": from_ms(cluster.created_ms),
        "bundle_count": cluster.bundles,
        "producer_states_max": cluster.producer_states_max,
        "parquet_min_age_ms": cluster.parquet_min_age_ms,
    }


async def _check_sealed(store: ObjectStore, bundle: int, findings: Findings) -> None:
    """Check that every other persisted object of the bundle can be decoded.

    An object that vanishes meanwhile was replaced, which is no damage.
    """
    kinds: tuple[tuple[str, Callable[[bytes, str], object]], ...] = (
        (keys.checkpoints(bundle), decode_checkpoint),
        (keys.compactions(bundle), decode_plan),
        (keys.file_pages(bundle), decode_page),
        (keys.snapshots(bundle), decode_snapshot),
    )
    for prefix, decode in kinds:
        async for info in store.list(prefix):
            if not keys.is_numbered(info.key, prefix):
                findings.add(info.key, "FOREIGN_OBJECT", "its name is not a number; it is ignored")
                continue
            with findings.collecting(info.key):
                try:
                    data = await store.get(info.key)
                except ObjectMissing:
                    continue
                decode(data, info.key)


async def _brokers(store: ObjectStore, findings: Findings) -> list[dict[str, Any]]:
    rows = []
    async for info in store.list(keys.BROKERS):
        broker = keys.parse_broker(info.key)
        if broker is None:
            findings.add(info.key, "FOREIGN_OBJECT", "its name is not that of a broker; it is ignored")
            continue
        try:
            body: Any = json.loads(await store.get(info.key))
            rows.append(
                {"broker": broker, "address": body.get("address"), "heartbeat": from_ms(info.modified_ms), "body": body}
            )
        except ObjectMissing:
            continue
        except (ValueError, AttributeError, RecursionError):
            findings.add(info.key, "DATA_DAMAGED", "the heartbeat is not a JSON object")
    return rows


async def _topics(
    store: ObjectStore, catalog: Catalog, views: Iterable[LedgerView], findings: Findings
) -> list[dict[str, Any]]:
    ends: dict[PartitionId, int] = {}
    in_parquet: dict[PartitionId, int] = {}
    for view in views:  # a partition that moved is known in several bundles, and the last one knows most
        for place, end in view.history.state.ends.items() if view.history is not None else ():
            ends[place] = max(ends.get(place, 0), end)
        for place, part in partitions_by_key(view.checkpoint).items() if view.checkpoint is not None else ():
            in_parquet[place] = max(in_parquet.get(place, 0), part.parquet_end - part.parquet_start)
    records, listed = _by_topic(ends), _by_topic(in_parquet)
    files = await _parquet(store, findings)
    return [
        {
            "topic": topic.name,
            "topic_id": topic.id,
            "partitions": topic.partitions,
            "records": records[topic.id],
            "in_parquet": listed[topic.id],
            "parquet_files": files.get(topic.id, (0, 0))[0],
            "parquet_bytes": files.get(topic.id, (0, 0))[1],
            "settings": topic.raw_settings,
            "created": from_ms(topic.created_ms),
            "removed": topic.removed,
            "deleted": None if topic.trash is None else from_ms(topic.trash.deleted_ms),
            "kept_until": None if topic.trash is None else from_ms(topic.trash.until_ms),
        }
        for topic in sorted(catalog.topics_by_name.values(), key=lambda topic: topic.name)
    ]


def _by_topic(counts: Mapping[PartitionId, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for place, count in counts.items():
        found[place.topic_id] += count
    return found


async def _parquet(store: ObjectStore, findings: Findings) -> dict[int, tuple[int, int]]:
    """Return files and bytes by topic id."""
    found: dict[int, tuple[int, int]] = {}
    async for info in list_files(store):
        name = keys.parse_parquet(info.key)
        if name is None and is_in_a_log(info.key):
            continue
        if name is None:
            findings.add(
                info.key,
                "FOREIGN_OBJECT",
                "no LedgerMQ process wrote a file of this name"
                + (", and Spark would read it" if info.key.startswith(keys.PARQUET) else ""),
            )
            continue
        count, size = found.get(name.topic_id, (0, 0))
        found[name.topic_id] = (count + 1, size + info.size)
    return found

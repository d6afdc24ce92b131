"""Empty the table that a topic has left: readers of its newest version find no names of files that may be gone."""

from __future__ import annotations

import asyncio

from ledgermq.errors import Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta import versions
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.tables.formats.choose import is_of_former, logs_to_empty, table_of
from ledgermq_ledger.tables.formats.contract import TableLog
from ledgermq_ledger.topics.facts import fact_of
from ledgermq_ledger.topics.topic import Topic

ATTEMPTS = 20
RETRY_AFTER_MS = 1000


async def empty_table(
    store: ObjectStore,
    cluster: ClusterSettings,
    topic: Topic,
    sources: Sources,
    run_blocking: RunBlocking = asyncio.to_thread,
) -> None:
    """Put a version without files into each table that the topic may have left, unless the newest one has none. The
    versions before it stay: numbers that become free would let a version land that was sent long ago.

    First every bundle has to know that the topic has no table: no registrar that looks after that puts a version
    (design Z2), and what one has sent before is computed from a version that has its successor then. `topic`: a living
    one without a table, or one that is removed from all its bundles. A repeated call is harmless.

    Raises Unavailable (a bundle does not know it, or knows that the table was set again), DataDamaged,
    FormatNotSupported, InvalidConfig (see `open_log`), the store's errors.
    """
    of = table_of(cluster.cluster_id, topic, generation=0)
    for log in logs_to_empty(store, of, topic.settings, sources, run_blocking):
        await _empty(store, cluster, log, of, topic)


async def _empty(store: ObjectStore, cluster: ClusterSettings, log: TableLog, of: versions.Topic, topic: Topic) -> None:
    for _ in range(ATTEMPTS):
        if not topic.removed:
            await _check_that_all_know(store, topic)
        table = await log.read()
        if is_of_former(table, cluster):
            return  # the topic of the cluster that this one was restored from still has it
        generation = versions.generation_of(table, of)
        if generation is not None and generation[0] > topic.id:
            return  # of a later topic of this name
        now_ms = await store.store_time_ms()
        draft = versions.draft_empty(table, now_ms)
        if not draft.operation:
            return
        await log.commit(table, draft, now_ms)
    raise _later(f"{await log.place()}: {ATTEMPTS} versions came before the one without files")


async def _check_that_all_know(store: ObjectStore, topic: Topic) -> None:
    for bundle in sorted(topic.bundles_in_use):
        fact = fact_of(await newest_checkpoint(store, bundle), topic.id)
        if fact is None and topic.version == topic.id:
            continue  # it never had a table
        if fact is None or fact.table or fact.version < topic.version:
            raise _later(f"bundle {bundle} does not know yet that topic {topic.name!r} has no table")


def _later(text: str) -> Unavailable:
    return Unavailable(f"{text}; repeat the call", retry_after_ms=RETRY_AFTER_MS)

"""Clean the keyed topics of a bundle, or of a root: round after round, then delete what they have
replaced.

Topics that are no longer keyed are included until their stale versions are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.garbage.sweep import tidy_keyed
from ledgermq_ledger.garbage.topics.retention import apply_to_stale_versions
from ledgermq_ledger.garbage.topics.versions import stale_partitions
from ledgermq_ledger.keyed.round import OnCleaned, clean_partition
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.report import CleaningReport
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic

ROUNDS_MAX = 1000
"""Rounds of one partition in one run."""


def keyed_partitions(catalog: Catalog, bundles: Sequence[int]) -> list[tuple[Topic, int]]:
    """Return the partitions of live keyed topics in these bundles."""
    topics = sorted((topic for topic in catalog.living_topics() if topic.settings.keyed), key=lambda topic: topic.id)
    return [
        (topic, partition) for topic in topics for partition, bundle in enumerate(topic.bundles) if bundle in bundles
    ]


async def clean_bundle(
    compaction: Compaction,
    bundle: int,
    catalog: Catalog,
    *,
    everything: bool,
    bytes_max: int | None = None,
    on_done: OnCleaned = lambda task, outcome: None,
) -> list[CleaningReport]:
    """Run all rounds that are due in the bundle. If partitions fail, the others continue, and then
    the first error is raised.

    `everything`: ignore the dirty ratios. `bytes_max`: leave out rounds that would read more.
    Raises DataDamaged (naming the object), Unavailable, the store's errors.
    """
    reports: list[CleaningReport] = []
    failures: list[LedgerMQError] = []
    stale = await stale_partitions(compaction, catalog, bundle)
    for topic, partition in [*keyed_partitions(catalog, [bundle]), *stale]:
        try:
            if not topic.settings.keyed:
                await apply_to_stale_versions(compaction.ledger(bundle), catalog, topic, partition)
            for _ in range(ROUNDS_MAX):
                report = await clean_partition(
                    compaction, topic, partition, everything=everything, bytes_max=bytes_max, on_done=on_done
                )
                if report is None:
                    break
                reports.append(report)
            await tidy_keyed(compaction.ledger(bundle), topic, partition)
        except LedgerMQError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return reports

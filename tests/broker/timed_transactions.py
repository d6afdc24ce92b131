"""Clusters with timed messages of transactions."""

from __future__ import annotations

from dataclasses import replace

from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.limits import TransactionLimits
from tests.broker import timer_calls as timed
from tests.broker import transaction_calls as calls
from tests.broker.cluster import FAST_CONSTANTS, Cluster
from tests.broker.timer_calls import bundle_of
from tests.waiting import until

BUNDLES = {"bundles": 3}
SMALL = replace(
    FAST_CONSTANTS,
    limits=(TimerLimits(flush_after_ms=1000, chunk_bytes=400, log_start_ms=5000), TransactionLimits(chunk_bytes=900)),
)
"""Completions of several segments, and flushes at once in small pieces."""


async def timers_of(cluster: Cluster, partition: int = 0) -> TimerPartition:
    """The timed messages of a partition's bundle, where they are served now."""
    bundle = await bundle_of(cluster, "t", partition)
    await until(lambda: bundle in timed.served(cluster), 60)
    return timed.served(cluster)[bundle]


async def participant_of(cluster: Cluster, partition: int = 0) -> TransactionPartition:
    bundle = await bundle_of(cluster, "t", partition)
    await until(lambda: bundle in calls.served(cluster), 60)
    return calls.served(cluster)[bundle]

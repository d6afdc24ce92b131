"""List the features of a broker that have internal topics. A new internal topic is its room and a line here."""

from __future__ import annotations

from typing import Any

from ledgermq_broker.cluster.heartbeat import COMMON
from ledgermq_broker.exclusive.holders import EXCLUSIVE
from ledgermq_broker.groups.groups import GROUPS
from ledgermq_broker.internal.feature import Feature, StoredRoot
from ledgermq_broker.queues.shares import QUEUES
from ledgermq_broker.timed.timers import TIMED
from ledgermq_broker.transactions.transactions import TRANSACTIONS
from ledgermq_ledger.fsck.check import Checked

FEATURES: tuple[Feature[Any], ...] = (GROUPS, TRANSACTIONS, TIMED, QUEUES, EXCLUSIVE)
"""A broker opens them in this order: a feature may use those before it, and the partitions of a bundle are loaded, and
closed, in this order. Added bundles get their partitions in this order, too.
"""
ANNOUNCED = (*(feature.announced for feature in FEATURES if feature.announced), *COMMON)
"""What the heartbeat of a broker of this release announces, whatever its settings are."""


async def check_features(root: StoredRoot, checked: Checked) -> None:
    """Add what is wrong with the features' parts of a root to a check of the whole. Raises the store's errors."""
    for feature in FEATURES:
        if feature.check is not None:
            await feature.check(root, checked)

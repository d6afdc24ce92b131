"""Check the queue groups of a root: what is known of a message is known of one that was in the log, and
each group says where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_broker.internal.feature import StoredRoot
from ledgermq_broker.queues.state.records import Fate, ShareKey
from ledgermq_broker.queues.state.share_partition import SharePartition
from ledgermq_broker.queues.stored.view import BundleView, read_shares
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import Checked
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.catalog import Catalog


async def add_shares(root: StoredRoot, checked: Checked) -> None:
    """Add problems of queue groups to the check of a root."""
    unread, problems = Problems(), Problems()
    found, catalog = await read_shares(root.store, root.cluster, root.sources, unread.collecting)
    check_shares(found, catalog, problems)
    checked.add(problems, unread)


def check_shares(found: Sequence[BundleView], catalog: Catalog, problems: Problems) -> None:
    for bundle in found:
        for key in () if bundle.damaged else bundle.without_start:
            problems.damage(
                keys.ledger(bundle.bundle),
                "QUEUE_CONTRADICTED",
                f"{_name(key, catalog)}: messages of it are finished or were delivered, but it is not stored where the"
                " group begins",
            )
        for key, state in sorted(bundle.state.partitions.items()):
            if not catalog.is_removed(key.topic_id, catalog.offset):
                _check_place(bundle, key, catalog, problems)
                _check_end(bundle, key, state, catalog, problems)


def _check_place(bundle: BundleView, key: ShareKey, catalog: Catalog, problems: Problems) -> None:
    """Check that the state is in the bundle of its partition, or in the one that it comes from: no other owner would
    find it.
    """
    topic = catalog.topics_by_id.get(key.topic_id)
    move = None if topic is None else topic.moves.get(key.partition)
    source = move.source if move is not None and not move.ended else None
    if (
        topic is None
        or not key.partition < topic.partitions
        or bundle.bundle not in (topic.bundles[key.partition], source)
    ):
        problems.damage(
            keys.ledger(bundle.bundle),
            "QUEUE_CONTRADICTED",
            f"{_name(key, catalog)}: its state is in bundle {bundle.bundle}, but the partition is not",
        )


def _check_end(bundle: BundleView, key: ShareKey, state: SharePartition, catalog: Catalog, problems: Problems) -> None:
    """Check that nothing is known of messages above the end of the log."""
    log_end = bundle.ends.get(PartitionId(key.topic_id, key.partition), 0)
    what = None
    if state.start > log_end:
        what = f"everything below offset {state.start} counts as finished"
    elif state.end > log_end:
        known = next(each for each in state.known() if each.last >= log_end and (each.fate or each.deliveries))
        word = "delivered" if known.fate is Fate.OPEN else known.fate.name.lower()
        what = f"messages from offset {max(known.first, log_end)} to {known.last} were {word}"
    if what is not None:
        problems.damage(
            keys.ledger(bundle.bundle),
            "QUEUE_CONTRADICTED",
            f"{_name(key, catalog)}: {what}, but the partition ends at {log_end}",
        )


def _name(key: ShareKey, catalog: Catalog) -> str:
    topic = catalog.topics_by_id.get(key.topic_id)
    name = f"topic {key.topic_id}" if topic is None else topic.name
    return f"queue group {key.group!r} in {name}/{key.partition}"

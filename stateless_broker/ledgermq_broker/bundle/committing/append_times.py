"""Write the time of the append into batches of topics with `message.timestamp.type = LogAppendTime`.

Batches are stamped when they are admitted, which is the order of their offsets, and by a clock that never
goes back within a term: the store's, as this broker estimates it. A term begins at the latest time that
the terms before it have written, which the ledger remembers (`LedgerState.append_us`). So the timestamps
of a partition never decrease, whichever brokers own it and whatever their clocks show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from crc32c import crc32c

from ledgermq.protocol.batches.append_time import with_append_time
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.topics.topic import Topic


class AppendTimes:
    """The times of one term. `last_us`: the latest one before it."""

    def __init__(self, context: BundleContext, last_us: int) -> None:
        self._context = context
        self._last_us = last_us

    def not_before(self, append_us: int) -> None:
        """Let no later time be below this one: the latest that another ledger gave to a partition which came
        from there.
        """
        self._last_us = max(self._last_us, append_us)

    def stamped(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Return batches that are being admitted, in this order; those of topics with LogAppendTime get the
        present time. Batches with ids of messages get the time by which these are judged.
        """
        topics = self._context.catalog().topics_by_id
        wanted, has_ids = set(), False
        for batch in batches:
            topic = topics.get(batch.topic_id)
            if topic is not None and topic.settings.append_time:
                wanted.add(topic.id)
            has_ids = has_ids or bool(batch.ids)
        if not (wanted or has_ids):
            return batches
        now_us = self._last_us = max(self._last_us, self._now_us())
        return [
            _remembered(_stamped(batch, now_us) if batch.topic_id in wanted else batch, now_us, topics)
            for batch in batches
        ]

    def _now_us(self) -> int:
        return self._context.append_now_us()


def _remembered(batch: Batch, now_us: int, topics: Mapping[int, Topic]) -> Batch:
    """Return a batch with the time of its ids, if it has some. Its topic's window may have ended since it was
    checked.
    """
    if not batch.ids:
        return batch
    topic = topics.get(batch.topic_id)
    window_us = 1000 * topic.settings.dedup_window_ms if topic is not None else 0
    if not window_us:
        return replace(batch, ids=b"")
    return replace(batch, ids_us=now_us, ids_until_us=now_us + window_us)


def _stamped(batch: Batch, now_us: int) -> Batch:
    data = with_append_time(batch.data, now_us)
    return replace(
        batch, data=data, crc=crc32c(data), timestamp_min_us=now_us, timestamp_max_us=now_us, append_us=now_us
    )

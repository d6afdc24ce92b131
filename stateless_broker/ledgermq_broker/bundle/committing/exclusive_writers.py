"""Ask, for each batch of one term, whether its producer may write to the partition: another one may have it for
itself. The answers come from the bundle's partition of `__holders`, which is loaded after the bundle was opened.

Nothing is written before that partition is loaded, and nothing before this broker knows of every topic of which
the ledger has records: `__holders` may be one of them.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.errors import Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.writing.judging import MayWrite
from ledgermq_ledger.topics.catalog import Catalog

RETRY_AFTER_MS = 200


class ExclusiveWriters:
    """`newest_topic`: the highest id of a topic of which the ledger had records when the term began. `asks`: who
    answers; None: the partition of `__holders` is not served now.
    """

    def __init__(self, bundle: int, catalog: Callable[[], Catalog], newest_topic: int) -> None:
        self.asks: MayWrite | None = None
        self._bundle = bundle
        self._catalog = catalog
        self._newest_topic = newest_topic

    def check(self, key: PartitionId, producer_id: bytes, principal: int = 0) -> None:
        """Raise PartitionHeld, ProducerFenced; Unavailable while the answer is not known. `principal`: a hash; 0: not
        known.
        """
        if self.asks is not None:
            self.asks(key, producer_id, principal)
            return
        catalog = self._catalog()
        if self._newest_topic >= catalog.offset:
            raise Unavailable(
                f"bundle {self._bundle} has records of a topic that this broker has not read of yet; retry",
                retry_after_ms=RETRY_AFTER_MS,
            )
        holders, topic = catalog.topics_by_name.get(keys.HOLDERS_TOPIC), catalog.topics_by_id.get(key.topic_id)
        if holders is None or self._bundle not in holders.bundles or (topic is not None and topic.internal):
            return
        raise Unavailable(
            f"bundle {self._bundle}: it is not known yet which producers have partitions for themselves; retry",
            retry_after_ms=RETRY_AFTER_MS,
        )

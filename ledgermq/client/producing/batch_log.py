"""What a producer says of its batches to whoever follows one message: the logger
"ledgermq.producer", at the level DEBUG.

The ids are those that brokers log and segments hold: producer, sequence, topic id, partition,
offsets. Nothing of a record's content.
"""

from __future__ import annotations

import logging

from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.partition_queue import PartitionQueue
from ledgermq.errors import LedgerMQError

_log = logging.getLogger("ledgermq.producer")


def tell_stored(batch: Batch, queue: PartitionQueue, base_offset: int, address: str) -> None:
    """`base_offset` is -1 where the broker has not told one."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("batch stored %s base_offset=%d broker=%s", _ids(batch, queue), base_offset, address)


def tell_refused(batch: Batch, queue: PartitionQueue, error: LedgerMQError, address: str) -> None:
    """This attempt; the batch may be sent again."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "batch refused %s broker=%s code=%s error=%s", _ids(batch, queue), address, error.code, error.message
        )


def _ids(batch: Batch, queue: PartitionQueue) -> str:
    producer = queue.session.id.hex() if queue.session is not None else None
    where = f"topic={batch.topic} topic_id={batch.topic_id} partition={batch.partition}"
    return f"{where} records={batch.record_count} producer={producer} sequence={batch.sequence}"

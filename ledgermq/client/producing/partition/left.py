"""What a partition's queue gives away when its batches are to be sent from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.errors import LedgerMQError


@dataclass(frozen=True, slots=True)
class Left:
    """The batches that were taken out of a queue, in order. The first ones may have been sent: they have sequences
    of `session`, without a gap up to its next one. `error`: why they could not be delivered.
    """

    batches: Sequence[Batch]
    session: Session | None
    error: LedgerMQError

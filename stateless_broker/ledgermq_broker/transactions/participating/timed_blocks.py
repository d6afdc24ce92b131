"""Hand the delayed batches of committed transactions over to the timed messages of their bundle.

At the commit nothing of them becomes visible. They enter the bundle's intake as blocks, in the segment
that completes the rest of the transaction's part, and wait there for their due times (W17).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from ledgermq_broker.internal.core import Hosted
from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.taking_in.intake import Blocks
from ledgermq_ledger import keys
from ledgermq_ledger.log.segments.segment import Batch


class TimedBlocks:
    """`hosted(topic name, partition)` returns a loaded partition of the same bundle."""

    def __init__(self, bundle: int, hosted: Callable[[str, int], Hosted]) -> None:
        self._bundle = bundle
        self._hosted = hosted

    def check_room(self, batches: Sequence[Batch], principal: int) -> None:
        """Raise ResourceExhausted if these timed messages may not wait in the bundle, QuotaExceeded if this
        principal may not have them wait; Unavailable or NotOwner if they are not served now, and the error of
        damaged data.
        """
        self._timers.check_room(batches, principal)

    def check_full(self, batches: Sequence[Batch]) -> None:
        """Raise ResourceExhausted if a topic of the batches may have no more messages wait in the bundle;
        Unavailable.
        """
        for error in self._timers.full({batch.topic_id for batch in batches}).values():
            raise error

    def made(self, batches: Sequence[tuple[Batch, int]]) -> Blocks:
        """Return the blocks of these batches, each with the principal that staged it. Append them in this turn of
        the event loop, and call `issued` in it. Raises as `check_room`, but never QuotaExceeded.
        """
        return self._timers.blocks([batch for batch, _ in batches], [principal for _, principal in batches])

    def issued(self, blocks: Blocks, *, within_s: float) -> None:
        """Note that the blocks were appended; they may wait up to `within_s` for other appends."""
        self._timers.issued(blocks, within_s=within_s)

    @property
    def _timers(self) -> TimerPartition:
        return cast(TimerPartition, self._hosted(keys.TIMERS_TOPIC, keys.bundle_partition(self._bundle)))

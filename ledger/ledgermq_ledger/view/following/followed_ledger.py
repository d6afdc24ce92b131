"""`FollowedLedger`: a ledger that is followed from the store alone, with no broker.

It follows the slots (`ledgermq_ledger.view.following.follow`), so compaction, trimming, deletion and takeovers may go
on under it. A poll is one GET; LISTs come only at the begin and at a surprise. What it finds feeds
a `LedgerView`, and `reader` reads it.

Invariants: what it calls durable is; an end never goes back. Of user topics: internal ones are
snapshots (`ledgermq_ledger.log.internal_topic`).
Must not know topics' names, brokers, groups, or how records are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import History, read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.segment import SegmentEnd, read_end
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.parquet.reader import ParquetCache
from ledgermq_ledger.view.fetch_index import Wanted
from ledgermq_ledger.view.following.follow import Follower
from ledgermq_ledger.view.held_bytes import RecentBytes
from ledgermq_ledger.view.reader import LedgerReader
from ledgermq_ledger.view.view import LedgerView

SLOTS_AHEAD_MAX = 16
COLD_READS = 8
INDEX_BATCHES_MAX = 500_000
"""Some 30 MB; what does not fit is looked up again when it is wanted."""
FAR_BATCHES_MAX = 500_000
"""As much again for what was looked up: a program that reads one ledger, and nothing but that, has
the room, and each look it saves is a recovery.
"""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class FollowedLedger:
    """`open` first. Within one event loop; calls may run side by side. Partitions are (topic id,
    partition).

    `wanted`: only these partitions can be read, and only their batches take memory; None: all.
    `recent_bytes_max`: so much of the newest batches is kept, as far as it comes with the indexes;
    reading it costs no request.
    """

    def __init__(
        self,
        ledger: LedgerRef,
        *,
        wanted: Wanted | None = None,
        run_blocking: RunBlocking = asyncio.to_thread,
        index_batches_max: int = INDEX_BATCHES_MAX,
        far_batches_max: int = FAR_BATCHES_MAX,
        recent_bytes_max: int = 0,
    ) -> None:
        self.ledger = ledger
        self._recent = RecentBytes(recent_bytes_max)
        self.view = LedgerView(
            ledger.bundle, self, index_batches_max=index_batches_max, far_batches_max=far_batches_max, wanted=wanted
        )
        self.reader = LedgerReader(
            ledger,
            self.view,
            parquet=ParquetCache(ledger.store, run_blocking),
            keyed=KeyedReader(ledger.store, run_blocking),
            pool=asyncio.Semaphore(COLD_READS),
            run_blocking=run_blocking,
            at_hand=self._recent.batches,
        )
        self._wanted = wanted
        self._turn = asyncio.Lock()
        self._follower: Follower | None = None
        self._ahead = 1

    async def open(self) -> None:
        """Take in everything that is durable now.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors.
        """
        async with self._turn:
            self._begin(await read_history(self.ledger))

    def partitions(self) -> list[PartitionId]:
        """Return those that have records, or had, as far as is known."""
        return sorted(key for key in self._known.state.ends if self._wanted is None or self._wanted(key))

    async def refresh(self, *, look: bool = False) -> bool:
        """Take in what has become durable; True: there was something. Raises as `open` does.

        What was compacted and trimmed before it was read comes with a later look at the checkpoint; `look`: it comes
        now.
        """
        async with self._turn:
            before = self._known.next_slot
            while await self._read_on():
                pass
            if look:  # after the reads: a slot that was missing then, and is not trimmed now, was not written
                await self._look()
            found = self._known.next_slot - before
            # as many as came this time, and one to see that no others follow
            self._ahead = min(max(found, 0) + 1, SLOTS_AHEAD_MAX)
            return found > 0

    def holds(self, key: PartitionId, move: int) -> bool:
        """Return whether all of a partition is here, as far as is known: `move` brought it (0: it began here), its
        files have come too, and it has not left since.
        """
        moves, counters = self._known.state.moves, self.view.counters.get(key) or fmt.PartitionCheckpoint()
        is_here = moves.seal_of(key) is None and not counters.forgotten
        return is_here and moves.move(key) == counters.taken_over == move

    # As the source of its view.

    def durable_end(self, key: PartitionId) -> int:
        counters = self.view.counters.get(key)
        # others may have seen, and compacted, further than was followed here
        seen = (counters.parquet_end, counters.log_start) if counters else ()
        return max(self._known.state.end(*key), *seen, 0)

    async def check_end(self) -> None:
        """A reader is behind at worst: nothing to check."""

    async def look(self, known: int) -> None:
        async with self._turn:
            if self.view.checkpoint.number == known:
                await self._look()

    async def history(self) -> History:
        """Nothing of it is above the durable end."""
        async with self._turn:
            history = await read_history(self.ledger)
            is_newer = history.checkpoint.number > self.view.checkpoint.number
            if is_newer and not self._known.look(history.checkpoint.trim_slot, _now_s()):
                self._begin(history)
            else:
                self.view.see(history.checkpoint)
            history.segments = [slot for slot in history.segments if slot.index.slot < self._known.next_slot]
            return history

    @property
    def _known(self) -> Follower:
        assert self._follower is not None, "open the ledger first"
        return self._follower

    # The fold. A caller that changes it has the turn.

    def _begin(self, history: History) -> None:
        """Begin at its checkpoint, from the trim slot on."""
        if self._follower is not None:
            self._assert_forward(self._follower.state.ends, history.state.ends)
        self._recent.clear()
        self._follower = Follower(history.state)
        self.view.begin(history.checkpoint, history.first, history.segments)

    @staticmethod
    def _assert_forward(before: Mapping[PartitionId, int], now: Mapping[PartitionId, int]) -> None:
        """A partition whose topic was removed is not known any longer."""
        back = {key: (end, now[key]) for key, end in before.items() if key in now and now[key] < end}
        assert not back, f"ends went back: {back}"

    async def _read_on(self) -> bool:
        """Read some slots further. Return False if nothing more is there now."""
        if self._known.is_look_due(_now_s()) and await self._look():
            return True
        ends = await self._next_slots()
        has_more = len(ends) == self._ahead
        self._ahead = min(2 * self._ahead, SLOTS_AHEAD_MAX) if has_more else 1
        for end in ends:
            if not self._known.take(end.slot.index):
                return True  # look, before anything behind it is believed
            self.view.index.add(end.slot.index)
            self._recent.keep(end, self.view.index.wanted_of(end.slot.index))
        if not has_more:
            self._known.miss(_now_s())
        return has_more

    async def _next_slots(self) -> list[SegmentEnd]:
        """Return as many as are there without a gap, of those that are asked for at once."""
        first = self._known.next_slot
        found = await asyncio.gather(*(self._end_or_error(first + i) for i in range(self._ahead)))
        ends: list[SegmentEnd] = []
        for end in found:
            if isinstance(end, ObjectMissing):
                break
            if isinstance(end, Exception):
                if ends:
                    break
                raise end
            ends.append(end)
        return ends

    async def _end_or_error(self, slot: int) -> SegmentEnd | Exception:
        try:
            return await read_end(self.ledger.store, self.ledger.bundle, slot)
        except Exception as error:
            return error

    async def _look(self) -> bool:
        """Take in the newest checkpoint. Return True if what was known could not be believed any
        longer: it has begun again.
        """
        checkpoint = await newest_checkpoint(self.ledger.store, self.ledger.bundle, self.view.checkpoint)
        if not self._known.look(checkpoint.trim_slot, _now_s()):
            self._begin(await read_history(self.ledger))
            return True
        self.view.see(checkpoint)
        return False

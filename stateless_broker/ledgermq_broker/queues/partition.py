"""Serve one partition of `__shares` for one term of its bundle: the queue groups of this bundle's partitions.

Leases are numbered in the order in which they are given, over all lives of the state in one term of the
bundle. Together with the epoch of the term, a number names a lease forever. Must not know: how a caller
finds the bundle, what a message contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.wait import wait_until
from ledgermq_broker.bundle.shared.waiters import Waiters
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.queues.beginning import Beginnings
from ledgermq_broker.queues.counts import ShareSizes
from ledgermq_broker.queues.parts import ShareParts, Unfinished
from ledgermq_broker.queues.state.bundle_shares import Answer, BundleShares
from ledgermq_broker.queues.state.filters import QueueFilters
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.state.share_partition import SharePartition, Word
from ledgermq_broker.queues.state.spans import Grant, Span
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.snapshot import InternalRecord
from ledgermq_ledger.log.log_record import Decision

LIFE_NUMBERS = 1 << 40
"""Numbers of leases in one life of the state."""
LOOK_PAUSE_S = 0.05
"""Shortest pause between two looks for leases that have ended."""
FULL_PAUSE_S = 1.0
WORDS = {
    pb.ACCEPT: Word.ACCEPT,
    pb.REJECT: Word.REJECT,
    pb.RELEASE_SHARE: Word.RELEASE,
    pb.RETURN: Word.RETURN,
    pb.RENEW: Word.RENEW,
}


class BundleQueues:
    """Make it when the state is loaded. `owner`: the term of the bundle."""

    def __init__(self, shares: BundleShares, opening: Opening, parts: ShareParts) -> None:
        self.owner = opening.owner
        self.limits = parts.limits
        self._shares = shares
        self._parts = parts
        self._on_failed = opening.on_failed
        self._state = IssuedState("queues", opening.owner, opening.log, opening.place, self._fail)
        life = parts.lives[opening.owner] = parts.lives.get(opening.owner, 0) + 1
        self._number = life * LIFE_NUMBERS
        self._beginnings = Beginnings(self._state.check)
        self._last_changes: dict[PartitionId, asyncio.Task[None] | None] = {}
        """Of partitions that leave: ends when the last change that was made here is durable; None: it was."""
        self._waiters = Waiters[ShareKey]()
        self._filters = QueueFilters()
        self._timer_changed = asyncio.Event()
        self._rings_s: float | None = None
        shares.loaded()
        self._tasks = [asyncio.create_task(self._end_leases(), name=f"leases of bundle {self.bundle}")]
        self.tick()

    @property
    def bundle(self) -> int:
        return self.owner.bundle

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    def tick(self) -> None:
        """Stop what concerns partitions that leave or have left this bundle, and remove it once the other one has it
        for sure, that is when the move has ended (Y15); and remove the state of topics that were removed.
        """
        if self._state.is_lost():
            return
        self._part()
        catalog = self._parts.catalog()

        def is_gone(key: ShareKey) -> bool:
            return self._has_gone(PartitionId(*key[1:])) or catalog.is_removed(key.topic_id, catalog.offset)

        if any(map(is_gone, (*self._shares.partitions, *self._shares.away))):
            try:
                self._waiters.wake(self._state.issued(lambda: self._shares.remove(is_gone)))
                self._filters.keep(self._shares.partitions)
            except LedgerMQError:
                return  # no room now; the next change of the catalog tries again

    def keeps(self, place: PartitionId) -> str:
        """Return why the partition cannot move yet; "" if it can. Once its move is decided, nothing changes here,
        and only a last change that is not durable holds it.
        """
        if not self.owner.leaves(place):
            return ""
        self._part()
        if place not in self._last_changes:
            self._last_changes[place] = None if self._state.is_durable else self._state.durable_soon()
        last = self._last_changes[place]
        return "" if last is None or last.done() else "the last changes of its queue groups are being stored"

    async def bring(self, places: Collection[PartitionId], records: Iterable[InternalRecord]) -> None:
        self._state.check_room()
        for decision in self._shares.bring(records, places):
            self._state.take(decision)
        await self._state.confirmed()

    def close(self, error: LedgerMQError) -> None:
        """End the term: every later call raises NotOwner. Idempotent."""
        self._state.close(error)
        self._beginnings.close()
        for task in self._tasks:
            task.cancel()
        self._waiters.close()

    # Calls

    async def begun(self, key: ShareKey, find_start: Callable[[], Awaitable[int]], principal: int) -> None:
        """Wait until the group has begun in this partition, durably. `principal`: a hash of the caller's name. Raises
        as `IssuedState.decided`, `BundleShares.begin` and `BundleOwner.check_here`.
        """
        self._check_here(key)
        if key not in self._shares.partitions or key in self._beginnings:
            await self._beginnings.wait(key, principal, lambda: self._begin(key, find_start, principal))

    def announce(self, key: ShareKey, text: str) -> None:
        """Note the filter of a member, before anything is leased to it. Raises FilterConflict."""
        self._state.check()
        found = self._shares.partitions.get(key)
        now_s = asyncio.get_running_loop().time()
        self._filters.announce(key, text, now_s, is_leased=found is not None and found.has_leases)

    def lease(
        self, key: ShareKey, member: str, records_max: int, lease_s: float, log_start: int, readable_end: int
    ) -> tuple[int, list[Grant]]:
        """Lease open messages now; return the number of the lease with them. Call it after `begun`, and
        check the fence before the messages are sent.
        """
        self._state.check()
        found = self._shares.partitions.get(key)
        if found is None:  # it was forgotten meanwhile
            return 0, []
        found.log_starts_at(log_start)
        self._number += 1
        until_s = asyncio.get_running_loop().time() + lease_s
        grants = found.acquire(member, self._number, records_max, until_s, readable_end)
        self._arm(found)
        return self._number, grants

    def take_back(self, key: ShareKey, number: int, spans: Iterable[Span]) -> None:
        """Open messages again that could not be sent."""
        found = self._shares.partitions.get(key)
        if found is not None and not self._state.is_lost():
            for span in spans:
                found.answer(number, span, Word.RETURN, 0.0)
            self._waiters.wake([key])

    def gone(self, key: ShareKey, span: Span) -> None:
        """Finish messages that the log does not have."""
        found = self._shares.partitions.get(key)
        if found is not None:
            found.gone(span)

    async def answer(self, key: ShareKey, spans: Sequence[pb.SharedSpan]) -> list[Span]:
        """Apply what a member says, durably; return the messages for which it does not count.

        Raises as `IssuedState.decided` and `BundleOwner.check_here`.
        """
        self._check_here(key)
        self._state.check_room()
        decision = self._state.ask(lambda: self._shares.answer(key, list(self._answers(key, spans))))
        self._state.take(decision)
        if (found := self._shares.partitions.get(key)) is not None:
            self._arm(found)
            if found.has_ready:
                self._waiters.wake([key])
            self._count(key, spans, decision)
        await (self._state.durable() if decision.records else self._state.confirmed())
        return [span for late in decision.answer for span in late]

    async def reset(
        self, key: ShareKey, offset: int | None, nonce: bytes = b"", principal: int = 0, meant: bytes = b""
    ) -> None:
        """Begin again at this offset, once for one nonce; None: forget the group here. `meant`: as in
        `BundleShares.reset`. Raises as `IssuedState.decided`, `BundleShares.begin` and `BundleOwner.check_here`.
        """
        self._check_here(key)
        if offset is None:
            await self._state.decided(lambda: self._shares.forget(key, nonce, meant, principal))
        else:
            begun = self._parts.new_id()
            await self._state.decided(lambda: self._shares.reset(key, offset, nonce, principal, meant, begun))
        self._filters.keep(self._shares.partitions)
        self._waiters.wake([key])

    async def describe(self, group: str, *, members: bool) -> list[pb.ShareInfo]:
        """Describe the partitions of a group, or of all groups (empty)."""
        return await self._state.read(lambda: [*self._infos(group, members=members)])

    async def wait(self, keys: Collection[ShareKey]) -> None:
        """Wait until a message of one of these may be open again, or the term is over."""
        if not self._state.is_lost():
            await self._waiters.wait(keys)

    def sizes(self) -> list[ShareSizes]:
        """Return the sizes for metrics, as they are in memory; they may not be durable yet."""
        return [
            ShareSizes(i.group, i.topic, max(0, i.high_watermark - i.start - i.finished), i.leased, i.waiting)
            for i in self._infos("", members=False)
            if i.topic
        ]

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of this bundle's tables, by their names."""
        return {self._shares.shares.limit: self._shares.shares.of(principal)}

    def starts(self) -> Iterator[tuple[ShareKey, int]]:
        """Yield for each queue group of a partition the offset below which it has finished everything."""
        self._take_back()
        for key, found in self._shares.partitions.items():
            yield key, found.start

    def unfinished(self) -> list[Unfinished]:
        """Return the partitions of queue groups in which messages are not finished."""
        if self._state.is_lost() or self.owner.lost is not None:
            return []
        self._take_back()
        topics = self._parts.catalog().topics_by_id
        return [
            Unfinished(key, topic, found.start)
            for key, found in self._shares.partitions.items()
            if (topic := topics.get(key.topic_id)) is not None
            and not topic.removed
            and found.start < self.owner.durable_end(topic, key.partition)
        ]

    async def oldest_us(self, unfinished: Unfinished) -> int | None:
        """Return the time of the first message that is not finished, about, in microseconds since the epoch; None if
        it was deleted meanwhile. Raises as `BundleOwner.backlog`.
        """
        backlog = await self.owner.backlog(unfinished.topic, unfinished.key.partition, unfinished.start)
        return backlog.oldest_us

    # Inside

    async def _begin(self, key: ShareKey, find_start: Callable[[], Awaitable[int]], principal: int) -> None:
        start = await find_start()
        if key not in self._shares.partitions:
            self._check_here(key)
            begun = self._parts.new_id()
            await self._state.decided(lambda: self._shares.begin(key, start, principal=principal, begun=begun))

    def _check_here(self, key: ShareKey) -> None:
        """Check that the group of this partition is served in this bundle now. Raises as `BundleOwner.check_here`."""
        self._state.check()
        self.owner.check_here(PartitionId(*key[1:]))
        if key in self._shares.away:
            self._part()

    def _take_back(self) -> None:
        """Take back what has come since the last change of the catalog."""
        if self._shares.away:
            self._part()

    def _part(self) -> None:
        """Put away what is known of partitions that leave or have not come, and take back what is here by now."""
        left = self._shares.part(lambda key: self.owner.is_here(PartitionId(*key[1:])))
        self._last_changes = {place: last for place, last in self._last_changes.items() if self.owner.leaves(place)}
        if left:
            self._filters.keep(self._shares.partitions)
            self._waiters.wake(left)

    def _has_gone(self, place: PartitionId) -> bool:
        """Return whether a partition has left, and its move has ended: the other bundle has opened it long ago."""
        topic = self._parts.catalog().topics_by_id.get(place.topic_id)
        move = topic.moves.get(place.partition) if topic is not None else None
        return move is not None and self.owner.leaves(place) and (move.ended or move.source != self.bundle)

    def _answers(self, key: ShareKey, spans: Sequence[pb.SharedSpan]) -> Iterable[Answer]:
        now_s, limits = asyncio.get_running_loop().time(), self.limits
        epoch = self.owner.epoch_of(PartitionId(*key[1:]))
        for span in spans:
            word, until_s = WORDS[span.word], 0.0
            if word is Word.RENEW:
                until_s = now_s + lease_ms_of(span.time_ms, limits) / 1000
            elif word is Word.RELEASE and span.time_ms:
                until_s = now_s + min(span.time_ms, limits.delay_ms_max) / 1000
            number = span.lease if span.epoch == epoch else 0
            yield Answer(number, Span(span.first, span.last), word, until_s)

    def _count(self, key: ShareKey, spans: Sequence[pb.SharedSpan], decision: Decision[list[list[Span]]]) -> None:
        for span, late in zip(spans, decision.answer, strict=True):
            refused = sum(each.last - each.first + 1 for each in late)
            counted = span.last - span.first + 1 - refused
            self._parts.counts.answered(key.group, WORDS[span.word].value, counted, refused)

    def _infos(self, group: str, *, members: bool) -> Iterable[pb.ShareInfo]:
        self._take_back()
        now_s, topics = asyncio.get_running_loop().time(), self._parts.catalog().topics_by_id
        for key, found in sorted(self._shares.partitions.items()):
            if group and key.group != group:
                continue
            counts, topic = found.counts(), topics.get(key.topic_id)
            is_living = topic is not None and not topic.removed
            info = pb.ShareInfo(
                group=key.group,
                topic=topic.name if topic is not None and is_living else "",
                topic_id=key.topic_id,
                partition=key.partition,
                start=counts.start,
                end=counts.end,
                leased=counts.leased,
                waiting=counts.waiting,
                finished=counts.finished,
                begun=found.begun,
            )
            if topic is not None and is_living:
                info.high_watermark = self.owner.durable_end(topic, key.partition)
            for member, leased, until_s in found.leases() if members else ():
                info.members.add(member_id=member, leased=leased, lease_ms=round(max(0.0, until_s - now_s) * 1000))
            yield info

    async def _end_leases(self) -> None:
        """End leases and waits at their times, until the state is lost."""
        while not self._state.is_lost():
            self._rings_s = self._shares.next_s
            self._timer_changed.clear()
            if await wait_until(self._timer_changed, self._rings_s):
                continue
            try:
                self._state.check_room()
                decision = self._state.ask(lambda: self._shares.expire(asyncio.get_running_loop().time()))
                self._state.take(decision, within_s=self.limits.ended_within_ms / 1000)
            except LedgerMQError:
                await asyncio.sleep(FULL_PAUSE_S)
                continue
            self._ended(decision.answer)
            await asyncio.sleep(LOOK_PAUSE_S)

    def _ended(self, ended: Mapping[ShareKey, int]) -> None:
        for key, messages in ended.items():
            self._parts.counts.expired(key.group, messages)
        found = {key: self._shares.partitions.get(key) for key in self._waiters.places}
        self._waiters.wake([key for key, partition in found.items() if partition and partition.has_ready])

    def _arm(self, found: SharePartition) -> None:
        """Let the next look for ended leases come as early as this partition needs it."""
        next_s = found.next_s
        if next_s is not None and (self._rings_s is None or next_s < self._rings_s):
            self._timer_changed.set()

    def _fail(self, error: LedgerMQError) -> None:
        self.close(error)
        self._on_failed()


def lease_ms_of(wanted_ms: int, limits: ShareLimits) -> int:
    """Return how long a lease lasts for which a member names this time; 0: it names none."""
    return max(limits.lease_ms_min, min(wanted_ms or limits.lease_ms, limits.lease_ms_max))

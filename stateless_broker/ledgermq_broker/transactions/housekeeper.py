"""Clean up after transactions in one bundle, for one term.

The housekeeper asks coordinators about transactions that have been staged for long, or that delay a
group. It forgets expired ids and notes, carries old bytes forward, and moves the log start of
`__staged`.

Coordinators send their decisions at once. The questions are for the other cases: a producer that
died, or a call that was lost. An idle bundle sends no questions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.backoff import jittered_s
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.participating.pending_offsets import PendingOffsets
from ledgermq_broker.transactions.participating.staged_log import StagedLog
from ledgermq_broker.transactions.parts import TransactionParts
from ledgermq_broker.transactions.peers import Peers
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.upkeep import CarryItem
from ledgermq_broker.transactions.state.types import Part, State, Transaction

LOOK_S, IDLE_LOOK_S = 1.0, 10.0
"""Pauses between two looks at what is staged, while something is staged and while nothing is."""
CARRY_LOOK_S = 5.0
PREPARED_ASKED_S = 300.0
"""Pause between two questions about a prepared transaction: the coordinator sends its end to the bundle."""
HALF_LOOK_S = 10.0
"""Pause between two searches for half messages to forget."""
NOTES_AT_ONCE = 1000
NOTE_AGAIN_S = 600.0
"""Pause between two questions about one note, while there are more than `notes_many`."""
HURRY_PAUSE_S = 0.2
"""Shortest pause between two rounds of questions about transactions that delay a group or a producer."""
ANY_AGE_MS = -(2**62)
"""An age below all others. A time of staging may lie in the future, because clocks of owners differ."""
QUESTIONS_MAX = 16
"""Questions to one coordinator at a time."""
ROUND_S_MAX = 12.0
"""How long one round of questions takes at most; it is longer than one call without an answer."""

log = get_logger(__name__)


class Duties(Protocol):
    """What a housekeeper takes care of: the two states of a partition of `__transactions`, and what it does for them
    (`ledgermq_broker.transactions.partition.TransactionPartition`).
    """

    bundle: int
    coordinator: Coordinator
    participant: Participant

    def now_ms(self) -> int: ...

    async def complete(self, transaction: Transaction, outcome: State, part: Part) -> bool: ...


class Housekeeper:
    """Runs one loop for each of these tasks until the term ends."""

    def __init__(
        self,
        partition: Duties,
        state: IssuedState,
        staged: StagedLog,
        pending: PendingOffsets,
        peers: Peers,
        parts: TransactionParts,
    ) -> None:
        self._partition = partition
        self._state = state
        self._staged = staged
        self._pending = pending
        self._peers = peers
        self._parts = parts
        self._busy = asyncio.Event()
        self._freed = asyncio.Event()
        self._freed.set()  # the former owner may have freed offsets
        self._hurried = asyncio.Event()
        self._is_group_busy = False
        self._fenced: dict[bytes, int] = {}
        """Producer id -> an epoch that has begun; its bundle has not asked about earlier epochs yet."""
        self._disputed: set[bytes] = set()
        """Producer ids under which a second transactional id came; each is asked about once for that."""
        self._ask_again_s: dict[Transaction, float] = {}
        self._note_again_s: dict[Transaction, float] = {}
        self._note_asked_s: dict[Transaction, float] = {}
        """When the coordinator was last asked about a note because there were many."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        bundle = self._partition.bundle
        self._tasks = [
            asyncio.create_task(self._forever(pause, work), name=f"{name} of bundle {bundle}")
            for name, pause, work in (
                ("questions about transactions", self._until_busy, self.ask_fates),
                ("questions about transactions that delay others", self._hurried.wait, self.ask_hurried_fates),
                ("carrying of staged batches", self._until_carry, self.carry),
                ("log start of staged batches", self._until_freed, self.move_log_start),
                ("expiry of transactional ids", self._until_expiry, self.expire),
                ("expiry of half messages", self._until_half_expiry, self.expire_half),
            )
        ]

    def wake(self) -> None:
        """Note that data was staged."""
        self._busy.set()

    def note_busy(self) -> None:
        """Note that a group waits for the end of a transaction."""
        self._is_group_busy = True
        self._hurried.set()

    def note_fenced(self, producer_id: bytes, epoch: int) -> None:
        """Note that a producer has begun this epoch."""
        self._fenced[producer_id] = epoch
        self._hurried.set()

    def note_disputed(self, producer_id: bytes) -> None:
        """Note that another transactional id wants to stage under a producer id that has something here."""
        self._disputed.add(producer_id)
        self._hurried.set()

    def moved(self) -> None:
        """Note that staged data was copied or dropped."""
        self._freed.set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _forever(self, pause: Callable[[], Awaitable[object]], work: Callable[[], Awaitable[None]]) -> None:
        while self._state.lost is None:
            try:
                await pause()
                await work()
            except LedgerMQError as error:
                if not self._state.is_lost():
                    log.info("upkeep of transactions delayed", bundle=self._partition.bundle, error=str(error))
            except Exception as bug:
                self._state.broken(bug)
                return

    async def _until_busy(self) -> None:
        """Wait `LOOK_S` while data is staged, and longer otherwise. It ends then, too, because a group that
        was just loaded may have staged offsets.
        """
        is_idle = not self._partition.participant.open_count and not self._pending.old(0)
        if is_idle:
            self._busy.clear()
            await wait_for(self._busy, IDLE_LOOK_S)
        await asyncio.sleep(LOOK_S)

    async def _until_carry(self) -> None:
        """Wait longer: no data is carried before it has been staged for minutes."""
        await self._until_busy()
        await asyncio.sleep(CARRY_LOOK_S)

    async def _until_freed(self) -> None:
        await asyncio.sleep(self._parts.limits.log_start_ms / 1000)
        await self._freed.wait()

    async def _until_expiry(self) -> None:
        await asyncio.sleep(jittered_s(self._parts.limits.expiry_look_ms / 1000, self._parts.sources.random))

    async def _until_half_expiry(self) -> None:
        await asyncio.sleep(HALF_LOOK_S)

    # Questions

    async def ask_fates(self) -> None:
        """Ask about transactions that have been staged for long, and drop the aborted ones."""
        now_s = asyncio.get_running_loop().time()
        wanted = self._staged_for()
        self._ask_again_s = {one: at_s for one, at_s in self._ask_again_s.items() if one in wanted}
        due = [one for one in wanted if self._ask_again_s.get(one, 0.0) <= now_s]
        for one in due:
            pause_s = jittered_s(self._parts.limits.ask_after_ms / 1000, self._parts.sources.random)
            self._ask_again_s[one] = now_s + pause_s
        await self._side_by_side(lambda one: self._ask_fate(one, wanted[one]), due)

    async def ask_hurried_fates(self) -> None:
        """Ask at once about all staged offsets, if a group waits for any of them, about transactions of
        earlier epochs of a producer, which are aborted, and about producer ids that two ids claim.
        """
        self._hurried.clear()
        is_group_busy, self._is_group_busy = self._is_group_busy, False
        fenced, self._fenced = self._fenced, {}
        disputed, self._disputed = self._disputed, set()
        everything = self._staged_for(ANY_AGE_MS)
        groups_wait = self._pending.old(ANY_AGE_MS) if is_group_busy else {}
        wanted = [
            one
            for one in everything
            if one in groups_wait or one.producer_id in disputed or one.epoch < fenced.get(one.producer_id, one.epoch)
        ]
        await self._side_by_side(lambda one: self._ask_fate(one, everything[one]), wanted)
        await asyncio.sleep(HURRY_PAUSE_S)

    def _staged_for(self, pause_ms: int | None = None) -> Mapping[Transaction, Part]:
        """Return the transactions that have staged batches or offsets for at least `pause_ms` (None: as
        the limits say) and are not being completed, with the counts of their batches.

        The parts name no groups. A coordinator uses a part only for a half message, which has no
        offsets; and there may be more groups than a call takes.
        """
        wanted = dict(self._partition.participant.upkeep.to_ask(self._partition.now_ms(), pause_ms))
        begun = set(self._partition.participant.completing.unfinished())
        for one in self._pending.old(self._parts.limits.ask_after_ms if pause_ms is None else pause_ms):
            if one not in begun:
                wanted.setdefault(one, Part(self._partition.bundle))
        return wanted

    async def _ask_fate(self, transaction: Transaction, part: Part) -> None:
        await self._state.durable()  # a coordinator may record what is counted here
        state = await self._peers.ask(transaction, pb.FATE, part)
        if state is State.ABORTED:  # a commit is sent by the coordinator
            await self._partition.complete(transaction, State.ABORTED, Part(self._partition.bundle))
        elif state is not State.UNDECIDED:
            self._ask_again_s[transaction] = asyncio.get_running_loop().time() + PREPARED_ASKED_S

    async def _side_by_side(
        self,
        ask: Callable[[Transaction], Awaitable[None]],
        wanted: Sequence[Transaction],
        round_s: float | None = ROUND_S_MAX,
    ) -> None:
        """Ask about all transactions. Each coordinator has its own bound of questions, so that one without
        an answer does not delay the others. The round ends after `round_s`, so that it does not delay
        transactions that become due meanwhile.
        """
        pools = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(QUESTIONS_MAX))

        async def one(transaction: Transaction) -> None:
            async with pools[transaction.coordinator]:
                try:
                    await ask(transaction)
                except LedgerMQError as error:
                    if not self._state.is_lost():
                        log.info(
                            "question about a transaction not answered",
                            bundle=self._partition.bundle,
                            transaction=transaction.transactional_id,
                            error=str(error),
                        )

        with suppress(TimeoutError):  # a later round asks about the rest
            async with asyncio.timeout(round_s):
                await asyncio.gather(*(one(transaction) for transaction in wanted))

    # Expiry

    async def expire(self) -> None:
        """Forget ids that have not been used for long, and notes about producers whose ids have expired."""
        await self._expire_ids()
        now_s = asyncio.get_running_loop().time()
        notes = self._partition.participant.upkeep.notes()
        known = {note: self._note_again_s.get(note) for note in notes}
        due = [note for note, at_s in known.items() if at_s is not None and at_s <= now_s]
        pause_s = self._parts.limits.note_asked_ms / 1000
        # the producer of a new note may be at work, so the first question about it comes after a pause
        self._note_again_s = {
            note: now_s + jittered_s(pause_s, self._parts.sources.random) if at_s is None or at_s <= now_s else at_s
            for note, at_s in known.items()
        }
        await self._side_by_side(self._ask_expired, due, None)  # no time limit: each is asked about once a day

    async def _expire_ids(self) -> None:
        """Forget all of them: in one pause, programs may begin many times what one decision takes."""
        coordinator = self._partition.coordinator
        if not coordinator.expiry.wants_expiry(self._parts.clocks.our_ms()):
            return
        judged_ms = await self._parts.clocks.earlier_ms()
        while self._state.issued(lambda: coordinator.expiry.expire(judged_ms)):
            await self._state.durable()

    async def expire_half(self) -> None:
        """Forget half messages that ended. If the clock is wrong, only late callers lose their answers, so
        this uses the broker's own clock.
        """
        coordinator = self._partition.coordinator
        while coordinator.ended_half_count:
            if not self._state.issued(lambda: coordinator.expiry.expire_half(self._partition.now_ms())):
                break
            await self._state.durable()
        await self._ask_about_many_notes()

    async def _ask_about_many_notes(self) -> None:
        """Ask about the oldest notes while there are many: each half message leaves one."""
        if self._partition.participant.note_count <= self._parts.limits.notes_many:
            self._note_asked_s.clear()
            return
        now_s = asyncio.get_running_loop().time()
        notes = self._partition.participant.upkeep.notes()
        asked_s = {note: at_s for note in notes if (at_s := self._note_asked_s.get(note)) is not None}
        due = [note for note in notes if note not in asked_s or asked_s[note] + NOTE_AGAIN_S <= now_s][:NOTES_AT_ONCE]
        self._note_asked_s = asked_s | dict.fromkeys(due, now_s)
        await self._side_by_side(self._ask_expired, due)

    async def _ask_expired(self, transaction: Transaction) -> None:
        if await self._peers.ask_expired(transaction):
            self._state.issued(lambda: self._partition.participant.upkeep.forget(transaction))

    # Bytes

    async def carry(self) -> None:
        """Stage batches again that were staged long ago and keep old segments from being trimmed. Damaged
        batches stay where they are.
        """
        slots = self._parts.carry_slots
        below = self._staged.owner.offset_behind(self._staged.topic, self._staged.place.partition, slots)
        for item in self._partition.participant.upkeep.to_carry(self._partition.now_ms(), below):
            try:
                await self._carry(item)
            except DataDamaged as damage:
                log.info("a staged batch cannot be carried", bundle=self._partition.bundle, error=str(damage))

    async def _carry(self, item: CarryItem) -> None:
        batches = await self._staged.read(item.references)
        # from here on nothing is awaited: judged and appended in one turn
        size_bytes = sum(len(batch.data) for batch in batches)
        self._state.check_room(1 + size_bytes)
        participant, next_offset = self._partition.participant, self._staged.next_offset
        decision = self._state.ask(lambda: participant.upkeep.carry(item, next_offset, self._partition.now_ms()))
        if decision.answer:
            self._state.take(decision, self._staged.issue(batches))
            self._parts.counts.carried(self._partition.bundle, size_bytes)
            self._freed.set()
            await self._state.durable()

    async def move_log_start(self) -> None:
        """Free the offsets below everything that is still staged."""
        self._freed.clear()
        lowest = self._partition.participant.lowest_offset()
        begin = self._staged.next_offset if lowest is None else lowest
        try:
            await self._state.durable()  # the records that free these offsets have to be in the log first
            await self._staged.move_log_start(begin)
        except LedgerMQError:
            self._freed.set()  # they are still to be freed: retry after the pause
            raise

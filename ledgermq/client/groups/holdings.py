"""All partitions that a member holds: taken in when the coordinator gives them, let go when it
wants them, lost when it is too late.

Invariants: nothing is handed out of a partition before its committed offset was loaded and
`on_assigned` has returned, nor after it began to be let go; a partition is reported as let go only
after what was finished of it was committed, or could not be; what was lost, or given anew, counts
for nothing that the program still says of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from ledgermq.client.consuming.reader import Reader
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.callbacks import Callbacks
from ledgermq.client.groups.committer import Committer, Wish
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.loading import Loading
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.offset_store import GivenPartition
from ledgermq.client.groups.reconcile import reconcile
from ledgermq.client.settings import GroupSettings
from ledgermq.errors import GroupError, LedgerMQError, Unavailable
from ledgermq.runtime.backoff import Backoff


class Holdings:
    """`version` grows with each change of what the coordinator has to be told; `changed` is set
    then.
    """

    def __init__(
        self,
        settings: GroupSettings,
        reader: Reader[GroupMessage],
        loading: Loading,
        committer: Committer,
        callbacks: Callbacks,
        backoff: Callable[[], Backoff],
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._loading = loading
        self._committer = committer
        self._callbacks = callbacks
        self._backoff = backoff
        self.tasks: asyncio.TaskGroup | None = None
        """Where its own tasks run; given by the consumer when it begins."""
        self.held: dict[TopicPartition, Holding] = {}
        self.version = 0
        self.changed = asyncio.Event()
        self.progressed = asyncio.Event()
        """Set when the program has finished something."""
        self.draining = False
        self.last_error: LedgerMQError | None = None
        """Why something could not be loaded or committed, until it could."""
        self._failure: LedgerMQError | None = None
        self._failing_since_s: float | None = None
        self.on_letting_go: Callable[[Sequence[Holding]], None] = lambda holdings: None

    @property
    def readable(self) -> list[Holding]:
        return [holding for holding in self.held.values() if holding.reading is not None and not holding.letting_go]

    @property
    def loaded(self) -> bool:
        """Everything that is held is read."""
        return all(holding.ready or holding.letting_go for holding in self.held.values())

    @property
    def owned(self) -> list[GivenPartition]:
        return [holding.given for holding in self.held.values()]

    def apply(self, assigned: Iterable[GivenPartition]) -> bool:
        """What the coordinator says that this member may hold. False: nothing changes."""
        assert self.tasks is not None, "the consumer has begun"
        changes = reconcile({partition: holding.given for partition, holding in self.held.items()}, assigned)
        self._forget([self.held[given.partition] for given in changes.renewed])
        gained = [Holding(given, self._progressed, self._roll_back) for given in (*changes.gained, *changes.renewed)]
        unwanted = [self.held[partition] for partition in changes.unwanted if not self.held[partition].letting_go]
        for holding in gained:
            self.held[holding.partition] = holding
        if gained:
            self.tasks.create_task(self._take_in(gained))
            self._tell()
        if unwanted:
            self.stop_reading(unwanted)
            self.tasks.create_task(self._let_go(unwanted))
        return bool(gained or unwanted)

    def _tell(self) -> None:
        self.version += 1
        self.changed.set()

    def _forget(self, holdings: Iterable[Holding]) -> None:
        gone = list(holdings)
        for holding in gone:
            holding.gone = True
            if self.held.get(holding.partition) is holding:
                del self.held[holding.partition]
            if self.last_error is holding.refused:
                self.last_error = None
        self._reader.remove([holding.reading for holding in gone if holding.reading in self._reader.readings])
        self.progressed.set()

    # -- taking in
    # -----------------------------------------------------------------------------------------------------

    async def _take_in(self, gained: Sequence[Holding]) -> None:
        backoff = self._backoff()
        left = list(gained)
        while left := [holding for holding in left if not holding.gone and not holding.letting_go]:
            loaded, failure = await self._loading.load(left)
            await self._begin([holding for holding in loaded if not holding.gone and not holding.letting_go])
            left = [holding for holding in left if holding not in loaded]
            self._note_loading(failure)
            if failure is not None:
                self._reader.wake()
                await asyncio.sleep(backoff.next_s(failure.retry_after_ms))

    def _note_loading(self, failure: LedgerMQError | None) -> None:
        self.last_error = failure
        if failure is None:
            self._failing_since_s = None
        elif not failure.retriable and not isinstance(failure, GroupError):
            self._failure = failure
        elif self._failing_since_s is None:
            self._failing_since_s = asyncio.get_running_loop().time()

    def take_failure(self) -> LedgerMQError | None:
        """Why partitions cannot be read that this member was given: at once what time does not
        cure, else after the request's time-out.
        """
        since_s, now_s = self._failing_since_s, asyncio.get_running_loop().time()
        if since_s is not None and now_s - since_s > self._settings.request_timeout_s:
            self._failing_since_s = now_s
            self._failure = Unavailable(
                f"committed offsets could not be read for {now_s - since_s:.1f} s: {self.last_error}"
            )
        failure, self._failure = self._failure, None
        return failure

    async def _begin(self, loaded: Sequence[Holding]) -> None:
        for holding in loaded:
            position = holding.progress.handed
            holding.reading = self._reader.add(holding.partition, holding.given.topic_id, position, paused=True)
        await self._pin(loaded)
        await self._callbacks.assigned(_told(loaded))
        for holding in loaded:
            holding.ready = True
            self.settle(holding)
        self._reader.wake()

    async def _pin(self, loaded: Sequence[Holding]) -> None:
        """The start is committed at once: whoever has the partition next must not begin later, and
        what was never read is lag.
        """
        wishes = {holding: Wish(holding.committed) for holding in loaded if holding.pin}
        await self.commit_quietly(wishes)

    def settle(self, holding: Holding) -> None:
        """Read it, or do not, as everything about it says."""
        reading = holding.reading
        if reading is None or holding.gone or holding.letting_go:
            return
        full = holding.progress.acked_ahead >= self._settings.acked_ahead_max
        idle = holding.paused_by_program or holding.start_unknown or self.draining or full or not holding.ready
        if idle and not reading.paused:
            self._reader.pause(reading)
        elif not idle and reading.paused:
            self._reader.resume(reading)

    def drain(self, draining: bool) -> None:
        """Hand out nothing of anything, or go on."""
        self.draining = draining
        for holding in self.readable:
            self.settle(holding)
        self._reader.wake()

    def _progressed(self, holding: Holding) -> None:
        self.progressed.set()
        if holding.reading is not None and (
            holding.reading.paused or holding.progress.acked_ahead >= self._settings.acked_ahead_max
        ):
            self.settle(holding)

    def _roll_back(self, holding: Holding, offset: int, delay_s: float) -> None:
        if holding.reading is not None:
            self._reader.seek([(holding.reading, offset)], asyncio.get_running_loop().time() + delay_s)
        self.progressed.set()

    # -- letting go
    # ----------------------------------------------------------------------------------------------------

    def stop_reading(self, holdings: Sequence[Holding]) -> None:
        """From now on nothing of them is handed out."""
        for holding in holdings:
            holding.letting_go = True
        self._reader.remove([holding.reading for holding in holdings if holding.reading in self._reader.readings])
        self.on_letting_go(holdings)

    async def _let_go(self, holdings: Sequence[Holding]) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.longest_revoke_s
        await self.finished(holdings, deadline)
        await self.settle_accounts(holdings)
        self._forget([holding for holding in holdings if not holding.gone])
        self._tell()

    async def settle_accounts(self, holdings: Sequence[Holding]) -> LedgerMQError | None:
        """Before partitions are let go: tell the program, then commit what it has finished.

        Why that could not be, if so.
        """
        await self._callbacks.revoked(_told_no_more(holdings))
        return await self.commit_finished(holding for holding in holdings if not holding.gone)

    async def finished(self, holdings: Sequence[Holding], deadline: float) -> bool:
        """Wait until the program has finished what it was handed of these; False: it has not at the
        deadline.
        """
        while any(holding.outstanding and not holding.gone for holding in holdings):
            self.progressed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self.progressed.wait()
            except TimeoutError:
                return False
        return True

    async def lose(self) -> None:
        """The partitions are not this member's any more, whatever it does."""
        lost = list(self.held.values())
        self._forget(lost)
        if lost:
            self._tell()
        self.on_letting_go(lost)
        await self._callbacks.lost([holding.partition for holding in lost if holding.told])

    # -- committing
    # ----------------------------------------------------------------------------------------------------

    async def commit_finished(self, holdings: Iterable[Holding] | None = None) -> LedgerMQError | None:
        """What is finished, where commits are automatic.

        An error, if any, is noted and returned.
        """
        if self._settings.commit == "manual":
            return None
        chosen = list(self.held.values()) if holdings is None else holdings
        wishes = {holding: Wish(holding.to_commit) for holding in chosen if holding.to_commit is not None}
        return await self.commit_quietly(wishes)

    async def commit_quietly(self, wishes: dict[Holding, Wish]) -> LedgerMQError | None:
        if not wishes:
            return None
        try:
            refused = await self._committer.commit(wishes)
            self.last_error = next(iter(refused.values()), None)
        except LedgerMQError as error:
            self.last_error = error
        return self.last_error


def _told(holdings: Iterable[Holding]) -> Iterator[TopicPartition]:
    """Those that are still this member's when its turn comes."""
    for holding in holdings:
        if not holding.gone and not holding.letting_go:
            holding.told = True
            yield holding.partition


def _told_no_more(holdings: Iterable[Holding]) -> Iterator[TopicPartition]:
    """Those that the program knows to have; it hears of each once."""
    for holding in holdings:
        if holding.told and not holding.gone:
            holding.told = False
            yield holding.partition

"""All partitions that a member holds: taken in when its group gives them, let go when the group
wants them back, lost when it is too late.

Invariants: no message of a partition is returned before its committed offset was loaded and
`on_assigned` has returned, nor after it began to be let go. A partition is reported as let go only
after its finished messages were committed, or could not be, and after the open transaction that
commits its offset has ended, or was condemned. Once a partition was lost, or given
again, acknowledgements of its earlier messages do not count.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ledgermq.client.consuming.message import opened
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.context import Replier
from ledgermq.client.groups.assignment import reconcile
from ledgermq.client.groups.committing.committer import Committer, Wish
from ledgermq.client.groups.holding.holding import Event, Holding, Phase, Start
from ledgermq.client.groups.membership.loading import Loading
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retries.refusals import Refusals
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.values import GroupSettings, PartitionsCallback
from ledgermq.errors import GroupError, LedgerMQError, StaleAssignment, Unavailable
from ledgermq.offset_stores.contract import GivenPartition
from ledgermq.runtime.tasks import own_cancellation_as_error
from ledgermq.runtime.wait import wait_until

LettingGo = Callable[[Sequence[TopicPartition]], None]
"""Called with partitions of which no further message may be begun, before the member waits for
messages that were returned already.
"""


class Callbacks:
    """Calls the program's own functions: one at a time, each within `max_poll_interval_s`.

    The error of one is kept and raised by the program's next call.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._one_at_a_time = asyncio.Lock()
        self._failure: LedgerMQError | None = None

    def take_failure(self) -> LedgerMQError | None:
        """Return, once, the error that a callback has raised."""
        failure, self._failure = self._failure, None
        return failure

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_assigned", self._settings.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_revoked", self._settings.on_revoked, partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_lost", self._settings.on_lost, partitions)

    async def _call(self, name: str, function: PartitionsCallback | None, partitions: Iterable[TopicPartition]) -> None:
        async with self._one_at_a_time:
            named = sorted(partitions)  # evaluated only now, because it may have changed while another callback ran
            if function is None or not named:
                return
            try:
                async with asyncio.timeout(self._settings.max_poll_interval_s):
                    outcome = function(named)
                    if inspect.isawaitable(outcome):
                        with own_cancellation_as_error(name):
                            await outcome
            except Exception as error:
                self._failure = LedgerMQError(f"{name} failed: {error!r}")
                self._failure.__cause__ = error


class Holdings:
    """`held`: the holdings, by partition; updated here, and read by others. `tasks` runs work that
    takes time. `version` grows, and `changed` is set, with each change that must be reported to the
    coordinator.
    """

    def __init__(
        self,
        settings: GroupSettings,
        held: dict[TopicPartition, Holding],
        reader: Reader[GroupMessage],
        loading: Loading,
        committer: Committer,
        tasks: asyncio.TaskGroup,
        letting_go: LettingGo,
        refusals: Refusals,
        replier: Replier,
    ) -> None:
        self._settings = settings
        self._base = opened(GroupMessage, settings.deserializer, settings.interceptors, replier)
        self._refusals = refusals
        self.held = held
        self._reader = reader
        self._loading = loading
        self._committer = committer
        self._tasks = tasks
        self._letting_go = letting_go
        self.callbacks = Callbacks(settings)
        self.version = 0
        self.changed = asyncio.Event()
        self.progressed = asyncio.Event()
        """Set when the program has finished a message."""
        self.draining = False
        self.last_error: LedgerMQError | None = None
        """Why the latest load or commit failed; None once one succeeded."""
        self._failure: LedgerMQError | None = None
        self._failing_since_s: float | None = None

    @property
    def readable(self) -> list[Holding]:
        """Return what can be read now. As `loaded` it may be called in any thread, so it looks at a copy."""
        return [holding for holding in list(self.held.values()) if holding.reading is not None and holding.kept]

    @property
    def loaded(self) -> bool:
        """Return whether everything that is held, and not being let go, is read."""
        return all(holding.phase is Phase.READY or not holding.kept for holding in list(self.held.values()))

    @property
    def owned(self) -> list[GivenPartition]:
        return [holding.given for holding in self.held.values()]

    def apply(self, assigned: Iterable[GivenPartition]) -> bool:
        """Take in and let go, so that this member holds its assignment. Return whether anything
        changes.
        """
        changes = reconcile({partition: holding.given for partition, holding in self.held.items()}, assigned)
        self._forget([self.held[given.partition] for given in changes.renewed])
        gained = [
            Holding(given, self._progressed, self._roll_back, self._refusals, self._wait, self._base)
            for given in (*changes.gained, *changes.renewed)
        ]
        unwanted = [self.held[partition] for partition in changes.unwanted if self.held[partition].kept]
        for holding in gained:
            self.held[holding.partition] = holding
        if gained:
            self._tasks.create_task(self._take_in(gained))
            self._notify_changed()
        if unwanted:
            self.stop_reading(unwanted)
            self._tasks.create_task(self._let_go(unwanted))
        return bool(gained or unwanted)

    def _notify_changed(self) -> None:
        self.version += 1
        self.changed.set()

    def _forget(self, holdings: Iterable[Holding]) -> None:
        gone = list(holdings)
        for holding in gone:
            holding.advance(Event.END)
            if self.held.get(holding.partition) is holding:
                del self.held[holding.partition]
            if self.last_error is holding.refused:
                self.last_error = None
        self._reader.remove([holding.reading for holding in gone if holding.reading in self._reader.readings])
        self.progressed.set()

    # -- taking in
    # -----------------------------------------------------------------------------------------------------

    async def _take_in(self, gained: Sequence[Holding]) -> None:
        backoff = self._loading.backoff()
        left = list(gained)
        while left := [holding for holding in left if holding.kept]:
            loaded, failure = await self._loading.load(left)
            await self._begin([holding for holding in loaded if holding.kept])
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
        """Return, once, why partitions that this member was given cannot be read.

        An error that may pass counts only after `request_timeout_s`.
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
        await self.callbacks.assigned(_announced(loaded))
        for holding in loaded:
            if holding.phase is Phase.ASSIGNED:
                holding.advance(Event.BEGIN)
                self.settle(holding)
        self._reader.wake()

    async def _pin(self, loaded: Sequence[Holding]) -> None:
        """Commit the starts that were chosen now: the partition's next holder must not begin
        later, and records that were never read must count as lag.
        """
        wishes = {holding: Wish(holding.committed) for holding in loaded if holding.start is Start.CHOSEN}
        await self.commit_quietly(wishes)

    def settle(self, holding: Holding) -> None:
        """Pause or resume its reading, as its state requires."""
        reading = holding.reading
        if reading is None or not holding.kept:
            return
        full = holding.is_full or holding.progress.acked_ahead >= self._settings.acked_ahead_max
        waiting = holding.phase is not Phase.READY or holding.start is Start.UNCHOSEN
        idle = waiting or full or self.draining or holding.paused_by_program
        if idle and not reading.paused:
            self._reader.pause(reading)
        elif not idle and reading.paused:
            self._reader.resume(reading)

    def drain(self, draining: bool) -> None:
        """Stop returning messages of all partitions, or continue."""
        self.draining = draining
        for holding in self.readable:
            self.settle(holding)
        self._reader.wake()

    def _progressed(self, holding: Holding) -> None:
        self.progressed.set()
        if holding.reading is not None and (
            holding.reading.paused or holding.is_full or holding.progress.acked_ahead >= self._settings.acked_ahead_max
        ):
            self.settle(holding)

    def _roll_back(self, holding: Holding, offset: int, delay_s: float) -> None:
        if holding.reading is not None:
            self._reader.seek([(holding.reading, offset)], asyncio.get_running_loop().time() + delay_s)
        self.progressed.set()

    def _wait(self, delay_s: float) -> float:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        loop.call_at(due_s, self._reader.wake)
        return due_s

    def return_refused_in_order(self) -> None:
        """Roll back each partition to its first message that waits to be returned again, because a table has
        messages in the order of their offsets.
        """
        for holding in self.readable:
            if (first := holding.waiting.first) is not None:
                holding.roll_back(first, holding.progress.generation, 0.0)

    # -- letting go
    # ----------------------------------------------------------------------------------------------------

    def stop_reading(self, holdings: Sequence[Holding]) -> None:
        """Hand out no further messages of them. They must be kept so far."""
        for holding in holdings:
            holding.advance(Event.LET_GO)
        self._reader.remove([holding.reading for holding in holdings if holding.reading in self._reader.readings])
        self._letting_go([holding.partition for holding in holdings])

    async def _let_go(self, holdings: Sequence[Holding]) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.longest_revoke_s
        await self.finished(holdings, deadline)
        self.condemn_transactions(holdings)
        await self.settle_accounts(holdings)
        self._forget([holding for holding in holdings if not holding.gone])
        self._notify_changed()

    def condemn_transactions(self, holdings: Iterable[Holding]) -> None:
        """Make the open transactions abort in which offsets of these holdings are staged."""
        for holding in holdings:
            if holding.transaction is not None:
                holding.transaction.condemn(
                    StaleAssignment(f"{holding.partition} was let go before the transaction with its offset had ended")
                )

    def end_transaction(self, staged: Mapping[Holding, Wish], *, committed: bool) -> None:
        """Apply the end of a transaction in which these offsets were staged.

        Committed: their messages are finished. Aborted: what is not finished is delivered again.
        """
        for holding, wish in staged.items():
            holding.transaction = None
            if committed:
                holding.committed_in_transaction(*wish)
        if not committed:
            self.rewind(staged)
        self.progressed.set()

    def rewind(self, holdings: Iterable[Holding]) -> None:
        """Deliver again what is not finished, unless an open transaction has staged it."""
        for holding in holdings:
            if holding.transaction is None and (offset := holding.rewind()) is not None and holding.reading is not None:
                self._reader.seek([(holding.reading, offset)])
        self.progressed.set()

    async def settle_accounts(self, holdings: Sequence[Holding]) -> LedgerMQError | None:
        """Call `on_revoked`, then commit finished messages. Return the error of the commit, if
        any.
        """
        await self.callbacks.revoked(_withdrawn(holdings))
        return await self.commit_finished(holding for holding in holdings if not holding.gone)

    async def finished(self, holdings: Sequence[Holding], deadline: float) -> bool:
        """Wait until the program has finished all messages of these holdings, and the transactions
        that commit their offsets.

        Return False if it has not at the deadline.
        """
        while any(holding.busy for holding in holdings):
            self.progressed.clear()
            if not await wait_until(self.progressed, deadline):
                return False
        return True

    async def lose(self) -> None:
        """Drop everything, because the group may have given the partitions to others."""
        lost = list(self.held.values())
        known = [holding.partition for holding in lost if holding.with_program]
        self._forget(lost)
        if lost:
            self._notify_changed()
        self._letting_go([holding.partition for holding in lost])
        await self.callbacks.lost(known)

    def end(self) -> None:
        """Ignore further acknowledgements, because the consumer is closed."""
        for holding in self.held.values():
            if not holding.gone:
                holding.advance(Event.END)
        self.progressed.set()

    # -- committing
    # ----------------------------------------------------------------------------------------------------

    async def commit_finished(self, holdings: Iterable[Holding] | None = None) -> LedgerMQError | None:
        """Commit finished messages, unless the program commits itself. Return the error, if any."""
        if self._settings.commit == "manual":
            return None
        chosen = list(self.held.values() if holdings is None else holdings)
        for holding in chosen:
            holding.carry(asyncio.get_running_loop().time())
        wishes = {holding: Wish(holding.to_commit) for holding in chosen if holding.to_commit is not None}
        return await self.commit_quietly(wishes)

    async def commit_skipped(self) -> None:
        """Commit where the program has nothing to finish, for one that commits in transactions, or before it
        receives messages: those that expired or were filtered are in none of these commits.
        """
        idle = [holding for holding in self.held.values() if not holding.outstanding and holding.transaction is None]
        await self.commit_quietly({each: Wish(each.to_commit) for each in idle if each.to_commit is not None})

    async def commit_quietly(self, wishes: dict[Holding, Wish]) -> LedgerMQError | None:
        """Commit, and keep the error as `last_error` instead of raising it."""
        if not wishes:
            return None
        try:
            refused = await self._committer.commit(wishes)
            self.last_error = next(iter(refused.values()), None)
        except LedgerMQError as error:
            self.last_error = error
        return self.last_error


def _announced(holdings: Iterable[Holding]) -> Iterator[TopicPartition]:
    """Mark as assigned, and return, those that are still kept when the callback's turn comes."""
    for holding in holdings:
        if holding.kept:
            holding.advance(Event.ANNOUNCE)
            yield holding.partition


def _withdrawn(holdings: Iterable[Holding]) -> Iterator[TopicPartition]:
    """Mark as revoked, and return, those that the program has; each is reported once."""
    for holding in holdings:
        if holding.phase is Phase.REVOKING:
            holding.advance(Event.WITHDRAW)
            yield holding.partition

"""Keep messages that a handler keeps failing at in its local store, and call the handler with them
again later (`Retry.metaq`).

Invariants: a message is in the store before it is acknowledged. It leaves the store only after the
handler succeeded, or the function after its last attempt did. A message that the broker delivers
again while it is stored is acknowledged, and not handled. A stored message takes its turn in the
lane of its partition or key, as a new one does; one that fails leaves the lane until the next round.
It goes before a new one that finds no room in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.client.consuming.message import made_as, opened
from ledgermq.client.context import Replier
from ledgermq.client.groups.handlers.calls import HandlerCalls, place_of
from ledgermq.client.groups.handlers.recovering.local_store import LocalStore, MessageKey, StoredMessage
from ledgermq.client.groups.handlers.retry import MetaQ
from ledgermq.client.groups.message import GroupMessage, Handout, no_dead_letters
from ledgermq.errors import DeadlineExceeded, LedgerMQError, ResourceExhausted, RetriableError, StoreUnusable
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.process.log import get_log

_PASSING = (ResourceExhausted, StoreUnusable)
"""Errors of the store that may pass: no room, no space, a disk that cannot be written."""

_log = get_log("ledgermq.handlers")


class Recovered:
    """A stored message that waits for its call, or is being handled. Receives its acknowledgements."""

    def __init__(
        self,
        key: MessageKey,
        stored: StoredMessage,
        leave: Callable[[MessageKey], None],
        base: type[GroupMessage] | None = None,
    ) -> None:
        self.key = key
        self.recoveries = stored.recoveries
        self.refused = False
        """Whether the program refused it (`nack`): it stays stored, even if the call succeeds."""
        self._finished = False
        self._leave = leave
        self.message: GroupMessage = made_as(Handout(self, 0, base).kind, stored.message)

    @property
    def topic_id(self) -> int:
        return self.key.topic_id

    def ack(self, offset: int, generation: int) -> bool:
        self._finished = True
        return True

    def nack(self, message: GroupMessage, generation: int, delay_s: float | None) -> bool:
        self.refused = not self._finished
        return self.refused

    def check_dead_letters(self) -> None:
        raise no_dead_letters()

    def fail(self, message: GroupMessage, generation: int, error: str, *, dead: bool) -> bool:
        raise no_dead_letters()

    def expire(self, message: GroupMessage, generation: int) -> bool:
        return self.ack(message.offset, generation)

    def roll_back(self, offset: int, generation: int, delay_s: float) -> bool:
        return False

    def give_back(self, offset: int, generation: int) -> None:
        """Note that it will not be handled now; it stays stored."""
        self._leave(self.key)

    def is_finished(self, offset: int) -> bool:
        return self._finished


class Recovery:
    """`cluster_id`: returns the id of the cluster. Use `open` first, and `close` last."""

    def __init__(
        self,
        policy: MetaQ,
        calls: HandlerCalls,
        store: LocalStore,
        cluster_id: Callable[[], Awaitable[str]],
        backoff: Backoff,
        replier: Replier,
    ) -> None:
        self._policy = policy
        self._calls = calls
        self._handler = calls.handler
        self._group = calls.handler.settings.group
        consumer = calls.handler.settings.consumer
        self._base = opened(GroupMessage, consumer.get("deserializer"), consumer.get("interceptors", ()), replier)
        self._store = store
        self._cluster_id = cluster_id
        self._backoff = backoff
        self._at_work: dict[MessageKey, Recovered] = {}
        self._room = asyncio.Semaphore(2 * calls.handler.settings.concurrency)
        self._left = asyncio.Event()
        """Set when a stored message is no longer at work."""
        self._handled: set[MessageKey] = set()
        """Messages that are done, but could not be removed from the store yet."""

    async def open(self) -> None:
        """Open the store, when a broker has said which cluster it is. Raises what
        `LocalStore.open` raises.
        """
        while True:
            try:
                cluster_id = await self._cluster_id()
                break
            except RetriableError as error:
                self._handler.last_error = error
                await self._backoff.pause(error.retry_after_ms)
        await self._store.open(cluster_id, self._group)
        self._count()

    async def close(self) -> None:
        await self._store.close()

    async def run(self, hand_over: Callable[[GroupMessage], None]) -> None:
        """Call the handler with every stored message, now and in each later round.

        `hand_over` puts a message into its lane. Raises DataDamaged.
        """
        while True:
            for key in self._store.oldest_first():
                await self._take_up(key, hand_over)
            await asyncio.sleep(self._policy.recover_every_s)

    async def _take_up(self, key: MessageKey, hand_over: Callable[[GroupMessage], None]) -> None:
        if key in self._handled:
            await self._remove(key)
            return
        if key in self._at_work or key not in self._store:
            return
        await self._room.acquire()
        try:
            stored = await self._store.load(key)
        except StoreUnusable as error:  # the next round tries again
            self._note(error)
            self._room.release()
            return
        self._at_work[key] = Recovered(key, stored, self._leave, self._base)
        hand_over(self._at_work[key].message)

    def _leave(self, key: MessageKey) -> None:
        if self._at_work.pop(key, None) is not None:
            self._room.release()
            self._left.set()

    async def drain(self, timeout_s: float) -> None:
        """Wait until no stored message is being handled. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._at_work:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"{len(self._at_work)} calls with stored messages were not finished within {timeout_s} s; the messages"
                " stay stored"
            ) from None

    # -- messages

    def recovered(self, message: GroupMessage) -> Recovered | None:
        """Return the state of a message that comes from the store; None: it comes from its topic."""
        found = self._at_work.get(_key_of(message))
        return found if found is not None and found.message is message else None

    def is_recovered(self, message: GroupMessage) -> bool:
        return self.recovered(message) is not None

    def keeps(self, message: GroupMessage) -> bool:
        """Return whether this message of the topic is stored: it must not be handled again."""
        return _key_of(message) in self._store

    def attempt(self, recovered: Recovered) -> int:
        """Return the number of the next call with it."""
        return self._policy.attempts + recovered.recoveries + 1

    async def put_away(self, message: GroupMessage, error: Exception) -> bool:
        """Store a message after its last attempt in place. Return False if it cannot be stored:
        then it must not be acknowledged. Raises DataDamaged.
        """
        try:
            await self._store.add(_key_of(message), message, error)
        except _PASSING as failure:
            self._note(failure)
            return False
        self._count()
        _log.warning("handler of group %s stored the message at %s: %r", self._group, place_of(message), error)
        return True

    async def settle(self, recovered: Recovered, error: Exception | None) -> None:
        """Note the outcome of a call with a stored message. `error` None: it is done."""
        key, message = recovered.key, recovered.message
        try:
            if error is None and not recovered.refused:
                await self._remove(key)
                return
            failure = error or RuntimeError("the program refused the message")
            recoveries = recovered.recoveries + 1
            is_last = self._policy.recoveries_max is not None and recoveries >= self._policy.recoveries_max
            assert not is_last or self._policy.then is not None, "checked by the policy"
            if is_last and self._policy.then and await self._calls.end(self._policy.then, message, failure):
                await self._remove(key)
                return
            try:
                await self._store.note_recoveries(key, recoveries, failure)
            except _PASSING as trouble:
                self._note(trouble)
        finally:
            self._leave(key)

    async def _remove(self, key: MessageKey) -> None:
        try:
            await self._store.remove(key)
        except _PASSING as error:
            self._handled.add(key)
            self._note(error)
        else:
            self._handled.discard(key)
            self._count()

    def _count(self) -> None:
        self._handler.stored = len(self._store)

    def _note(self, error: LedgerMQError) -> None:
        self._handler.last_error = error
        _log.warning("retry store of group %s: %s", self._group, error.message)


def _key_of(message: GroupMessage) -> MessageKey:
    return MessageKey(message.handout.topic_id, message.partition, message.offset)

"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self

from ledgermq.client.consuming.start import Start
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.queues.admin import QueueAdmin as AsyncQueueAdmin
from ledgermq.client.queues.admin import QueueDescription, Where
from ledgermq.client.queues.leases.answering import LeaseAnswer, LeaseResult
from ledgermq.client.queues.leases.leasing import LeasedMessage
from ledgermq.client.queues.message import QueueMessage
from ledgermq.client.queues.queue import Queue as AsyncQueue
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import QueueSettings
from ledgermq.sync.background import Background


class QueueAdmin:
    """Administration of queue groups, as `client.queues`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncQueueAdmin) -> None:
        self._background = background
        self._inner = inner

    def lease(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        max_records: int = 50,
        wait: float = 3.0,
        start: Start = "earliest",
        lease_s: float = 30.0,
        attempts_max: int = 5,
        dead_letters: bool = True,
        filter: str = "",
        caller: str = "",
    ) -> Sequence[LeasedMessage]:
        """Lease messages of a queue group, without a member that stays; none if there are none within `wait` seconds.

            for leased in client.queues.lease("jobs", "workers", max_records=50):
                work(leased.message)
                client.queues.answer([LeaseAnswer(leased.handle)])

        Each message comes with a handle, by which any process may answer (`answer`) as long as its lease lasts. What is
        not answered comes again. `start` and the settings are those of `client.queue`; all callers of a group need the
        same `filter`. `caller`: a name that `answer` has to give, too; "": any.

        Raises FilterConflict if the group is read with another filter; UnknownTopic, InvalidGroupName, InvalidRequest,
        InvalidConfig, Unauthorized, CorruptFrame, DataDamaged, Unavailable.
        """
        return self._background.run(
            self._inner.lease(
                topics,
                group,
                max_records=max_records,
                wait=wait,
                start=start,
                lease_s=lease_s,
                attempts_max=attempts_max,
                dead_letters=dead_letters,
                filter=filter,
                caller=caller,
            )
        )

    def answer(self, answers: Iterable[LeaseAnswer], *, caller: str = "") -> Sequence[LeaseResult]:
        """Say what became of leased messages; return for each answer, in order, whether it counts. At most 2,000.

        An answer that came too late does not count, and is no error. `caller`: refuse handles that were leased for
        another one; "": any. Raises InvalidRequest, before anything is sent, if a handle or an answer is none. Errors
        of brokers are in the results: the other answers count.
        """
        return self._background.run(self._inner.answer(answers, caller=caller))

    def list(self) -> Sequence[QueueDescription]:
        """Return all queue groups of the cluster, by name, without their members.

        Raises Unavailable if a bundle does not answer.
        """
        return self._background.run(self._inner.list())

    def describe(self, group: str) -> QueueDescription:
        """Return a group's partitions, with the members that have messages. Raises InvalidGroupName,
        UnknownGroup, Unavailable.
        """
        return self._background.run(self._inner.describe(group))

    def reset(
        self, group: str, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> Mapping[TopicPartition, int]:
        """Let a group begin again at an offset, a time, or an end of the topic; return the offsets. All leases
        end: messages from there on come again, those before it do not. Members go on.

        `partitions`: all, if None. An offset below the log start becomes the log start. Raises
        OffsetOutOfRange (above the end), UnknownTopic, UnknownPartition, InvalidGroupName, Unavailable.
        """
        return self._background.run(self._inner.reset(group, topic, where, partitions))

    def delete(self, group: str, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Forget a group in a topic: a member that comes later begins again, by its `start`.

        Raises UnknownTopic, UnknownPartition, InvalidGroupName, Unavailable.
        """
        self._background.run(self._inner.delete(group, topic, partitions))


class QueueCalls(Generic[V]):
    """The calls of `ledgermq.sync.Queue` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncQueue[V]) -> None:
        self._background = background
        self._inner = inner

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def topics(self) -> tuple[str, ...]:
        return self._inner.topics

    @property
    def settings(self) -> QueueSettings:
        return self._inner.settings

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def expired(self) -> int:
        return self._inner.expired

    @property
    def filtered(self) -> int:
        return self._inner.filtered

    @property
    def dead_lettered(self) -> int:
        return self._inner.dead_lettered

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[QueueMessage[V]]:
        """Return up to `max_records` messages, as soon as there are any; none after `timeout` seconds.

        Each belongs to this member for `lease_s`: finish it with `ack`, give it back with `nack`. Messages
        that are not finished in time come again, here or at another member. An empty list says that the
        brokers have nothing for this member now. If no broker serves the queue when the time is up, this
        raises Unavailable; the next call tries again. Raises UnknownTopic, InvalidGroupName, CorruptFrame,
        DataDamaged. Takes `timeout` at most, and the first call one second at least if no broker answers.
        """
        return self._background.run(self._inner.fetch(max_records, timeout), timeout)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the cluster has answered everything that was said about messages so far.

        Raises DeadlineExceeded after `timeout_s`: the rest is still being sent. Raises Unavailable, UnknownTopic, …
        if something that was said since the last call could not be sent within the client's `timeout_s`, although the
        program may have seen that error in a `Reply`: those messages come again.
        """
        self._background.run(self._inner.flush(timeout_s), timeout_s)

    def drain(self, timeout: float = 30.0) -> None:
        """Hand out no further messages, and wait until the program has finished those that it has, or their leases
        have ended, and the cluster has answered. What was leased ahead goes to other members at once. `fetch` returns
        nothing from now on, and `for` ends.

        Raises DeadlineExceeded after `timeout` seconds: the rest is given back by `close`. Raises what `flush` raises.
        """
        self._background.run(self._inner.drain(timeout), timeout)

    def close(self) -> None:
        """Send what was said, give unfinished messages back, and end. Idempotent."""
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self._background.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from ledgermq.client.consuming.described import MessageDescription
from ledgermq.client.delayed import DelayedList, RecallOutcome
from ledgermq.client.finding import BYTES_MAX, MAX, TIMEOUT_S, GivenKey, Order, Partitions, Place
from ledgermq.client.front.looking_up import LookingUp as AsyncLookingUp
from ledgermq.client.messages.descriptions import PartitionHolder
from ledgermq.client.messages.message_id import MessageId
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.finding import Search


class LookingUp:
    """The calls of a client about single messages."""

    def __init__(self, background: Background, inner: AsyncLookingUp) -> None:
        self._background = background
        self._inner = inner

    def holders(self, topic: str) -> list[PartitionHolder]:
        """Return the partitions of a topic that exclusive producers have for themselves, in ascending order. Raises
        UnknownTopic, Unauthorized (it needs the right to produce), Unavailable.
        """
        return self._background.run(self._inner.holders(topic))

    def find(
        self,
        topic: str | None = None,
        *,
        key: GivenKey | None = None,
        id: str | MessageId | None = None,
        start: Place = "earliest",
        end: Place = "latest",
        max: int = MAX,
        partitions: Partitions = "key",
        order: Order = "newest",
        bytes_max: int = BYTES_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Search:
        """Look messages up: by `key`, or one by its `id`. Iterate over the result, or its `all()`.

            for message in client.find("orders", key="table-7", start="1d"):
                ...

        By key it searches from `start` up to, without, `end`: offsets, times, ages, or a dict with an offset
        for each partition; the newest message comes first, or with order="oldest" the oldest. `partitions`:
        "key" searches the one that the default partitioner of producers gives to the key; "all", or numbers,
        search others too, one partition after the other. After `max` messages the iteration ends, and
        `Search.rest` says how to go on. When `timeout` seconds have passed, or brokers have read `bytes_max`
        bytes, it raises SearchStopped, whose `rest` says the same.

        Messages whose time to live is over, and tombstones, are found, too. By id the one message comes, or
        OffsetOutOfRange is raised if it is not stored, or no longer. Raises InvalidRequest, InvalidConfig.
        """
        made = self._background.run(
            as_coroutine(
                lambda: self._inner.find(
                    topic,
                    key=key,
                    id=id,
                    start=start,
                    end=end,
                    max=max,
                    partitions=partitions,
                    order=order,
                    bytes_max=bytes_max,
                    timeout=timeout,
                )
            )
        )
        return Search(self._background, made)

    def describe_message(self, message_id: str | MessageId) -> MessageDescription:
        """Return a message, and in which objects it is stored, when and by whom.

        Raises InvalidRequest (not an id), OffsetOutOfRange (not stored, or no longer), UnknownTopic,
        UnknownPartition, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.describe_message(message_id))

    def recall(self, handle: str) -> RecallOutcome:
        """Take back a delayed message, by the `handle` of its `SendResult`.

        Returns RecallOutcome.RECALLED if it is never delivered, TOO_LATE if it is delivered or surely
        will be, FORGOTTEN if it was due so long ago that its outcome is no longer known. A repeated call
        returns RECALLED again. Raises InvalidRequest (not a handle), UnknownTopic and TopicBeingDeleted
        (the message is dropped when it is due), ResourceExhausted, Unavailable.
        """
        return self._background.run(self._inner.recall(handle))

    def list_delayed(
        self, topic: str | None = None, partition: int | None = None, *, messages_max: int = 100
    ) -> DelayedList:
        """Return the delayed messages that come next, and what waits in the bundles.

        `topic`, `partition`: only messages of this topic, or partition; `bundles` still counts all
        topics. `messages_max`: at most 10,000; 0: only what waits in the bundles. The list is a look at the
        present: messages may be delivered meanwhile. `unanswered` names bundles that do not answer.
        Raises UnknownTopic, UnknownPartition, InvalidRequest; Unavailable if no bundle answers.
        """
        return self._background.run(self._inner.list_delayed(topic, partition, messages_max=messages_max))

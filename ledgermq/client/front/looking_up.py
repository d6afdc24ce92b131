"""How a client looks single messages up, those that wait for their time, and who holds partitions."""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.client.consuming.described import MessageDescription
from ledgermq.client.context import ClientContext
from ledgermq.client.delayed import Delayed, DelayedList, RecallOutcome
from ledgermq.client.finding import (
    BYTES_MAX,
    MAX,
    TIMEOUT_S,
    Finding,
    GivenKey,
    Order,
    Partitions,
    Place,
    Search,
    id_of,
)
from ledgermq.client.messages.descriptions import (
    PartitionHolder,
)
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.operating.tracing import MessageTrace, Tracing
from ledgermq.client.producing.exclusive import find_holders


class LookingUp:
    """The calls of a client about single messages."""

    def __init__(self, context: ClientContext, finding: Finding, delayed: Delayed, tracing: Tracing) -> None:
        self._context = context
        self._finding = finding
        self._delayed = delayed
        self._tracing = tracing

    async def holders(self, topic: str) -> list[PartitionHolder]:
        """Return the partitions of a topic that exclusive producers have for themselves, in ascending order. Raises
        UnknownTopic, Unauthorized (it needs the right to produce), Unavailable.
        """
        return await find_holders(self._context, topic)

    def find(
        self,
        topic: str | None = None,
        *,
        key: GivenKey | None = None,
        id: str | MessageId | None = None,  # noqa: A002  the name of the field
        start: Place = "earliest",
        end: Place = "latest",
        max: int = MAX,  # noqa: A002  the name of the field
        partitions: Partitions = "key",
        order: Order = "newest",
        bytes_max: int = BYTES_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Search:
        """Look messages up: by `key`, or one by its `id`. Iterate over the result, or await its `all()`.

            async for message in client.find("orders", key="table-7", start="1d"):
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
        return self._finding.search(topic, key, id, start, end, max, partitions, order, bytes_max, timeout)

    async def describe_message(self, message_id: str | MessageId) -> MessageDescription:
        """Return a message, and in which objects it is stored, when and by whom.

        Raises InvalidRequest (not an id), OffsetOutOfRange (not stored, or no longer), UnknownTopic,
        UnknownPartition, Unauthorized, Unavailable.
        """
        return await self._finding.describe(id_of(message_id))

    async def trace(
        self,
        message_id: str | MessageId,
        *,
        timeout: float = TIMEOUT_S,  # noqa: ASYNC109  as Consumer.fetch
        on_progress: Callable[[str], object] | None = None,
    ) -> MessageTrace:
        """Return where a message went: which groups have read it, and its copies in retry and dead-letter topics.

        `timeout`: for the search of one of these topics; `MessageTrace.unfinished` names what was not searched to its
        end. `on_progress` is called with what is asked next. Raises as `describe_message` does.
        """
        return await self._tracing.trace(id_of(message_id), timeout, on_progress or (lambda what: None))

    async def recall(self, handle: str) -> RecallOutcome:
        """Take back a delayed message, by the `handle` of its `SendResult`.

        Returns RecallOutcome.RECALLED if it is never delivered, TOO_LATE if it is delivered or surely
        will be, FORGOTTEN if it was due so long ago that its outcome is no longer known. A repeated call
        returns RECALLED again. Raises InvalidRequest (not a handle), UnknownTopic and TopicBeingDeleted
        (the message is dropped when it is due), ResourceExhausted, Unavailable.
        """
        return await self._delayed.recall(handle)

    async def list_delayed(
        self, topic: str | None = None, partition: int | None = None, *, messages_max: int = 100
    ) -> DelayedList:
        """Return the delayed messages that come next, and what waits in the bundles.

        `topic`, `partition`: only messages of this topic, or partition; `bundles` still counts all
        topics. `messages_max`: at most 10,000; 0: only what waits in the bundles. The list is a look at the
        present: messages may be delivered meanwhile. `unanswered` names bundles that do not answer.
        Raises UnknownTopic, UnknownPartition, InvalidRequest; Unavailable if no bundle answers.
        """
        return await self._delayed.list(topic, partition, messages_max)

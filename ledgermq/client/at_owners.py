"""Send a request to the owners of partitions, one per owner for all of its partitions, until every
partition has an answer.

Redirects and dead brokers are followed until the deadline. An owner that does not answer delays no
other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.routing import Routing
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, Unavailable, UnknownPartition
from ledgermq.protocol.api import BrokerApi
from ledgermq.runtime.tasks import all_of

A = TypeVar("A")

Ask = Callable[[BrokerApi, Sequence[TopicPartition]], Awaitable[Sequence[A | LedgerMQError]]]
"""Send one request to one broker, and return an answer or an error for each partition, in their
order.
"""


class AtOwners(Generic[A]):
    def __init__(self, connections: Connections, routing: Routing, ask: Ask[A]) -> None:
        self._connections = connections
        self._routing = routing
        self._ask_one = ask

    async def find(self, wanted: Sequence[TopicPartition], deadline: float) -> dict[TopicPartition, A]:
        """Return every partition's answer.

        Raises UnknownPartition, the first other error that no retry cures, and Unavailable.
        """
        await self._check_partitions(wanted, deadline)
        found: dict[TopicPartition, A] = {}
        backoff = self._connections.backoff()
        while True:
            missing = [partition for partition in wanted if partition not in found]
            if not missing:
                return found
            last = await self._round(missing, found, deadline)
            if last is None:
                continue
            if not await backoff.pause(last.retry_after_ms, deadline):
                names = ", ".join(str(partition) for partition in missing if partition not in found)
                raise Unavailable(f"no answer in time for {names}: {last}") from last
            for topic in {partition.topic for partition in missing if partition not in found}:
                if any(self._routing.owner(*partition) is None for partition in missing if partition.topic == topic):
                    await self._routing.refresh(topic, deadline)

    async def _check_partitions(self, wanted: Sequence[TopicPartition], deadline: float) -> None:
        """Raise UnknownPartition for a partition that the topic does not have: the call would look
        for its owner until the deadline.

        The topic may have grown since the partition was looked up.
        """
        for topic, partition in wanted:
            if partition >= (await self._routing.route(topic, deadline)).partitions:
                count = (await self._routing.refresh(topic, deadline)).partitions
                if partition >= count:
                    raise UnknownPartition(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")

    async def _round(
        self, missing: Sequence[TopicPartition], found: dict[TopicPartition, A], deadline: float
    ) -> LedgerMQError | None:
        """Send one request to each owner, all at the same time.

        Return the last error that a retry may cure.
        """
        by_owner: dict[str, list[TopicPartition]] = {}
        last: LedgerMQError | None = None
        for partition in missing:
            await self._routing.route(partition.topic, deadline)
            if (owner := self._routing.owner(*partition)) is not None:
                by_owner.setdefault(owner, []).append(partition)
            else:
                last = Unavailable(f"no broker owns {partition} at present")
        errors = await all_of(self._ask(*one, found, deadline) for one in by_owner.items())
        return next((error for error in errors if error is not None), last)

    async def _ask(
        self, owner: str, partitions: list[TopicPartition], found: dict[TopicPartition, A], deadline: float
    ) -> LedgerMQError | None:
        try:
            results = await self._connections.ask_at(owner, lambda at: self._ask_one(at, partitions), deadline)
            if len(results) != len(partitions):
                raise Unavailable(f"{owner} answered for {len(results)} of {len(partitions)} partitions")
        except InvalidRequest:
            raise
        except LedgerMQError as error:
            if not error.retriable:
                raise
            self._routing.unreachable(owner)
            return error
        last: LedgerMQError | None = None
        for asked, result in zip(partitions, results, strict=True):
            if not isinstance(result, LedgerMQError):
                found[asked] = result
                continue
            last = result
            if not last.retriable:
                raise last
            named = (
                last.owner if isinstance(last, NotOwner) else None
            )  # a broker that cannot serve it may be a former owner
            self._routing.redirected(asked.topic, asked.partition, named, refused_by=owner)
        return last

"""Find the ends of partitions, as exactly as a commit needs them: durable lower bounds, requested
from the partitions' owners.

The first answer is the end that the owner knows, which costs no request to the store. If that lies
below the committed offset (its writer may be a zombie, or behind), the true end is requested, which
the owner returns after a fence check. So the outdated end of a former owner never refuses a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_offsets.served_offsets import EndWanted

NamedPartition = tuple[str, int]
"""(topic name, partition)."""

ASK_S_MAX = 3.0
HOPS_MAX = 2

log = get_logger(__name__)


class PartitionEnds:
    """`broker(bundle, address)` returns the broker to ask about a bundle, by its address if that is
    given, and the address used.
    """

    def __init__(self, catalog: Callable[[], Catalog], broker: Callable[[int, str], tuple[str, BrokerApi]]) -> None:
        self._catalog = catalog
        self._broker = broker

    async def of(self, wanted: Sequence[EndWanted], offsets: Mapping[NamedPartition, int]) -> dict[PartitionId, int]:
        """Return ends at or above `offsets` where such ends exist. Partitions whose owner does not
        answer in time are left out.
        """
        found = await self._ask(wanted, latest=False)
        behind = [end for end in wanted if found.get(_key(end), -1) < offsets.get((end.topic, end.partition), 0)]
        for end in behind:  # no answer yet
            found.pop(_key(end), None)
        return found | (await self._ask(behind, latest=True) if behind else {})

    async def known(self, wanted: Sequence[EndWanted]) -> dict[PartitionId, int]:
        """Return the ends that the owners know now, which costs no request to the store. Partitions
        whose owner does not answer in time are left out.
        """
        return await self._ask(wanted, latest=False) if wanted else {}

    async def _ask(self, wanted: Sequence[EndWanted], *, latest: bool) -> dict[PartitionId, int]:
        found: dict[PartitionId, int] = {}
        owners: dict[PartitionId, str] = {}
        try:
            async with asyncio.timeout(ASK_S_MAX):
                for _ in range(HOPS_MAX):
                    missing = [end for end in wanted if _key(end) not in found]
                    if missing:
                        await self._ask_owners(missing, latest, found, owners)
        except TimeoutError:
            log.info("ends of partitions not told in time", missing=len(wanted) - len(found))
        return found

    async def _ask_owners(
        self, wanted: Sequence[EndWanted], latest: bool, found: dict[PartitionId, int], owners: dict[PartitionId, str]
    ) -> None:
        """Ask the owners. `owners`: the owner of a partition that a broker named which does not own
        it.
        """
        by_broker: dict[str, tuple[BrokerApi, list[EndWanted]]] = {}
        lists: dict[tuple[int, str], list[EndWanted]] = {}
        topics = self._catalog().topics_by_id
        for end in wanted:
            topic = topics.get(end.topic_id)
            if topic is None or not topic.living or end.partition >= topic.partitions:
                continue
            place = (topic.bundles[end.partition], owners.get(_key(end), "") if owners else "")
            if place not in lists:
                address, broker = self._broker(*place)
                lists[place] = by_broker.setdefault(address, (broker, []))[1]
            lists[place].append(end)
        await asyncio.gather(
            *(self._ask_one(broker, ends, latest, found, owners) for broker, ends in by_broker.values())
        )

    async def _ask_one(
        self,
        broker: BrokerApi,
        ends: Sequence[EndWanted],
        latest: bool,
        found: dict[PartitionId, int],
        owners: dict[PartitionId, str],
    ) -> None:
        at = {"latest": True} if latest else {"durable": True}
        queries = [pb.OffsetQuery(topic=end.topic, partition=end.partition, **at) for end in ends]
        try:
            answer = await broker.list_offsets(pb.ListOffsetsRequest(queries=queries))
        except LedgerMQError as error:
            log.info("ends of partitions not told", error=str(error))
            return
        for end, result in zip(ends, answer.results, strict=True):
            if not result.HasField("error"):
                found[_key(end)] = result.offset
            elif result.error.owner:
                owners[_key(end)] = result.error.owner


def _key(end: EndWanted) -> PartitionId:
    return PartitionId(end.topic_id, end.partition)

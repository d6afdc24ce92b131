"""A program that takes partitions of a topic from those that have them, gives up each call while the change is being
written, and lets the partition go again, in some runs of level *exclusive*.

The broker goes on without the caller: nobody may be told of the new holder before its record is durable. Calls of other
programs end in that moment once in hundreds of seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.network import Network
from tests.simulation.world import World

NAME = "quitter"
PAUSE_S = 1.0
WRITING_S_MAX = 0.02
"""How long after its arrival a call is given up: a change waits at least as long for its segment."""


SLOW_S = 1.0
"""So long its segment may take: others write meanwhile."""


def quits(seed: int) -> bool:
    """Return whether such a program is there in this run."""
    return random.Random(f"quitter {seed}").random() < 0.3


class Quitter:
    """`owner_of(partition)`: the address of the broker that serves it now; None: none does."""

    def __init__(self, world: World, network: Network, topic: str, owner_of: Callable[[int], str | None]) -> None:
        self._world = world
        self._connector = network.connector(NAME, 10.0)
        self._topic = topic
        self._owner_of = owner_of
        self._random = random.Random(f"quitter's choices {world.seed}")
        self._arrived = asyncio.Event()

    def arrived(self, request: pb.HoldPartitionsRequest) -> None:
        """Note a call at a broker."""
        if request.name == NAME and request.partitions[0].HasField("number"):
            self._arrived.set()

    async def run(self) -> None:
        """Go on until the run heals."""
        while not self._world.healed:
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))
            partition = self._random.randrange(PARTITIONS)
            address = self._owner_of(partition)
            if address is not None:
                with suppress(LedgerMQError):
                    await self._take_and_quit(address, partition)

    async def _take_and_quit(self, address: str, partition: int) -> None:
        line, wanted = self._connector.connect(address), pb.WantedPartition(topic=self._topic, partition=partition)
        producer_id = exclusive_id(self._random.randbytes(PRODUCER_ID_BYTES))
        request = pb.HoldPartitionsRequest(producer_id=producer_id, name=NAME, partitions=[wanted])
        [seen] = (await line.hold_partitions(request)).holders
        if not seen.is_held or seen.name == NAME:  # no other program would notice
            return
        request.fences = True
        request.partitions[0].number = seen.number
        self._arrived.clear()
        call = asyncio.create_task(line.hold_partitions(request))
        arrived = asyncio.create_task(self._arrived.wait())
        await asyncio.wait({call, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        if self._world.healed:
            await call
            return
        weather = self._world.weather
        usual = weather.slow, weather.slow_s
        weather.slow, weather.slow_s = 1.0, SLOW_S
        await asyncio.sleep(self._random.uniform(0, WRITING_S_MAX))
        if call.cancel():
            self._world.coverage.saw("a call that changes a holder was given up")
        with suppress(asyncio.CancelledError, LedgerMQError):
            await call
        await asyncio.sleep(SLOW_S)
        if not self._world.healed:  # which has ended all of it
            weather.slow, weather.slow_s = usual
        left = pb.ReleasePartitionsRequest(producer_id=producer_id, partitions=[wanted])
        await line.release_partitions(left)

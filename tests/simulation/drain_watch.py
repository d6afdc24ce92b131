"""Drain a broker of a healthy cluster, and look that it takes nothing until it is undrained, in some runs of level
cluster.

drain hangs          the command does not return, or an undrained broker is not given its share
drained, and owns    a drained broker owns a bundle after the command has returned, though others are there
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from ledgermq.client.client import Client
from ledgermq.errors import LedgerMQError
from ledgermq_ledger.keys import METADATA_BUNDLE
from tests.judges.violation import Violation
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.world import World

REST_S, DRAINED_S, HANGS_S = 15.0, 15.0, 120.0
"""Before a drain all brokers have to see each other again."""


def drains(seed: int) -> bool:
    """Return whether a broker is drained in this run."""
    return random.Random(f"drain {seed}").random() < 0.3


async def drain_one(world: World, brokers: Mapping[str, ClusterBroker], client: Client) -> list[Violation]:
    await asyncio.sleep(REST_S)
    name = random.Random(f"drained broker {world.seed}").choice(sorted(brokers))
    bundles = {bundle for broker in brokers.values() for bundle in _owned(broker)} - {METADATA_BUNDLE}
    gets_some = len(bundles) >= len(brokers)  # each has one at least
    try:
        async with asyncio.timeout(HANGS_S):
            await _insist(world, client, name)
            end_s = asyncio.get_running_loop().time() + DRAINED_S
            while asyncio.get_running_loop().time() < end_s:
                if owned := _owned(brokers[name]):
                    return [Violation("drained, and owns", f"{name} has bundles {owned} while it is drained")]
                await asyncio.sleep(0.2)
            world.coverage.saw("a broker was drained")
            await client.undrain_broker(name)
            while gets_some and not _owned(brokers[name]):
                await asyncio.sleep(0.5)
    except TimeoutError:
        return [Violation("drain hangs", f"{name} has bundles {_owned(brokers[name])} after {HANGS_S:.0f} s")]
    return []


async def _insist(world: World, client: Client, name: str) -> None:
    while True:
        try:
            await client.drain_broker(name)
        except LedgerMQError as error:
            world.note("drain", f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(1.0)
        else:
            return


def _owned(broker: ClusterBroker) -> list[int]:
    return sorted(broker.broker.ownership.opened) if broker.broker is not None else []

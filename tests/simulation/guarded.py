"""What runs share whose brokers enforce access rules: settings, and the first token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.tokens import bearer, draw_token
from ledgermq_broker.settings.brokers import BrokerSettings
from tests.simulation.network import Network
from tests.simulation.plan import RunPlan
from tests.simulation.world import World

ADMIN = "admin"
PRODUCERS_MIN = 400
"""Each send of a program may be by a new producer, and a principal may bring half of these at once."""
NAPS_MAX = 0.002
"""A change waits for every broker that sleeps: with more of them hardly any is ever answered."""
Insist = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def first_token(world: World, network: Network, insist: Insist, user: str) -> str:
    """Make it as a process does that holds the credentials of the store, and return the credential. `insist`: calls
    until there is an answer.
    """
    drawn = draw_token(world.sources("the first token"))
    request = pb.CreateTokenRequest(token_id=drawn.token_id, hash=drawn.hash, user=user)
    while not network.hosts:
        await asyncio.sleep(0.1)
    host = next(iter(network.hosts.values()))
    await insist(lambda: host.process.spawn(host.service.create_token(request)))  # type: ignore[arg-type]
    return bearer(drawn.text)


def guarded(settings: BrokerSettings) -> BrokerSettings:
    """Return settings of brokers that enforce rules; ADMIN may do everything."""
    producers_max = max(PRODUCERS_MIN, settings.producer_states_max)
    return settings.model_copy(
        update={"security": "rules", "super_principals": f"user:{ADMIN}", "producer_states_max": producers_max}
    )


def rested(plan: RunPlan) -> RunPlan:
    """Return a plan in which brokers sleep so seldom that they know the newest rules."""
    return replace(plan, naps=min(plan.naps, NAPS_MAX))

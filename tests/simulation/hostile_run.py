"""A run on a whole cluster that, in a part of the seeds, has a hostile principal beside the programs of its level."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ledgermq.client.admin.access import Access
from ledgermq.client.client import Client
from ledgermq.protocol.naming.tokens import bearer
from ledgermq_broker.access.state.rules import Operation
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.guarded import ADMIN, first_token, guarded, rested
from tests.simulation.hostile import MALLORY, STAFF, HostileNetwork, Overheard, is_hostile
from tests.simulation.hostile_clients import TOPIC, Mallory
from tests.simulation.loop import SimulatedLoop

Rule = tuple[str, list[str], str]
"""(who, operations, name)"""
EVERYTHING = [operation.value for operation in Operation if operation is not Operation.CLUSTER]


class HostileRun(ClusterRun):
    hostile_writes = False
    """Whether the hostile principal may produce to the topic."""

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.overheard = Overheard(self.world) if is_hostile(seed) else None
        if self.overheard is None:
            return
        self.plan = rested(self.plan)
        self.cluster = replace(self.cluster, settings=guarded(self.cluster.settings))
        self.network = HostileNetwork(self.world, self.overheard)
        self.network.credential_of = self._credential_of
        self._tokens: dict[str, str] = {}

    def _credential_of(self, who: str) -> str:
        """Return the credential of a program: of the hostile one, else of STAFF as soon as it has one."""
        if who == MALLORY:
            return self._tokens[MALLORY]
        return self._tokens.get(STAFF) or self._tokens.get(ADMIN, "")

    async def _create_topics(self) -> None:
        if self.overheard is not None:
            self._tokens[ADMIN] = await first_token(self.world, self.network, self._insist, ADMIN)
            admin = self._plain_client("administrator")
            for rule in self._rules():
                await self._insist(lambda rule=rule: _grant(admin.access, rule))  # type: ignore[misc]
            made = {who: await self._insist(lambda who=who: _token(admin, who)) for who in (MALLORY, STAFF)}  # type: ignore[misc]
            self.overheard.credentials = {credential: who for who, credential in made.items()}
            self._tokens |= made
            await admin.close()
        await super()._create_topics()

    def _rules(self) -> list[Rule]:
        small = ["consume", "produce"] if self.hostile_writes else ["consume"]
        return [
            *((STAFF, [operation], "*") for operation in EVERYTHING),
            (STAFF, [Operation.CLUSTER.value], ""),
            (MALLORY, small, TOPIC),
            (MALLORY, ["group"], f"{MALLORY}*"),
            (MALLORY, ["transaction"], f"{MALLORY}*"),
        ]

    def _start_hostile(self) -> list[asyncio.Task[None]]:
        """Start the hostile principal, where there is one, as one more client."""
        if self.overheard is None:
            return []
        self._clients.append(
            Mallory(self.world, self.network, self.cluster, self.overheard, writes=self.hostile_writes)
        )
        return [self._clients[-1].start()]


async def _grant(access: Access, rule: Rule) -> None:
    who, operations, name = rule
    await access.grant(f"user:{who}", operations, name)


async def _token(admin: Client, who: str) -> str:
    return bearer((await admin.access.create_token(who)).token)

"""Carry out the troubles of a schedule: begin each at its time and undo it at its end; troubles of
the same object run one by one.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Callable

from tests.chaos.children import Child, Children, paused
from tests.chaos.cluster import Broker, ChaosCluster
from tests.chaos.measures import Measures
from tests.chaos.members import Members
from tests.chaos.schedule import Kind, Part, Trouble
from tests.chaos.stores import ChaosStore
from tests.chaos.workload import OwnerWatch
from tests.servers.cutting_proxy import CuttingProxy

RIVAL_S_MAX = 30.0
"""A rival that is not done by then is killed too: on a slow line with producers at work it has a
long way to go.
"""
RIVALS_LINE_DELAY_S = 0.02
"""So that a round takes long enough to be killed in its midst."""


class Hands:
    def __init__(
        self,
        cluster: ChaosCluster,
        store: ChaosStore,
        children: Children,
        members: Members,
        measures: Measures,
        owners: OwnerWatch,
        note: Callable[[str], None],
    ) -> None:
        self.late_s_max = 0.0
        self._cluster, self._store, self._children, self._members, self._measures, self._owners, self._note = (
            cluster, store, children, members, measures, owners, note,
        )  # fmt: skip
        self._locks: dict[tuple[Part, int | None], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def carry_out(self, troubles: tuple[Trouble, ...]) -> None:
        """Wait until the last one is over."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with asyncio.TaskGroup() as group:
            for trouble in troubles:
                await asyncio.sleep(max(0.0, begun_s + trouble.at_s - loop.time()))
                group.create_task(self._one(trouble, begun_s), name=str(trouble))

    async def _one(self, trouble: Trouble, begun_s: float) -> None:
        loop = asyncio.get_running_loop()
        async with self._locks[trouble.part, trouble.who]:
            late_s = loop.time() - begun_s - trouble.at_s
            self.late_s_max = max(self.late_s_max, late_s)
            self._measures.events[trouble.kind.value] += 1
            self._note(f"{trouble}" + (f" ({late_s:.1f} s late)" if late_s > 1 else ""))
            match trouble.part:
                case Part.PROCESS:
                    await self._process(trouble)
                case Part.CLIENTS | Part.LINE:
                    await self._line(trouble)
                case Part.SERVER:
                    await self._server(trouble)
                case Part.RIVAL:
                    await self._rival(trouble)
                case Part.MEMBER:
                    await self._member(trouble)

    def _hit(self, trouble: Trouble, broker: Broker) -> None:
        self._measures.hit(trouble.kind.value, self._owners.of(broker.address), asyncio.get_running_loop().time())

    async def _process(self, trouble: Trouble) -> None:
        brokers = self._cluster.brokers
        hit = brokers if trouble.who is None else [brokers[trouble.who]]
        for broker in hit:
            self._hit(trouble, broker)
        if trouble.kind in (Kind.PAUSE, Kind.PAUSE_LONG):
            await hit[0].pause(trouble.lasts_s)
            return
        await asyncio.gather(
            *(self._cluster.stop(broker) if trouble.kind is Kind.STOP else broker.kill() for broker in hit)
        )
        await asyncio.sleep(trouble.lasts_s)
        for broker in hit:
            self._cluster.start(broker)
        try:
            await self._cluster.ready(hit)
        except TimeoutError as error:
            self._note(f"  {error}; tried on")

    async def _line(self, trouble: Trouble) -> None:
        assert trouble.who is not None
        broker = self._cluster.brokers[trouble.who]
        self._hit(trouble, broker)
        lines = broker.lines if trouble.part is Part.CLIENTS else [self._store.lines[broker.name]]
        with self._cluster.store_bad([] if trouble.part is Part.CLIENTS else [broker]):
            for line in lines:
                spoil(line, trouble)
            try:
                await asyncio.sleep(trouble.lasts_s)
            finally:
                for line in lines:
                    line.restore()

    async def _server(self, trouble: Trouble) -> None:
        server = self._store.server
        assert server is not None
        for broker in self._cluster.brokers:
            self._hit(trouble, broker)
        with self._cluster.store_bad(self._cluster.brokers):
            await self._spoil_server(server, trouble)

    async def _spoil_server(self, server: Child, trouble: Trouble) -> None:
        if trouble.kind is Kind.SERVER_PAUSE:
            await paused(server, trouble.lasts_s)
            return
        if trouble.kind is Kind.SERVER_STOP:
            server.signal(signal.SIGTERM)
            try:
                await server.ended(20)
            except TimeoutError:
                await server.kill()
        else:
            await server.kill()
        await asyncio.sleep(trouble.lasts_s)
        await self._store.start()

    async def _rival(self, trouble: Trouble) -> None:
        url = await self._store.url("rival")
        if "rival" in self._store.lines:
            self._store.lines["rival"].delay_s = RIVALS_LINE_DELAY_S
        rival = self._children.spawn("rival", [*self._cluster.command, "compact", url, "--engine", "local"])
        if trouble.kind is not Kind.COMPACT:
            await asyncio.sleep(1.0 + 2.0 * trouble.amount)  # it spends the first second on imports
        if trouble.kind is Kind.COMPACT_KILL:
            self._measures.events["rival was still running when it was killed"] += rival.code is None
            await rival.kill()
            return
        if trouble.kind is Kind.COMPACT_PAUSE and rival.code is None:
            self._measures.events["rival was still running when it was paused"] += 1
            await paused(rival, trouble.lasts_s)
        await self._rival_ends(rival)

    async def _member(self, trouble: Trouble) -> None:
        assert trouble.who is not None
        member = self._members.places[trouble.who]
        if trouble.kind is Kind.MEMBER_PAUSE:
            await member.pause(trouble.lasts_s)
            return
        await (self._members.stop(member) if trouble.kind is Kind.MEMBER_STOP else member.kill())
        await asyncio.sleep(trouble.lasts_s)
        self._members.start(member)

    async def _rival_ends(self, rival: Child) -> None:
        try:
            code = await rival.ended(RIVAL_S_MAX)
        except TimeoutError:
            self._measures.events["rival was killed, because it was not done in time"] += 1
            await rival.kill()
        else:
            self._measures.told[f"a rival compaction: exit code {code}"] += 1


def spoil(line: CuttingProxy, trouble: Trouble) -> None:
    """`amount` says how bad."""
    match trouble.kind:
        case Kind.CLIENTS_CUT | Kind.STORE_CUT:
            line.cut_off()
        case Kind.CLIENTS_HELD | Kind.STORE_HELD:
            line.hold()
        case Kind.CLIENTS_SLOW:
            line.delay_s = 0.02 + 0.3 * trouble.amount
        case Kind.STORE_SLOW:
            line.delay_s = 0.05 + 1.0 * trouble.amount
        case Kind.STORE_NARROW:
            line.bytes_per_s = 20_000 + 200_000 * trouble.amount
        case Kind.STORE_FLAKY:
            line.pieces_max = 2 + random.Random(trouble.number).randrange(20)

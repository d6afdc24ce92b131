"""Rules that change under load, on brokers that are paused, cut off, killed and started, in virtual
time. The law: a call that begins after a change of rules was answered is not judged by the rules
before it, at any broker, and a stream sends no record after it.

The mutants are the same brokers with one rule of decision 45 broken. Each must break the law in
one of a few seeds; a law that no mutant breaks would not be held. `test_access_rules.py` has those
that need a broker which is cut off for exactly a lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection, Connector
from ledgermq.protocol.tokens import bearer
from ledgermq_broker.access.freshness import LEASE_S, Everywhere
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.in_process import InProcessConnection, InProcessConnector, Network
from tests.broker.access import RULES, is_refused, rule_of, token
from tests.broker.cluster import Cluster, cluster_of, frame_of, values_of
from tests.virtual_time import run_virtual

ADDRESSES = ("a:1", "b:1", "c:1")
RUN_S = 90.0
RULE = "allow user:bob produce,consume t"
CHANGES_MIN, ALLOWED_MIN, REFUSED_MIN = 10, 100, 100


class CutConnector(Connector):
    """Connections between brokers, of which some pairs are cut. A client's are never."""

    def __init__(self, network: Network, cuts: set[frozenset[str]], me: str, credential: Callable[[str], str]) -> None:
        self._network, self._cuts, self._me, self._credential = network, cuts, me, credential

    def connect(self, address: str) -> Connection:
        return CutConnection(self._network, address, self._credential, self._cuts, self._me)

    def proving(self, credential: Callable[[str], str]) -> Connector:
        return CutConnector(self._network, self._cuts, self._me, credential)


class CutConnection(InProcessConnection):
    def __init__(
        self, network: Network, address: str, credential: Callable[[str], str], cuts: set[frozenset[str]], me: str
    ) -> None:
        super().__init__(network, address, credential)
        self._cuts, self._pair = cuts, frozenset((address, me))

    def _check(self) -> None:
        if self._pair in self._cuts:
            raise Unavailable("the line is cut")

    async def ask(self, method: Any, request: Any) -> Any:
        self._check()
        answer = await super().ask(method, request)
        self._check()
        return answer

    async def _stream(self, method: Any, request: Any) -> Any:
        self._check()
        async with aclosing(super()._stream(method, request)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                self._check()
                yield answer


class CutCluster(Cluster):
    cuts: set[frozenset[str]]

    def connector(self, address: str) -> Connector:
        return CutConnector(self.network, self.cuts, address, lambda _: "")


@dataclass
class Law:
    """When the rule was surely absent: from the answer of a revocation until the next grant begins."""

    revoked_s: float = float("inf")
    changes: int = 0
    allowed: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)

    def note(self, began_s: float, what: str) -> None:
        """Note that something was let through in a call, or a record in a stream, that began then."""
        self.allowed += 1
        if began_s > self.revoked_s:
            self.broken.append(f"{what} at {began_s:.2f}, revoked at {self.revoked_s:.2f}")


async def soak(seed: int) -> Law:
    rng, law, loop = random.Random(seed), Law(), asyncio.get_running_loop()
    async with cluster_of(kind=CutCluster, **RULES, heartbeat_interval_ms=300) as cluster:
        assert isinstance(cluster, CutCluster)
        cluster.cuts = set()
        for address in ADDRESSES:
            await cluster.start(address)
        await cluster.settled()
        root, bob = (await token(cluster, "root")).text, (await token(cluster, "bob")).text
        await cluster.create("t", 4, root)
        end_s = loop.time() + RUN_S
        tasks = [
            asyncio.create_task(work)
            for work in (
                _changes(cluster, law, rng, end_s, root),
                _disturbances(cluster, rng, end_s),
                _writes(cluster, rng, end_s, root),
                *(_calls(cluster, law, rng, end_s, bob, address) for address in ADDRESSES),
                *(_streams(cluster, law, rng, end_s, bob, address) for address in ADDRESSES),
            )
        ]
        await asyncio.gather(*tasks)
        for view in cluster.views.values():
            view.resume()
    return law


async def _changes(cluster: CutCluster, law: Law, rng: random.Random, end_s: float, root: str) -> None:
    """One administrator, who repeats each change until it is answered."""
    loop, grant = asyncio.get_running_loop(), True
    while loop.time() < end_s:
        if grant:
            law.revoked_s = float("inf")
        request = (
            pb.ChangeRulesRequest(grant=[rule_of(RULE)]) if grant else pb.ChangeRulesRequest(revoke=[_rule_id(cluster)])
        )
        while loop.time() < end_s:
            address = rng.choice(cluster.network.addresses() or ["none"])
            try:
                await _line(cluster, root, address).change_rules(request)
            except LedgerMQError:
                await asyncio.sleep(0.1)
                continue
            law.changes += 1
            if not grant:
                law.revoked_s = loop.time()
            grant = not grant
            break
        await asyncio.sleep(rng.uniform(0.1, 2 * LEASE_S if rng.random() < 0.3 else 1.5))


def _rule_id(cluster: CutCluster) -> str:
    from ledgermq_broker.access.rule_path import rule_from_wire

    return rule_from_wire(rule_of(RULE)).id


async def _disturbances(cluster: CutCluster, rng: random.Random, end_s: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < end_s:
        await asyncio.sleep(rng.uniform(0.5, 4))
        address = rng.choice(ADDRESSES)
        others = [other for other in ADDRESSES if other != address]
        what = rng.choice(["cut off", "cut one", "no store", "alone", "kill", "leave"])
        if what in ("cut off", "alone"):
            cluster.cuts |= {frozenset((address, other)) for other in others}
        if what == "cut one":
            cluster.cuts.add(frozenset((address, rng.choice(others))))
        if what in ("no store", "alone"):
            cluster.views[address].pause()
        if what in ("kill", "leave") and address in cluster.brokers:
            cluster.views[address].resume()
            await cluster.stop(address, graceful=what == "leave")
        await asyncio.sleep(rng.uniform(0.2, 1.5 * LEASE_S))
        cluster.cuts.clear()
        cluster.views[address].resume()
        if address not in cluster.brokers:
            await cluster.start(address)


async def _writes(cluster: CutCluster, rng: random.Random, end_s: float, root: str) -> None:
    """Records whose values say when they were written begin."""
    loop = asyncio.get_running_loop()
    while loop.time() < end_s:
        await asyncio.sleep(0.1)
        frame = frame_of("t", rng.randrange(4), b"%.3f" % loop.time())
        for address in cluster.network.addresses():
            with suppress(LedgerMQError, TimeoutError):
                async with asyncio.timeout(1):
                    await _line(cluster, root, address).produce_once(frame)


async def _calls(cluster: CutCluster, law: Law, rng: random.Random, end_s: float, bob: str, address: str) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < end_s:
        await asyncio.sleep(rng.uniform(0.01, 0.2))
        began_s = loop.time()
        query = pb.OffsetQuery(topic="t", partition=rng.randrange(4), durable=True)
        with suppress(LedgerMQError, TimeoutError):
            async with asyncio.timeout(2):
                answer = await _line(cluster, bob, address).list_offsets(pb.ListOffsetsRequest(queries=[query]))
            if is_refused(answer):
                law.refused += 1
            elif not answer.results[0].HasField("error"):
                law.note(began_s, f"a call to {address}")


async def _streams(cluster: CutCluster, law: Law, rng: random.Random, end_s: float, bob: str, address: str) -> None:
    """Records that a stream sends after a revocation was answered break the law, even if the stream began
    before it.
    """
    loop = asyncio.get_running_loop()
    while loop.time() < end_s:
        await asyncio.sleep(0.05)
        request = pb.FetchRequest(
            partitions=[pb.FetchPartition(topic="t", partition=partition) for partition in range(4)]
        )
        ends = asyncio.timeout(rng.uniform(1, 8))
        with suppress(LedgerMQError, TimeoutError):
            async with ends, aclosing(_line(cluster, bob, address).fetch(request)) as frames:  # type: ignore[type-var]
                async for frame in frames:
                    for _ in values_of(frame)[:1]:
                        law.note(loop.time(), f"a record of a stream of {address}")


def _line(cluster: CutCluster, secret: str, address: str) -> Connection:
    return InProcessConnector(cluster.network, lambda _: bearer(secret)).connect(address)


@pytest.mark.slow
def test_no_call_passes_after_its_right_was_revoked() -> None:
    law = Law()
    for seed in range(3):
        found = run_virtual(lambda seed=seed: soak(seed))  # type: ignore[misc]
        assert found.broken == [], f"seed {seed}"
        law.changes += found.changes
        law.allowed += found.allowed
        law.refused += found.refused
    assert law.changes > CHANGES_MIN
    assert law.allowed > ALLOWED_MIN
    assert law.refused > REFUSED_MIN


async def _no_wait(self: Everywhere, offset: int) -> None:
    return None


async def _only_who_answers(self: Everywhere, name: str, heartbeat: Any, offset: int, until_s: float) -> None:
    with suppress(LedgerMQError, TimeoutError):
        async with asyncio.timeout(1):
            await self._broker(heartbeat.address).confirm_rules(pb.ConfirmRulesRequest(offset=offset))


def _keeps_decisions(self: Permissions, operation: Any, name: str, *, change: bool = False) -> str:
    found = self._kept.get((operation, name))
    if found is None or found:
        found = self._kept[(operation, name)] = self._decided(operation, name, change)
    return found


MUTANTS: dict[str, tuple[type, str, Any]] = {
    "changes-wait-for-no-broker": (Everywhere, "wait", _no_wait),
    "changes-wait-for-brokers-that-answer": (Everywhere, "_confirmed", _only_who_answers),
    "decisions-outlive-rules": (Permissions, "refusal", _keeps_decisions),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_breaks_the_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(8):
        if run_virtual(lambda seed=seed: soak(seed)).broken:  # type: ignore[misc]
            return
    raise AssertionError(f"no seed noticed {name}")

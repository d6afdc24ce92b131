"""Attack the credentials by which brokers prove their calls to each other: changed, captured and invented ones."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from ledgermq.errors import LedgerMQError, Unauthorized, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.identity.broker_identity import LIFE_MS, READS_PER_S_MAX
from ledgermq_broker.cluster.membership import Membership
from tests.broker.access import RULES
from tests.broker.cluster import Cluster, in_cluster


@pytest.mark.parametrize("change_", ["signature", "address", "session", "late", "scheme", "garbage"])
@in_cluster("a:1", "b:1", **RULES)
async def test_only_a_broker_passes_for_one(cluster: Cluster, change_: str) -> None:
    real = cluster.brokers["b:1"].credentials
    good = real.credential("a:1")
    if change_ == "signature":
        bad = good[:-8] + ("AAAA" if good[-8:-4] != "AAAA" else "BBBB") + good[-4:]
    elif change_ == "address":
        bad = real.credential("c:1")
    elif change_ == "session":
        bad = good
        await cluster.stop("b:1", graceful=True)
        await cluster.start("b:1")
        await asyncio.sleep(200)
    elif change_ == "late":
        bad = good
        await asyncio.sleep(200)
    elif change_ == "scheme":
        bad = good.replace("LedgerMQ-Broker", "Bearer")
    else:
        bad = "LedgerMQ-Broker W10=.e30="
    request = pb.ConfirmRulesRequest()
    if change_ not in ("session", "late"):
        await cluster.line("a:1", credential=good).confirm_rules(request)
    with pytest.raises(Unauthorized):
        await cluster.line("a:1", credential=bad).confirm_rules(request)


@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_what_was_taken_from_a_broker_counts_at_one_broker_and_not_for_long(cluster: Cluster) -> None:
    """A credential that another one has captured, also one with which calls were made before: at the other brokers,
    after its time, counted from when it was signed, and when its broker was started again.
    """
    request, credentials = pb.ConfirmRulesRequest(), cluster.brokers["b:1"].credentials
    taken = credentials.credential("a:1")
    await asyncio.sleep(LIFE_MS / 1000 - 20)
    for _ in range(2):
        await cluster.line("a:1", credential=taken).confirm_rules(request)
        with pytest.raises(Unauthorized, match="for another address"):
            await cluster.line("c:1", credential=taken).confirm_rules(request)
    await asyncio.sleep(21)
    with pytest.raises(Unauthorized, match="too old"):
        await cluster.line("a:1", credential=taken).confirm_rules(request)
    cluster.settings = cluster.settings.model_copy(update={"broker_id": "bee"})
    await cluster.start("d:1")
    await cluster.settled()
    taken = cluster.brokers["d:1"].credentials.credential("a:1")
    await cluster.line("a:1", credential=taken).confirm_rules(request)
    await cluster.stop("d:1", graceful=False)
    await cluster.start("d:1")
    await cluster.settled()
    await asyncio.sleep(5)
    with pytest.raises(Unauthorized, match="no broker"):
        await cluster.line("a:1", credential=taken).confirm_rules(request)
    again = cluster.brokers["d:1"].credentials.credential("a:1")
    await cluster.line("a:1", credential=again).confirm_rules(request)


@in_cluster("a:1", "b:1", **RULES)
async def test_forged_credentials_of_brokers_cost_the_store_few_reads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real = Membership.heartbeat_of

    async def heartbeat_of(self: Membership, broker: str, session: str) -> object:
        reads.append(broker)
        return await real(self, broker, session)

    monkeypatch.setattr(Membership, "heartbeat_of", heartbeat_of)
    now_ms = cluster.now_ms()
    good = cluster.brokers["b:1"].credentials.credential("a:1")

    def forged(name: str) -> str:
        body = base64.urlsafe_b64encode(json.dumps([name, "s", "a:1", now_ms]).encode()).decode()
        return f"LedgerMQ-Broker {body}.{good.rpartition('.')[2]}"

    async def refused(name: str) -> LedgerMQError:
        with pytest.raises((Unauthorized, Unavailable)) as failed:
            await cluster.line("a:1", credential=forged(name)).confirm_rules(pb.ConfirmRulesRequest())
        return failed.value

    for name in ("../cluster", "", "a/b", "x" * 65):
        assert isinstance(await refused(name), Unauthorized)
    assert not reads, "these are no names of brokers"
    for number in range(100):
        await refused(f"forged-{number}")
    assert len([name for name in reads if name.startswith("forged")]) <= 2 * READS_PER_S_MAX
    await cluster.line("a:1", credential=good).confirm_rules(pb.ConfirmRulesRequest())

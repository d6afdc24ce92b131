"""Changes of rules: in force at every broker once they are answered, and kept when brokers go."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import LIST_OFFSETS, LIST_RULES, PRODUCE_ONCE
from ledgermq.protocol.naming.tokens import bearer
from ledgermq_broker.access.freshness import LEASE_S, Everywhere, RulesInForce
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_ledger import keys
from tests.broker.access import RULES, call, change, is_refused, token
from tests.broker.cluster import Cluster, frame_of, in_cluster
from tests.waiting import until


@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_no_broker_serves_by_old_rules_once_a_change_is_answered(cluster: Cluster) -> None:
    await _revoke_beside_a_broker_that_is_cut_off(cluster)


async def _counts_what_it_has(self: RulesInForce) -> None:
    """A proof that reads nothing."""
    self._proven_until_s = asyncio.get_running_loop().time() + LEASE_S


async def _waits_for_nobody(self: Everywhere, offset: int) -> None:
    return None


MUTANTS = {
    "old-rules-judge": (RulesInForce, "check_fresh", lambda self: None),
    "proofs-read-nothing": (RulesInForce, "prove", _counts_what_it_has),
    "changes-wait-for-no-broker": (Everywhere, "wait", _waits_for_nobody),
}


@pytest.mark.parametrize("name", MUTANTS)
@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_a_broken_lease_is_noticed(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, attribute, broken = MUTANTS[name]
    monkeypatch.setattr(kind, attribute, broken)
    with pytest.raises(AssertionError, match="it serve"):
        await _revoke_beside_a_broker_that_is_cut_off(cluster)
    for view in cluster.views.values():
        view.resume()


async def _revoke_beside_a_broker_that_is_cut_off(cluster: Cluster) -> None:
    """A broker that is not reached, and that reaches nothing, holds a change up for a lease; then it
    refuses.
    """
    root = (await token(cluster, "root")).text
    await cluster.create("t", 6, root)
    [rule] = await change(cluster, grant=["allow user:bob consume t"])
    bob = (await token(cluster, "bob")).text
    loop = asyncio.get_running_loop()
    controller = await cluster.owner_of(keys.METADATA_TOPIC, 0)
    far = next(address for address in cluster.brokers if address != controller)
    partition = next(p for p in range(6) if cluster.serving("t", p) == [far])
    ends = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", partition=partition, durable=True)])
    own = (await cluster.brokers[far].door.admit(bearer(bob))).api
    assert not is_refused(await call(own, LIST_OFFSETS, ends))

    cluster.views[far].pause()
    cluster.network.stop_listening(far)  # it answers no broker any longer, but this client
    lonely = cluster.brokers[far]
    lonely._peers._connector = InProcessConnector(_Nowhere())  # type: ignore[assignment]
    lonely._peers._connections.clear()
    assert lonely.metadata._following is not None
    lonely.metadata._following.cancel()
    began_s = loop.time()
    changing = asyncio.create_task(
        cluster.brokers[controller].service.change_rules(pb.ChangeRulesRequest(revoke=[rule]))
    )
    served_s = began_s
    while not changing.done():
        answer = await call(own, LIST_OFFSETS, ends)
        if not isinstance(answer, LedgerMQError) and not is_refused(answer):
            served_s = loop.time()
        await asyncio.sleep(0.05)
    assert (await changing).revoked == [rule]
    assert served_s - began_s > LEASE_S / 2, "it served by the rules that it could not know to be old"
    assert loop.time() - began_s < LEASE_S * 1.1
    answer = await call(own, LIST_OFFSETS, ends)
    assert isinstance(answer, Unavailable), f"it serves by old rules: {answer}"
    cluster.views[far].resume()


class _Nowhere:
    """A network in which nobody answers."""

    async def admitted(self, address: str, credential: str, client_id: str) -> object:
        raise Unavailable(f"{address} refuses the connection")

    def at(self, address: str) -> object:
        raise Unavailable(f"{address} refuses the connection")


@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_changes_are_fast_while_all_brokers_answer(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    bob = (await token(cluster, "bob")).text
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    for _ in range(10):
        began_s = loop.time()
        [rule] = await change(cluster, grant=["allow user:bob produce t"])
        assert loop.time() - began_s < 1.0
        for address in cluster.brokers:
            assert not is_refused(await call(cluster.line(address, bob), PRODUCE_ONCE, frame_of("t", 0, b"x")))
        await change(cluster, revoke=[rule])
        for address in cluster.brokers:
            assert is_refused(await call(cluster.line(address, bob), PRODUCE_ONCE, frame_of("t", 0, b"x")))


@in_cluster("a:1", "b:1", **RULES)
async def test_rules_outlive_brokers(cluster: Cluster) -> None:
    bob, rule = (await token(cluster, "bob")).text, "allow user:bob describe t*"
    ids = await change(cluster, grant=[rule])
    assert await change(cluster, grant=[rule]) == ids
    for address in ("a:1", "b:1"):
        await cluster.stop(address, graceful=address == "a:1")
    await cluster.start("c:1")
    await cluster.settled()
    await until(lambda: _can_test(cluster, bob))
    answer = await cluster.line("c:1", bob).test_rules(pb.TestRulesRequest(operation="describe", name="tea"))
    assert (answer.allowed, answer.rule_id, answer.principal) == (True, ids[0], "user:bob")


async def _can_test(cluster: Cluster, secret: str) -> bool:
    try:
        await cluster.line("c:1", secret).test_rules(pb.TestRulesRequest(operation="describe", name="tea"))
    except Unavailable:
        return False
    return True


@in_cluster("a:1", **RULES)
async def test_super_principals_change_while_a_broker_runs(cluster: Cluster) -> None:
    broker, line = cluster.brokers["a:1"], cluster.line("a:1", (await token(cluster, "root")).text)
    assert not is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))
    broker.apply(cluster.settings.model_copy(update={"super_principals": "user:other"}))
    assert is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))
    broker.apply(cluster.settings)
    assert not is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))

"""Which brokers enforce rules: by their settings, by what the root holds, beside brokers that do not."""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidConfig, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import LIST_RULES
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.records import rule_key
from ledgermq_broker.cluster.heartbeat import RULES as RULES_FEATURE
from ledgermq_broker.cluster.heartbeat import Heartbeat, encode_heartbeat
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger import keys
from tests.broker.access import RULES, call, change, client_with, is_refused, token
from tests.broker.cluster import FAST, Cluster, in_cluster
from tests.waiting import until


@in_cluster("a:1", **RULES)
async def test_a_rule_of_a_later_release_stops_everybody_but_super_principals(cluster: Cluster) -> None:
    await change(cluster, grant=["allow user:bob describe *"])
    bob, root = (await token(cluster, "bob")).text, (await token(cluster, "root")).text
    later = fmt.RuleRecord(version=2).SerializeToString()
    broker = cluster.brokers["a:1"]
    await broker.controller.put_rules(lambda catalog: [(rule_key("ffffffffffffffff"), later)])
    broker.rules.catalog_changed()
    answer = await cluster.line("a:1", bob).describe_topics(pb.DescribeTopicsRequest(topics=["t"]))
    assert is_refused(answer)
    listed = await cluster.line("a:1", root).list_rules(pb.ListRulesRequest())
    assert "version 2" in listed.rules[-1].trouble
    await cluster.line("a:1", root).change_rules(pb.ChangeRulesRequest(revoke=["ffffffffffffffff"]))
    assert not is_refused(await cluster.line("a:1", bob).test_rules(pb.TestRulesRequest(operation="describe")))


OLD = Heartbeat("old", "old:1", 1, "s", release="0.1.0", features=())


@in_cluster(**RULES)
async def test_a_broker_does_not_enforce_beside_one_that_ignores_rules(cluster: Cluster) -> None:
    """It would refuse what the other one lets through."""
    await cluster.store.put(keys.broker("old"), encode_heartbeat(OLD))
    with pytest.raises(InvalidConfig, match=r"old:1.*0\.1\.0"):
        await cluster.start("a:1")
    assert [info.key async for info in cluster.store.list(keys.BROKERS)] == [keys.broker("old")]
    await cluster.store.delete([keys.broker("old")])
    await cluster.start("a:1")
    await cluster.settled()
    cluster.network.listen(OLD.address, cluster.brokers["a:1"].service)  # it lives
    await cluster.store.put(keys.broker("old"), encode_heartbeat(OLD))
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(RULES_FEATURE)))
    with pytest.raises(Unavailable, match="rules need every broker"):
        await change(cluster, grant=["allow * describe *"])
    assert any("does not enforce" in alarm for alarm in cluster.brokers["a:1"].membership.alarms())


@in_cluster("a:1")
async def test_brokers_with_and_without_rules_make_one_cluster(cluster: Cluster) -> None:
    """As while an operator switches the rules on, broker by broker."""
    cluster.settings = load_settings(None, **(FAST | RULES))
    await cluster.start("b:1")
    await cluster.settled()
    await cluster.create("t", 4)
    assert not cluster.brokers["a:1"].rules.enforced
    async with client_with(cluster, (await token(cluster, "root")).text) as client, client.producer() as producer:
        for number in range(20):
            await producer.send("t", b"x", key=str(number))
    assert any("a:1 does not enforce" in alarm for alarm in cluster.brokers["b:1"].membership.alarms())


@in_cluster("a:1", **RULES)
async def test_a_broker_that_is_not_told_does_as_the_others(cluster: Cluster) -> None:
    """As the embedded broker of a command, whose port would let every program of the machine in."""
    for security, enforced in (("auto", True), ("open", False)):
        cluster.settings = load_settings(None, **(FAST | {"security": security}))
        broker = await cluster.start("b:1")
        assert broker.rules.enforced == enforced
        assert broker.door.closed == enforced
        await cluster.stop("b:1")
    await cluster.stop("a:1")
    cluster.settings = load_settings(None, **FAST)
    assert not (await cluster.start("c:1")).rules.enforced, "the root holds neither rules nor tokens"


@pytest.mark.parametrize("holds", ["a rule", "a token", "a rule that cannot be read"])
@in_cluster("a:1", **RULES)
async def test_a_root_that_holds_rules_or_tokens_is_not_opened_by_a_start_without_settings(
    cluster: Cluster, holds: str
) -> None:
    [broker] = cluster.brokers.values()
    if holds == "a token":
        await token(cluster, "root")
    elif holds == "a rule":
        await change(cluster, grant=["allow user:shop consume orders"])
    else:
        await broker.controller.put_rules(lambda _: [(rule_key("0123456789abcdef"), b"of a later release")])
    await cluster.stop("a:1")
    for security, enforced in (("auto", True), ("open", False), ("auto", True)):
        cluster.settings = load_settings(None, **(FAST | {"security": security}))
        await cluster.start("b:1")
        answer = await call(cluster.line("b:1"), LIST_RULES, pb.ListRulesRequest())
        assert is_refused(answer) == enforced, security
        await cluster.stop("b:1")

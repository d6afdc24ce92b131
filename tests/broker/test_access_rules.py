"""Rules at work in a cluster: clients with tokens, changes, what streams notice, brokers among
themselves.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    Unauthenticated,
    Unauthorized,
    Unavailable,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.methods import LIST_OFFSETS, LIST_RULES, PRODUCE_ONCE
from ledgermq.protocol.status import error_from_proto
from ledgermq.protocol.tokens import bearer, draw_token
from ledgermq_broker.access.freshness import LEASE_S, Everywhere, RulesInForce
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.records import rule_key
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.access.wrappers.authorized import AuthorizedService
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.heartbeat import RULES as RULES_FEATURE
from ledgermq_broker.cluster.heartbeat import Heartbeat, encode_heartbeat
from ledgermq_broker.paths.find_path import FindPath
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger import keys
from ledgermq_ledger.topics.catalog import Topic
from tests.broker.access import RULES, TOKENS, call, change, is_refused, token
from tests.broker.cluster import FAST, Cluster, fetch_of, frame_of, in_cluster, values_of
from tests.virtual_time import virtual_sources
from tests.waiting import until


@asynccontextmanager
async def client_with(cluster: Cluster, secret: str) -> AsyncIterator[ledgermq.Client]:
    connector = InProcessConnector(cluster.network, lambda address: bearer(secret) if secret else "")
    settings = ClientSettings(timeout_s=30, attempt_timeout_s=5)
    sources = virtual_sources(next(cluster.client_seeds))
    async with ledgermq.Client(connector, list(cluster.brokers), settings, sources) as client:
        yield client


@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_a_client_works_with_the_rules_that_it_has(cluster: Cluster) -> None:
    """Produce, consume in a group, transactions and timed messages, over three brokers that need each
    other's internal calls for it.
    """
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("orders", 4)
        await root.create_topic("secret", 4)
        await root.access.grant("user:shop", "produce,consume", "orders")
        await root.access.grant("user:shop", "group", "billing")
        await root.access.grant("user:shop", "transaction", "pay-*")
    async with client_with(cluster, (await token(cluster, "shop")).text) as client:
        assert [topic.name for topic in await client.list_topics()] == ["orders"]
        async with client.producer() as producer:
            for number in range(40):
                await producer.send("orders", str(number), key=str(number))
        async with client.consumer("orders", group="billing", start="earliest") as consumer:
            got = [await anext(consumer) for _ in range(40)]
            assert {message.value for message in got} == {str(number).encode() for number in range(40)}
        async with client.transactions("pay-1") as transactions, transactions.begin() as transaction:
            await transaction.send("orders", b"paid")
        await until(lambda: _has(client, "orders", b"paid"))
        with pytest.raises(Unauthorized):
            await client.describe_topic("secret")
        with pytest.raises(Unauthorized):
            await client.create_topic("mine")
        async with client.producer() as producer:
            with pytest.raises(Unauthorized):
                await producer.send("secret", b"x")
            await producer.send("orders", b"the producer goes on")


@in_cluster("a:1", "b:1", **RULES)
async def test_queues_ask_for_the_group_and_for_each_topic(cluster: Cluster) -> None:
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        for name in ("orders", "secret"):
            await root.create_topic(name, 1)
        async with root.producer() as producer:
            await producer.send("orders", b"1")
            await producer.send("secret", b"2")
        await root.access.grant("user:shop", "consume,describe", "orders")
        await root.access.grant("user:shop", "describe", "secret")
        await root.access.grant("user:shop", "group", "hands")
        async with (
            root.queue("secret", group="others") as others,
            client_with(cluster, (await token(cluster, "shop")).text) as client,
        ):
            [theirs] = await others.fetch(timeout=5)
            async with client.queue("orders", group="hands") as queue:
                [message] = await queue.fetch(timeout=5)
                assert message.value == b"1"
                assert await message.ack()
            async with client.queue("secret", group="hands") as queue:
                with pytest.raises(Unauthorized):
                    await queue.fetch(timeout=5)
            async with client.queue("orders", group="others") as queue:
                with pytest.raises(Unauthorized):
                    await queue.fetch(timeout=5)
            assert [found.group for found in await client.queues.list()] == ["hands"]
            with pytest.raises(Unauthorized):
                await client.queues.reset("others", "secret", 0)
            assert await theirs.ack(), "its lease has not ended"


async def _has(client: ledgermq.Client, topic: str, value: bytes) -> bool:
    async with client.consumer(topic, start="earliest", until_end=True) as consumer:
        return value in [message.value async for message in consumer]


@in_cluster("a:1", **RULES)
async def test_a_fetch_stream_loses_the_partition_that_was_forbidden_and_keeps_the_other(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    for name in ("one", "two"):
        await cluster.create(name, 1, root)
    [first, _] = await change(cluster, grant=["allow user:bob consume one", "allow user:bob consume two"])
    line = cluster.line("a:1", (await token(cluster, "bob")).text)
    request = pb.FetchRequest(partitions=[*fetch_of("one", 0).partitions, *fetch_of("two", 0).partitions])
    writer = cluster.line("a:1", root)
    await writer.produce_once(frame_of("one", 0, b"a"))
    await writer.produce_once(frame_of("two", 0, b"b"))
    seen: list[bytes] = []
    refused: list[str] = []

    async def read() -> None:
        async with aclosing(line.fetch(request)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                seen.extend(values_of(frame))
                refused.extend(part.topic for part in frame.header.partitions if part.HasField("error"))

    task = asyncio.create_task(read())
    await until(lambda: len(seen) == 2)
    await change(cluster, revoke=[first])
    await writer.produce_once(frame_of("one", 0, b"hidden"))
    await until(lambda: refused == ["one"])
    await writer.produce_once(frame_of("two", 0, b"c"))
    await until(lambda: len(seen) == 3)
    assert sorted(seen) == [b"a", b"b", b"c"]
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


@in_cluster("a:1", **RULES)
async def test_a_stream_ends_with_its_token(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await change(cluster, grant=["allow * consume t"])
    for revoke in (True, False):
        bob = await token(cluster, "bob", expires_ms=0 if revoke else cluster.now_ms() + 2000)
        frames = cluster.line("a:1", bob.text).fetch(fetch_of("t", 0))
        await anext(frames)
        if revoke:
            await cluster.line("a:1", root).revoke_token(pb.RevokeTokenRequest(token_id=bob.token_id))
        else:
            await asyncio.sleep(3)
        await cluster.line("a:1", root).produce_once(frame_of("t", 0, b"hidden"))
        with pytest.raises(Unauthenticated, match="revoked" if revoke else "expired"):
            await anext(frames)


@in_cluster("a:1", **RULES)
async def test_streams_are_those_of_the_present_principal(cluster: Cluster) -> None:
    """A token file is replaced by the token of another principal while a program sends and reads."""
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("t", 1)
        await root.access.grant("user:alice", "produce,consume", "t")
        present = [(await token(cluster, "alice")).text]
        connector = InProcessConnector(cluster.network, lambda address: bearer(present[-1]))
        settings, sources = ClientSettings(timeout_s=30, attempt_timeout_s=5), virtual_sources(4712)
        async with (
            ledgermq.Client(connector, list(cluster.brokers), settings, sources) as client,
            client.producer(delivery_timeout_s=20) as producer,
            client.consumer("t", request_timeout_s=5) as consumer,
        ):
            for number in range(3):
                await producer.send("t", b"%d" % number)
                assert (await anext(consumer)).value == b"%d" % number
            present.append((await token(cluster, "bob")).text)
            with pytest.raises(Unauthorized):
                await producer.send("t", b"bob's")
            async with root.producer() as others:
                await others.send("t", b"3")
            async with root.producer() as others:
                with pytest.raises(Unauthorized):
                    await _read_on(consumer, others)
            present.append(present[0])
            assert (await producer.send("t", b"alice's")).offset > 3
        values = await cluster_values(cluster, (await token(cluster, "root")).text, "t")
        assert b"bob's" not in values


async def _read_on(consumer: ledgermq.Consumer, others: ledgermq.Producer) -> None:
    """Read what others send: an answer may have been on its way."""
    for _ in range(10):
        await anext(consumer)
        await others.send("t", b"secret")


@in_cluster("a:1", **RULES)
async def test_an_unknown_caller_is_told_from_a_forbidden_one(cluster: Cluster) -> None:
    root, bob = (await token(cluster, "root")).text, (await token(cluster, "bob")).text
    await cluster.create("t", 1, root)
    late = await token(cluster, "late", expires_ms=cluster.now_ms() + 1000)
    await asyncio.sleep(2)
    for given in ("", "lmq_wrong", late.text, "a.b.c"):
        with pytest.raises(Unauthenticated):
            await cluster.line("a:1", given).list_rules(pb.ListRulesRequest())
    with pytest.raises(Unauthenticated):
        await cluster.line("a:1", credential="Basic Ym9iOmJvYg==").list_rules(pb.ListRulesRequest())
    with pytest.raises(Unauthorized) as forbidden:
        await cluster.line("a:1", bob).list_rules(pb.ListRulesRequest())
    assert type(forbidden.value) is Unauthorized


@in_cluster("a:1", **RULES)
async def test_batches_of_one_frame_are_judged_one_by_one(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    for name in ("one", "two"):
        await cluster.create(name, 1, root)
    await change(cluster, grant=["allow user:bob produce two"])
    frames = [frame_of("one", 0, b"refused"), frame_of("two", 0, b"stored")]
    both = replace(frames[0], payload=[*frames[0].payload, *frames[1].payload])
    both.header.batches.extend(frames[1].header.batches)
    line = cluster.line("a:1", (await token(cluster, "bob")).text)

    async def requests() -> AsyncIterator[object]:
        for frame in (both, frame_of("one", 0, b"refused"), frame_of("two", 0, b"stored, too")):
            yield frame

    async with aclosing(line.produce(requests())) as answers:  # type: ignore[arg-type,type-var]
        codes = [[result.error.code for result in answer.results] async for answer in answers]
    assert codes == [["UNAUTHORIZED", ""], ["UNAUTHORIZED"], [""]]
    assert await cluster_values(cluster, root, "two") == [b"stored", b"stored, too"]
    assert await cluster_values(cluster, root, "one") == []


async def cluster_values(cluster: Cluster, secret: str, topic: str) -> list[bytes]:
    return values_of(await cluster.line("a:1", secret).fetch_once(fetch_of(topic, 0)))


@in_cluster("a:1", **RULES)
async def test_the_unknown_and_the_forbidden_look_alike(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("orders", 1, root)
    bob = cluster.line("a:1", (await token(cluster, "bob")).text)
    await change(cluster, grant=["allow user:bob consume order"])

    async def text(method: str, name: str) -> str:
        request = {"fetch_once": fetch_of(name, 0), "delete_topic": pb.DeleteTopicRequest(name=name)}[method]
        try:
            answer = await getattr(bob, method)(request)
        except LedgerMQError as error:
            return error.message.replace(name, "NAME")
        return str(error_from_proto(answer.header.partitions[0].error).message).replace(name, "NAME")

    for method in ("fetch_once", "delete_topic"):
        assert await text(method, "orders") == await text(method, "absent")
    with pytest.raises(UnknownTopic) as hinted:  # "did you mean 'orders'" would tell that orders exists
        raise error_from_proto((await bob.fetch_once(fetch_of("order", 0))).header.partitions[0].error)
    assert "orders" not in hinted.value.message


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
async def test_super_principals_change_while_a_broker_runs(cluster: Cluster) -> None:
    broker, line = cluster.brokers["a:1"], cluster.line("a:1", (await token(cluster, "root")).text)
    assert not is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))
    broker.apply(cluster.settings.model_copy(update={"super_principals": "user:other"}))
    assert is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))
    broker.apply(cluster.settings)
    assert not is_refused(await call(line, LIST_RULES, pb.ListRulesRequest()))


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


class _AskedFor:
    """A broker's service that notes which fetches reach it."""

    def __init__(self, service: BrokerApi) -> None:
        self._service = service
        self.fetches: list[pb.FetchRequest] = []

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        self.fetches.append(request)
        return self._service.fetch(request)


@in_cluster("a:1", **RULES)
async def test_a_stream_gets_no_locations_once_another_topic_is_denied(cluster: Cluster) -> None:
    """Segments hold records of all topics, so a stream that was opened by one who may read everything does
    not go on to show where they are.
    """
    root = (await token(cluster, "root")).text
    for name in ("orders", "secret"):
        await cluster.create(name, 1, root)
    await change(cluster, grant=["allow user:bob consume *"])
    broker = cluster.brokers["a:1"]
    inner = _AskedFor(broker.service)
    bob = Permissions(Principal("user:bob"), broker.rules, broker.context.sources)
    frames = AuthorizedService(lambda: inner, bob).fetch(fetch_of("orders", 0, direct=True))  # type: ignore[arg-type]
    await anext(frames)
    await change(cluster, grant=["deny user:bob consume secret"])
    await cluster.line("a:1", root).produce_once(frame_of("orders", 0, b"mine"))
    assert values_of(await anext(frames)) == [b"mine"]
    assert [asked.direct for asked in inner.fetches] == [True, False]
    await frames.aclose()  # type: ignore[attr-defined]


@in_cluster("a:1", **RULES)
async def test_only_the_receiver_holds_an_answer(cluster: Cluster) -> None:
    """Bytes of answers are counted until they are sent, so nothing in front of gRPC keeps them for longer."""
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await change(cluster, grant=["allow user:bob consume t"])
    admitted = await cluster.brokers["a:1"].door.admit(bearer((await token(cluster, "bob")).text))
    frames = admitted.api.fetch(fetch_of("t", 0))
    frame = await anext(frames)
    assert sys.getrefcount(frame) == 2, "the variable here, and the argument"
    await frames.aclose()  # type: ignore[attr-defined]


@in_cluster("a:1", **RULES)
async def test_a_commit_acts_on_the_topic_that_was_judged(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    ids = {name: (await cluster.create(name, 1, root)).topic_id for name in ("orders", "secret")}
    await change(
        cluster,
        grant=["allow user:bob consume *", "deny user:bob consume secret", "allow user:bob group g"],
    )
    line = cluster.line("a:1", (await token(cluster, "bob")).text)
    for name in ("", "orders"):
        commit = pb.OffsetCommit(topic=name, topic_id=ids["secret"], partition=0, counter=1, offset=0)
        committed = await line.commit_offsets(pb.CommitOffsetsRequest(group="g", commits=[commit]))
        reset = pb.OffsetReset(topic=name, topic_id=ids["secret"], partition=0, offset=0)
        changed = await line.reset_offsets(pb.ResetOffsetsRequest(group="g", resets=[reset]))
        assert [committed.results[0].error.code, changed.results[0].error.code] == ["UNKNOWN_TOPIC"] * 2, name


@in_cluster("a:1", **RULES)
async def test_look_ups_of_one_principal_leave_room_for_those_of_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is under way stands still here; the other look-ups are whole ones."""
    going_on, began = asyncio.Event(), asyncio.Event()
    search = FindPath._search

    async def slowly(self: FindPath, owner: BundleOwner, topic: Topic, *rest: Any) -> Any:
        if not began.is_set():
            began.set()
            await going_on.wait()
        return await search(self, owner, topic, *rest)

    monkeypatch.setattr(FindPath, "_search", slowly)
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("slow", 1)
        async with root.producer() as producer:
            await producer.send("slow", b"value", key=b"key")
    await change(cluster, grant=["allow * describe,consume *"])
    ann, again, bob = [cluster.line("a:1", (await token(cluster, user)).text) for user in ("ann", "ann", "bob")]
    request = pb.FindMessagesRequest(topic="slow", partition=0, key=b"key", end=1, max_messages=1)
    first = asyncio.create_task(ann.find_messages(request))
    await began.wait()
    with pytest.raises(ResourceExhausted, match="user:ann has a look-up under way at this broker") as refused:
        await again.find_messages(request)
    assert refused.value.retry_after_ms
    found = await bob.find_messages(request)
    assert [message.offset for message in found.messages] == [0]
    going_on.set()
    assert [message.offset for message in (await first).messages] == [0]
    assert (await again.find_messages(request)).messages
    began.clear()
    going_on.clear()
    left = asyncio.create_task(ann.find_messages(request))
    await began.wait()
    left.cancel()
    await asyncio.wait({left})
    assert (await again.find_messages(request)).messages, "a caller that went away does not hold the turn"


@in_cluster("a:1", **RULES)
async def test_a_token_that_exists_is_not_given_to_another_user(cluster: Cluster) -> None:
    """An attempt of the same call may be repeated; a token never speaks for two users."""
    service = next(iter(cluster.brokers.values())).service
    drawn = draw_token(TOKENS)
    fields: dict[str, Any] = {"token_id": drawn.token_id, "hash": drawn.hash, "user": "ann", "groups": ["team"]}
    for _ in range(2):
        await service.create_token(pb.CreateTokenRequest(**fields))
    later_ms = cluster.now_ms() + 10_000
    for other in ({"user": "cat"}, {"groups": ["staff"]}, {"expires_ms": later_ms}, {"hash": bytes(32)}):
        with pytest.raises(InvalidRequest, match="there is another token with the id"):
            await service.create_token(pb.CreateTokenRequest(**(fields | other)))
    listed = await service.list_tokens(pb.ListTokensRequest())
    assert [(found.user, list(found.groups)) for found in listed.tokens if found.token_id == drawn.token_id] == [
        ("ann", ["team"])
    ]

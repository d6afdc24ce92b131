"""Topics that are deleted together with the cuts that have them, so that nothing keeps their records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.cli.admin import topic as commands
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call
from ledgermq_broker.access.wrappers import authorized
from ledgermq_broker.cluster.heartbeat import CUT_DELETIONS
from ledgermq_broker.cuts.taking import Places, Taking
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.topic_path import TopicPath
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cuts import names
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.topic import Topic
from tests.broker.access import RULES, client_with, token
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.lost_answers import lose_the_answer
from tests.virtual_time import virtual_sources
from tests.waiting import until


async def cuts_of(client: ledgermq.Client) -> list[str]:
    return sorted(cut.name for cut in await client.cuts.list() if cut.state == "taken")


async def has_files(cluster: Cluster) -> bool:
    """Whether there are Parquet files of a topic of users, those that were handed over to cuts included."""
    return bool([info for prefix in (keys.PARQUET, names.HELD) async for info in cluster.store.list(prefix)])


async def none_freed(self: Controller) -> bool:
    """Names of removed topics stay in use for long where a bundle cannot be reached."""
    return False


@in_cluster("a:1", "b:1")
async def test_cuts_that_have_the_topic_go_with_it_and_no_others(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("other", 1)
        await client.cuts.take("before")
        await client.create_topic("t", 2, {"topic.delete.grace.ms": 3_600_000})
        for partition in range(2):
            await cluster.produce("t", partition, b"secret")
        await client.cuts.take("living")
        sources = virtual_sources(3)
        await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))
        await client.delete_topic("t")
        await client.cuts.take("trashed")
        assert await has_files(cluster)
        assert await client.topics.delete_with_cuts("t") == ["living", "trashed"]
        await client.cuts.take("after")
        assert await cuts_of(client) == ["after", "before"]

        async def are_gone() -> bool:
            return not await has_files(cluster)

        await until(are_gone, 20_000, every_s=60)
        assert await cuts_of(client) == ["after", "before"]
        with pytest.raises(errors.UnknownTopic):
            await client.topics.delete_with_cuts("t")
        assert await cuts_of(client) == ["after", "before"]


@in_cluster("a:1", "b:1")
async def test_a_cut_that_is_being_taken_is_dropped_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    original, dropped = Taking._pin, list[str]()
    async with cluster.client(timeout_s=10) as client:
        await client.create_topic("t", 2)

        async def pin(self: Taking, cut: int, bundles: list[int]) -> dict[int, int]:
            if not dropped:
                dropped.extend(await client.topics.delete_with_cuts("t"))
            return await original(self, cut, bundles)

        monkeypatch.setattr(Taking, "_pin", pin)
        await client.cuts.take("c")  # the second attempt
        assert dropped == ["c"]
        assert await cuts_of(client) == ["c"]
        with pytest.raises(errors.UnknownTopic, match="cut 'c' has no topic 't'"):
            await client.cuts.files("c", "t")


@in_cluster("a:1", "b:1")
async def test_a_cut_that_had_begun_before_the_topic_was_created_is_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place in bundle 0 is taken last, so the cut has the topic, whose id is above the cut's."""
    original = Taking._place_all
    async with cluster.client() as client:
        await client.create_topic("other", 1)
        await client.cuts.take("kept")
        await client.cuts.take("before")

        async def place_all(self: Taking, cut: int, bundles: Sequence[int]) -> Places:
            monkeypatch.setattr(Taking, "_place_all", original)
            await client.create_topic("t", 1)
            await cluster.produce("t", 0, b"secret")
            return await original(self, cut, bundles)

        monkeypatch.setattr(Taking, "_place_all", place_all)
        cut = await client.cuts.take("c")
        assert cut.id < (await client.describe_topic("t")).topic_id
        assert [each.end for each in await client.cuts.files("c", "t")] == [1]
        await client.cuts.keep("kept", 9e5)  # so its newest record is above the topic
        assert await client.topics.delete_with_cuts("t") == ["c", "kept"]
        assert await cuts_of(client) == ["before"]


@in_cluster("a:1", "b:1")
async def test_a_pending_cut_that_is_older_than_the_topic_is_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, dropped = Taking._pin, list[str]()
    async with cluster.client(timeout_s=10) as client:

        async def pin(self: Taking, cut: int, bundles: list[int]) -> dict[int, int]:
            if not dropped:
                await client.create_topic("t", 1)
                dropped.extend(await client.topics.delete_with_cuts("t") or ["none"])
            return await original(self, cut, bundles)

        monkeypatch.setattr(Taking, "_pin", pin)
        await client.cuts.take("c")  # the second attempt
        assert dropped == ["c"]


@in_cluster("a:1")
async def test_all_or_nothing_is_dropped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, {"legal.hold": True})
        await client.cuts.take("c")
        with pytest.raises(errors.LegalHold):
            await client.topics.delete_with_cuts("t")
        with pytest.raises(errors.InvalidRequest, match="set `now`, too"):
            await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="t", with_cuts=True)))
        with pytest.raises(errors.UnknownTopic):
            await client.topics.delete_with_cuts("nothing")
        assert await cuts_of(client) == ["c"]
        await client.alter_topic("t", settings={"legal.hold": False})
        original = TopicPath.delete_topic

        async def earlier(self: TopicPath, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
            return await original(self, pb.DeleteTopicRequest(name=request.name, now=request.now))

        monkeypatch.setattr(TopicPath, "delete_topic", earlier)
        await cluster.stop("a:1")
        await cluster.start("a:1")  # it finds its methods when it starts
        with pytest.raises(errors.InvalidRequest, match="drops no cuts with it: see `ledgermq cut list`"):
            await client.topics.delete_with_cuts("t")
        assert await cuts_of(client) == ["c"]


@pytest.mark.parametrize("other_deletes", [False, True])
@in_cluster("a:1", "b:1")
async def test_a_repeated_call_drops_the_cuts_of_a_topic_that_is_removed_already(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, other_deletes: bool
) -> None:
    """The answer was lost, or another program has deleted the topic without its cuts just before."""
    async with cluster.client() as client, cluster.client() as other:
        await client.create_topic("t", 1)
        await client.cuts.take("c")
        monkeypatch.setattr(Controller, "_free_names", none_freed)

        async def delete() -> None:
            if other_deletes:
                await other.delete_topic("t", now=True)
                assert await cuts_of(other) == ["c"]

        lose_the_answer(monkeypatch, Controller, "delete_topic", stored=not other_deletes, then=delete)
        assert await client.topics.delete_with_cuts("t") == (["c"] if other_deletes else [])
        assert await cuts_of(client) == []


@pytest.mark.parametrize("is_lost", [False, True])
@in_cluster("a:1", "b:1")
async def test_the_command_never_says_that_no_cuts_were_dropped_by_a_call_whose_answer_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_lost: bool
) -> None:
    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[ledgermq.Client]:
        async with cluster.client() as client:
            yield client

    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await client.cuts.take("c")
    monkeypatch.setattr(commands, "connected", connected)
    monkeypatch.setattr(Controller, "_free_names", none_freed)
    if is_lost:
        lose_the_answer(monkeypatch, Controller, "delete_topic", stored=True)
    await commands.delete("t", now=True, with_cuts=True, yes=True)
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"Topic t is deleted, and no cut has it.{'' if is_lost else ' Dropped now: c.'}"


@pytest.mark.parametrize("is_free", [False, True])
@in_cluster("a:1")
async def test_without_an_answer_about_the_cuts_the_call_does_not_succeed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    """A controller of an earlier release has deleted the topic, or it is gone when the call comes."""
    original = Controller.delete_topic
    async with cluster.client() as client, cluster.client() as other:
        await client.create_topic("t", 1)
        await client.cuts.take("c")
        if not is_free:
            monkeypatch.setattr(Controller, "_free_names", none_freed)

        async def earlier(self: Controller, name: str, topic_id: int = 0, **_: Any) -> Topic:
            return await original(self, name, topic_id, at_once=True)

        async def is_gone() -> bool:
            return "t" not in cluster.brokers["a:1"].metadata.catalog.topics_by_name

        async def wait() -> None:
            if is_free:
                await until(is_gone, 60)

        monkeypatch.setattr(Controller, "delete_topic", earlier)
        lose_the_answer(monkeypatch, Controller, "delete_topic", stored=True, then=wait)
        with pytest.raises(errors.OutcomeUnknown, match=r"'t' is deleted; whether the cuts .* see `ledgermq"):
            await client.topics.delete_with_cuts("t")
        assert await cuts_of(other) == ["c"]


@in_cluster("a:1", **RULES)
async def test_it_needs_the_right_to_drop_cuts(cluster: Cluster) -> None:
    root, bob = [await token(cluster, name) for name in ("root", "bob")]
    async with client_with(cluster, root.text) as operator, client_with(cluster, bob.text) as client:
        await operator.create_topic("t", 1)
        await operator.access.grant("user:bob", "delete", "t")
        await operator.access.grant("user:bob", "describe", "t")
        await operator.cuts.take("c")
        with pytest.raises(errors.Unauthorized, match="cluster"):
            await client.topics.delete_with_cuts("t")
        assert [topic.name for topic in await operator.list_topics()] == ["t"]
        assert await cuts_of(operator) == ["c"]
        await client.delete_topic("t", now=True)
        assert await cuts_of(operator) == ["c"]


@in_cluster("a:1", "b:1", **RULES)
async def test_no_cut_is_dropped_while_a_broker_of_an_earlier_release_is_present(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the right `delete` alone, and passes the field that it does not know on, by its own connection."""
    root, bob = [await token(cluster, name) for name in ("root", "bob")]

    def controller() -> str:
        return next(at for at, each in cluster.brokers.items() if keys.METADATA_BUNDLE in each.ownership.opened)

    async def earlier(may: Permissions, request: pb.DeleteTopicRequest, call: Call) -> Any:
        if request.forwarded:  # to the controller, which is of this release
            return await guard(may, request, call)
        may.changes(Operation.DELETE, request.name)
        return await call(request)

    guard: Any = authorized.GUARDS["delete_topic"]
    monkeypatch.setitem(authorized.GUARDS, "delete_topic", earlier)
    async with client_with(cluster, root.text) as operator:
        await operator.create_topic("t", 1)
        await operator.access.grant("user:bob", "delete", "t")
        await operator.cuts.take("c")
        [old] = {*cluster.brokers} - {controller()}
        membership = cluster.brokers[old].membership
        features = tuple(each for each in ANNOUNCED if each != CUT_DELETIONS)
        membership.me = replace(membership.me, features=features, release="0.0.9")
        await until(lambda: bool(cluster.brokers[controller()].membership.lacking(CUT_DELETIONS)))
        assert controller() != old
        request = pb.DeleteTopicRequest(name="t", now=True, with_cuts=True)
        with pytest.raises(errors.Unavailable, match=r"deletions .* need every broker, but broker .* runs 0\.0\.9"):
            await cluster.line(old, bob.text).delete_topic(request)
        assert [topic.name for topic in await operator.list_topics()] == ["t"]
        assert await cuts_of(operator) == ["c"]
        await operator.cuts.drop("c")
        await operator.topics.delete_with_cuts("t")  # there is none to drop

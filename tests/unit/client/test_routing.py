"""Whom the client asks: any broker, the owner, the one that it is redirected to; never for longer
than its deadline. When it asks others about a broker that does not answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ledgermq.client.connection import connections as connections_module
from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.routing import Routing, TopicRoute, ask_at_s
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import NotOwner, ResourceExhausted, TopicBeingDeleted, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from tests.unit.client.hostile import HostileBroker, forever
from tests.virtual_time import virtual_in, virtual_sources

Behaviour = Callable[[], Awaitable[None]]


class Brokers:
    """A connector to brokers that behave as told, by address; all others refuse the connection.

    Counts who is asked.
    """

    def __init__(self) -> None:
        self.behaviour: dict[str, Behaviour] = {}
        self.asked: Counter[str] = Counter()
        self.closed: list[str] = []
        self.owner = "a:1"
        self.topic_id = 1

    def connect(self, address: str) -> Connection:
        return _Broker(self, address)


class _Broker(HostileBroker):
    def __init__(self, brokers: Brokers, address: str) -> None:
        super().__init__()
        self.address = address
        self._brokers = brokers

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        self._brokers.asked[self.address] += 1
        if self.address not in self._brokers.behaviour:
            raise Unavailable(f"{self.address} refuses the connection")
        await self._brokers.behaviour[self.address]()
        info = pb.TopicInfo(
            name="t",
            topic_id=self._brokers.topic_id,
            partitions=[pb.PartitionInfo(bundle=1, owner=self._brokers.owner)],
        )
        return pb.DescribeTopicsResponse(topics=[info])

    async def close(self) -> None:
        self._brokers.closed.append(self.address)


async def well() -> None:
    return None


def raising(error: Exception) -> Behaviour:
    async def fail() -> None:
        raise error

    return fail


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Brokers, Connections, Routing]]:
    brokers = Brokers()
    connections = Connections(
        brokers, ["a:1", "b:1"], ClientSettings(timeout_s=10, attempt_timeout_s=2), virtual_sources()
    )
    routing = Routing(connections, 60)
    yield brokers, connections, routing
    await routing.close()
    await connections.close()


with_brokers = virtual_in(two_brokers, "brokers", "connections", "routing")


def now_s() -> float:
    return asyncio.get_running_loop().time()


@with_brokers
async def test_a_silent_broker_costs_one_attempt_then_the_next_is_asked(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": forever, "b:1": well}
    await routing.route("t", connections.deadline())
    assert now_s() == pytest.approx(2)
    await routing.refresh("t", connections.deadline())
    assert now_s() == pytest.approx(2), "who answered last is asked first"


@with_brokers
async def test_a_redirect_is_followed_even_to_a_stranger(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": raising(NotOwner("not here", owner="c:1")), "c:1": well}
    await routing.route("t", connections.deadline())
    assert brokers.asked == {"a:1": 1, "c:1": 1}


@with_brokers
async def test_brokers_named_by_others_are_asked_when_those_given_are_gone(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": well}
    brokers.owner = "c:1"
    await routing.route("t", connections.deadline())
    brokers.behaviour = {"c:1": well}
    await routing.refresh("t", connections.deadline())
    assert brokers.asked["c:1"] == 1


@with_brokers
async def test_a_broker_to_avoid_is_asked_last(brokers: Brokers, connections: Connections, routing: Routing) -> None:
    brokers.behaviour = {"a:1": well, "b:1": well}
    await routing.refresh("t", connections.deadline(), avoid="a:1")
    assert brokers.asked == {"b:1": 1}
    brokers.behaviour = {"a:1": well}
    await routing.refresh("t", connections.deadline(), avoid="a:1")
    assert brokers.asked["a:1"] == 1


@with_brokers
async def test_no_broker_is_asked_beyond_the_deadline(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    with pytest.raises(Unavailable, match=r"a:1, b:1 answered in time; the last error: b:1 refuses"):
        await routing.route("t", connections.deadline())
    assert now_s() <= 10
    assert brokers.asked["a:1"] < 30, "with growing waits"


@with_brokers
async def test_overload_is_waited_for_as_long_as_it_says(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": raising(ResourceExhausted("full", retry_after_ms=3000))}
    with pytest.raises(ResourceExhausted):
        await routing.route("t", connections.deadline())
    assert brokers.asked == {"a:1": 4}


@with_brokers
async def test_overload_is_told_although_the_time_ends_in_the_middle_of_an_attempt(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    """A broker with a quota refuses each attempt; the answer to the last one comes too late."""

    async def refuse() -> None:
        if now_s() > 8:
            await asyncio.sleep(1.5)
        raise ResourceExhausted("full", retry_after_ms=3000)

    brokers.behaviour = {"a:1": refuse}
    with pytest.raises(ResourceExhausted, match="full"):
        await routing.route("t", connections.deadline())
    assert now_s() == 10


@with_brokers
async def test_a_broker_that_has_gone_since_it_refused_is_unavailable(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    async def refuse_then_go() -> None:
        if now_s() > 2:
            raise Unavailable("gone")
        raise ResourceExhausted("full", retry_after_ms=3000)

    brokers.behaviour = {"a:1": refuse_then_go}
    with pytest.raises(Unavailable, match="answered in time"):
        await routing.route("t", connections.deadline())


@with_brokers
async def test_an_error_that_no_retry_cures_is_raised_at_once(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": raising(TopicBeingDeleted("t is being deleted", retry_after_ms=100))}
    with pytest.raises(TopicBeingDeleted):
        await routing.route("t", connections.deadline())
    assert now_s() == 0


@with_brokers
async def test_an_unknown_topic_is_asked_for_again_for_a_moment(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": raising(UnknownTopic("no t"))}
    with pytest.raises(UnknownTopic):
        await routing.route("t", connections.deadline())
    assert 0 < now_s() <= 1
    assert brokers.asked["a:1"] > 1


@with_brokers
async def test_many_questions_at_once_are_one(brokers: Brokers, connections: Connections, routing: Routing) -> None:
    brokers.behaviour = {"a:1": lambda: asyncio.sleep(1)}
    routes = await asyncio.gather(*(routing.refresh("t", connections.deadline()) for _ in range(50)))
    assert len(set(map(id, routes))) == 1
    assert brokers.asked == {"a:1": 1}


@with_brokers
async def test_callers_that_share_a_question_keep_their_own_deadlines(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    """Whichever of them asked first."""
    begun_s = now_s()
    asking = asyncio.create_task(routing.refresh("t", begun_s + 30))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="topic 't'"):
        await routing.refresh("t", begun_s + 2)
    assert now_s() == begun_s + 2
    asking.cancel()
    await routing.close()

    begun_s = now_s()
    short = asyncio.create_task(routing.refresh("t", begun_s + 2))
    await asyncio.sleep(0)
    long = asyncio.create_task(routing.refresh("t", begun_s + 30))
    with pytest.raises(Unavailable):
        await short
    brokers.behaviour["a:1"] = well
    assert (await long).name == "t"
    assert 0 < now_s() - begun_s < 30


@with_brokers
async def test_a_question_that_has_just_failed_is_asked_again_and_not_waited_for(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    """Its end is known before its callback has run; a caller that looked at it again and again never let it run."""
    first = asyncio.create_task(routing.refresh("t", now_s() + 1))
    await asyncio.wait([first])
    assert isinstance(first.exception(), Unavailable)
    brokers.behaviour = {"a:1": well}
    failed = asyncio.create_task(_fails())
    await asyncio.wait([failed])
    routing._asking["t"] = failed
    async with asyncio.timeout(60):
        assert (await routing.refresh("t", connections.deadline())).topic_id == 1
    assert "t" not in routing._asking


async def _fails() -> TopicRoute:
    raise Unavailable("another caller's time is over")


@with_brokers
async def test_owners_are_learned_redirected_and_forgotten(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": well}
    await routing.route("t", connections.deadline())
    assert routing.owner("t", 0) == "a:1"
    routing.redirected("t", 0, "b:1", refused_by="a:1")
    assert routing.owner("t", 0) == "b:1"
    routing.redirected("t", 0, None, refused_by="a:1")
    assert routing.owner("t", 0) == "b:1", "a late refusal of the former owner says nothing of the present one"
    routing.redirected("t", 0, "b:1", refused_by="b:1")
    assert routing.owner("t", 0) is None, "a broker that points at itself is not believed"
    await routing.refresh("t", connections.deadline())
    routing.unreachable("a:1")
    assert routing.owner("t", 0) is None


@with_brokers
async def test_a_topic_of_another_id_is_another_topic(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    brokers.behaviour = {"a:1": well}
    first = await routing.route("t", connections.deadline())
    routing.redirected("t", 0, "b:1", refused_by="a:1")
    brokers.topic_id = 2
    brokers.owner = ""
    second = await routing.refresh("t", connections.deadline())
    assert (first.topic_id, second.topic_id) == (1, 2)
    assert routing.owner("t", 0) is None, "the owner was the old topic's"


@with_brokers
async def test_a_broker_that_lags_takes_no_newer_topic_back(
    brokers: Brokers, connections: Connections, routing: Routing
) -> None:
    """A consumer that was opened after its topic had been created anew once asked for the deleted
    one, forever.
    """
    brokers.behaviour["a:1"] = well
    created = routing.learn(pb.TopicInfo(name="t", topic_id=2, partitions=[pb.PartitionInfo(bundle=1, owner="b:1")]))
    assert await routing.refresh("t", connections.deadline()) == created
    assert routing.owner("t", 0) == "b:1"
    await asyncio.sleep(routing.age_s_max + 1)
    assert (await routing.refresh("t", connections.deadline())).topic_id == 1, (
        "no broker lags for as long: it is another cluster"
    )


@with_brokers
async def test_lines_to_brokers_that_come_and_go_are_bounded(
    brokers: Brokers, connections: Connections, routing: Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "OPEN_MAX", 3)
    request = pb.DescribeTopicsRequest()
    for number in range(10):
        brokers.behaviour = {f"x{number}:1": well}
        await connections.ask_at(f"x{number}:1", lambda at: at.describe_topics(request), connections.deadline())
    assert brokers.closed == [f"x{number}:1" for number in range(6)]


def test_others_are_asked_after_two_seconds_and_then_ever_more_rarely() -> None:
    asked, times = float("-inf"), list[float]()
    while (asked := ask_at_s(100.0, asked)) < 110.0:
        times.append(asked - 100.0)
    assert times == pytest.approx([2.0, 2.5, 3.125, 3.906, 4.883, 6.104, 7.629, 9.537], abs=0.001)


def test_a_question_of_before_does_not_count() -> None:
    assert ask_at_s(100.0, 99.0) == 102.0

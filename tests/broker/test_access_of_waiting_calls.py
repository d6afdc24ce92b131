"""Long polls whose rights go while they wait: they are answered by the rules of that moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from ledgermq.errors import LedgerMQError, Unauthorized, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.naming.tokens import DrawnToken, bearer
from ledgermq_broker.access.identity.jwt import FETCHED_AGAIN_AFTER_S, Issuer, SignedTokens
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.access.waiting_calls import waits
from tests.broker.access import RULES, change, is_refused, token
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster, values_of

WAIT_MS = 25_000
"""Of a long poll: much longer than what a test allows for the end of a call."""
SOON_S = 8.0
"""A change of rules is in force within a lease; then waiting calls end at once."""


def _fetch(*topics: str) -> pb.FetchRequest:
    request = fetch_of(topics[0], 0)
    for topic in topics[1:]:
        request.partitions.extend(fetch_of(topic, 0).partitions)
    request.max_wait_ms, request.min_bytes = WAIT_MS, 1
    return request


def _share(topic: str) -> pb.ShareFetchRequest:
    return pb.ShareFetchRequest(
        group="hands",
        member_id="m1",
        partitions=[pb.SharePartition(topic=topic, partition=0)],
        max_records=10,
        max_wait_ms=WAIT_MS,
        lease_ms=600_000,
    )


POLLS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "fetch": ("fetch_once", lambda: _fetch("orders"), "consume"),
    "queue": ("share_fetch", lambda: _share("orders"), "consume"),
    "queue group": ("share_fetch", lambda: _share("orders"), "group"),
    "checks": ("poll_checks", lambda: pb.PollChecksRequest(check_group="hands", max_wait_ms=WAIT_MS), "group"),
}


def test_calls_of_brokers_and_calls_that_do_not_wait_are_judged_once() -> None:
    class Caller:
        def __init__(self, *, is_broker: bool) -> None:
            self.principal = Principal("user:shop", is_broker=is_broker)

    polls = [request() for _, request, _ in POLLS.values()]
    assert all(waits(Caller(is_broker=False), poll) for poll in polls)  # type: ignore[arg-type]
    assert not any(waits(Caller(is_broker=True), poll) for poll in polls)  # type: ignore[arg-type]
    at_once = [fetch_of("orders", 0), pb.ListOffsetsRequest()]
    assert not any(waits(Caller(is_broker=False), request) for request in at_once)  # type: ignore[arg-type]


async def _shop(cluster: Cluster) -> tuple[str, DrawnToken, dict[str, str]]:
    """Make topics, and a principal that may read them; return the token of root, its own, and its rules by right."""
    root = (await token(cluster, "root")).text
    await cluster.create("orders", 1, root)
    await cluster.create("prices", 1, root)
    async with cluster.client(root) as client, client.transactions("one"):
        pass  # from now on there are coordinators, which hold polls for checks
    [consume, group] = await change(cluster, grant=["allow user:shop consume orders", "allow user:shop group hands"])
    await change(cluster, grant=["allow user:shop consume prices"])
    return root, await token(cluster, "shop"), {"consume": consume, "group": group}


async def _produce(cluster: Cluster, root: str, topic: str, value: bytes) -> None:
    answer = await cluster.line("a:1", root).produce_once(frame_of(topic, 0, value))
    assert not answer.results[0].HasField("error"), answer


async def _polling(line: Connection, method: str, request: Any) -> asyncio.Task[Any]:
    polling = asyncio.create_task(getattr(line, method)(request))
    await asyncio.sleep(2)  # it waits at the broker
    assert not polling.done()
    return polling


async def _refused(polling: asyncio.Task[Any]) -> bool:
    try:
        async with asyncio.timeout(SOON_S):
            answer = await polling
    except LedgerMQError as error:
        return isinstance(error, Unauthorized)
    return is_refused(answer)


@pytest.mark.parametrize("which", POLLS)
@in_cluster("a:1", **RULES)
async def test_a_right_that_is_revoked_ends_the_calls_that_wait_by_it(cluster: Cluster, which: str) -> None:
    method, request, right = POLLS[which]
    root, own, rules = await _shop(cluster)
    polling = await _polling(cluster.line("a:1", own.text), method, request())
    await change(cluster, revoke=[rules[right]])
    await _produce(cluster, root, "orders", b"secret")
    assert await _refused(polling)


async def _held_heartbeat(line: Connection) -> asyncio.Task[Any]:
    """Join the group, and let the coordinator hold a heartbeat because it has nothing to report."""
    subscription = pb.GroupSubscription(topics=["orders"], session_timeout_ms=6 * WAIT_MS)
    beat = pb.GroupHeartbeatRequest(group="hands", member_id="m1", step=pb.JOIN, subscription=subscription)
    async with asyncio.timeout(60):
        while True:
            polling = asyncio.create_task(line.group_heartbeat(beat))
            if not (await asyncio.wait([polling], timeout=2))[0]:
                return polling
            try:
                answer = polling.result()
            except Unavailable:
                continue  # the group has no coordinator yet
            beat = pb.GroupHeartbeatRequest(
                group="hands",
                member_id="m1",
                step=pb.STAY,
                owned=answer.assigned,
                max_wait_ms=WAIT_MS,
                seen_epoch=answer.group_epoch,
            )


@pytest.mark.parametrize("ends", ["right", "token"])
@in_cluster("a:1", **RULES)
async def test_a_heartbeat_that_is_held_ends_with_its_right(cluster: Cluster, ends: str) -> None:
    root, own, rules = await _shop(cluster)
    polling = await _held_heartbeat(cluster.line("a:1", own.text))
    if ends == "right":
        await change(cluster, revoke=[rules["group"]])
    else:
        await cluster.line("a:1", root).revoke_token(pb.RevokeTokenRequest(token_id=own.token_id))
    assert await _refused(polling)


@pytest.mark.parametrize("which", POLLS)
@in_cluster("a:1", **RULES)
async def test_a_token_that_is_revoked_ends_the_calls_that_wait_by_it(cluster: Cluster, which: str) -> None:
    method, request, _ = POLLS[which]
    root, own, _ = await _shop(cluster)
    polling = await _polling(cluster.line("a:1", own.text), method, request())
    await cluster.line("a:1", root).revoke_token(pb.RevokeTokenRequest(token_id=own.token_id))
    assert await _refused(polling)


@pytest.mark.parametrize("which", POLLS)
@in_cluster("a:1", **RULES)
async def test_a_token_that_expires_ends_the_calls_that_wait_by_it(cluster: Cluster, which: str) -> None:
    method, request, _ = POLLS[which]
    await _shop(cluster)
    brief = await token(cluster, "shop", expires_ms=cluster.now_ms() + 5_000)
    polling = await _polling(cluster.line("a:1", brief.text), method, request())
    assert await _refused(polling)


@in_cluster("a:1", **RULES)
async def test_what_stays_allowed_waits_on_and_is_answered(cluster: Cluster) -> None:
    root, own, _ = await _shop(cluster)
    polling = await _polling(cluster.line("a:1", own.text), "fetch_once", _fetch("orders", "prices"))
    await _produce(cluster, root, "prices", b"7")
    assert values_of(await asyncio.wait_for(polling, SOON_S)) == [b"7"]
    polling = await _polling(cluster.line("a:1", own.text), "fetch_once", _fetch("orders"))
    await change(cluster, grant=["allow user:other consume orders"])  # changes nothing of the caller's
    await asyncio.sleep(2)
    assert not polling.done()
    await _produce(cluster, root, "orders", b"8")
    assert values_of(await asyncio.wait_for(polling, SOON_S)) == [b"8"]


@in_cluster("a:1", **RULES)
async def test_a_change_of_rules_costs_a_queue_no_lease(cluster: Cluster) -> None:
    """A poll that is judged again leases once: nothing is leased to a call that was taken back."""
    root, own, _ = await _shop(cluster)
    polling = await _polling(cluster.line("a:1", own.text), "share_fetch", _share("orders"))
    for number in range(5):
        await change(cluster, grant=[f"allow user:other consume other-{number}"])
    await _produce(cluster, root, "orders", b"job")
    [part] = (await asyncio.wait_for(polling, SOON_S)).header.partitions
    assert [(found.first, found.last, found.deliveries) for found in part.ranges] == [(0, 0, 1)]


async def _bind(cluster: Cluster, root: str, **limits: int) -> None:
    await cluster.line("a:1", root).change_quota(pb.ChangeQuotaRequest(principal="user:shop", set=limits))


async def _change_other_rules(cluster: Cluster) -> None:
    """Several changes at once, each of which lets every call that waits be judged again."""
    for number in range(5):
        await change(cluster, grant=[f"allow user:other consume other-{number}"])
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("which", POLLS)
@in_cluster("a:1", **RULES)
async def test_a_call_that_is_judged_again_counts_once_for_its_quota(cluster: Cluster, which: str) -> None:
    method, request, _ = POLLS[which]
    root, own, _ = await _shop(cluster)
    await _bind(cluster, root, requests=1)
    polling = await _polling(cluster.line("a:1", own.text), method, request())
    await _change_other_rules(cluster)
    assert not polling.done(), polling.result()
    await cluster.line("a:1", own.text).list_offsets(pb.ListOffsetsRequest())  # of the quota nothing is used
    polling.cancel()


@in_cluster("a:1", **RULES)
async def test_a_call_that_was_let_through_is_not_refused_later_for_other_answers(cluster: Cluster) -> None:
    root, own, _ = await _shop(cluster)
    line = cluster.line("a:1", own.text)
    await _bind(cluster, root, bytes_out=100)
    polling = await _polling(line, "fetch_once", _fetch("prices"))
    await _produce(cluster, root, "orders", b"x" * 5000)
    assert values_of(await line.fetch_once(fetch_of("orders", 0))) == [b"x" * 5000]  # owes most of a minute
    await _change_other_rules(cluster)
    assert not polling.done(), polling.result()
    await _produce(cluster, root, "prices", b"7")
    assert values_of(await asyncio.wait_for(polling, SOON_S)) == [b"7"]


@in_cluster("a:1", **RULES)
async def test_a_stream_that_loses_a_topic_goes_on_above_its_quota(cluster: Cluster) -> None:
    root, own, rules = await _shop(cluster)
    line = cluster.line("a:1", own.text)
    await _bind(cluster, root, requests=1)
    streaming = asyncio.create_task(_until_values(line, _fetch("orders", "prices")))
    await asyncio.sleep(2)
    await change(cluster, revoke=[rules["consume"]])
    for _ in range(2):
        await line.list_offsets(pb.ListOffsetsRequest())
        await asyncio.sleep(0.1)
    await _produce(cluster, root, "prices", b"7")
    assert await asyncio.wait_for(streaming, SOON_S) == (1, [b"7"])


async def _until_values(line: Connection, request: pb.FetchRequest) -> tuple[int, list[bytes]]:
    """Return how many answers of a stream were refusals, and the first values."""
    refusals = 0
    async for frame in line.fetch(request):
        refusals += is_refused(frame)
        if values := values_of(frame):
            return refusals, values
    return refusals, []


ISSUER = Issuer("https://login.example", "ledgermq", "https://login.example/keys")


class _Provider:
    """Publishes the public halves of `keys`."""

    def __init__(self, *keys: ECKey) -> None:
        self.keys = list(keys)

    async def fetch(self, url: str) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()


async def _values_of_stream(line: Connection, request: pb.FetchRequest) -> list[bytes]:
    return [value async for frame in line.fetch(request) for value in values_of(frame)]


@in_cluster("a:1", **RULES)
async def test_a_key_that_is_no_longer_published_ends_its_tokens_within_a_minute(cluster: Cluster) -> None:
    """Also a token that this broker has accepted before, and the calls and streams that are under way by it."""
    [broker] = cluster.brokers.values()
    stolen, fresh = (ECKey.generate_key("P-256", {"kid": kid, "use": "sig"}) for kid in ("k1", "k2"))
    provider = _Provider(stolen, fresh)
    signed = SignedTokens(ISSUER, broker.context.sources, provider.fetch, broker.rules.next_generation)
    broker.rules.signed = signed
    following = asyncio.create_task(signed.run())
    try:
        root, _, _ = await _shop(cluster)
        await change(cluster, grant=["allow jwt:thief consume orders", "allow jwt:thief group hands"])
        await asyncio.sleep(1)

        def line(key: ECKey, kid: str) -> Connection:
            claims = {"iss": ISSUER.url, "aud": "ledgermq", "sub": "thief", "exp": cluster.now_ms() // 1000 + 10**8}
            text = jwt.encode({"alg": "ES256", "kid": kid}, claims, key, algorithms=["ES256"])
            return cluster.line("a:1", credential=bearer(text))

        await _produce(cluster, root, "orders", b"before")
        assert values_of(await line(stolen, "k1").fetch_once(fetch_of("orders", 0))) == [b"before"]
        behind = _fetch("orders")
        behind.partitions[0].offset = 1
        streaming = asyncio.create_task(_values_of_stream(line(stolen, "k1"), behind))
        provider.keys = [fresh]
        await asyncio.sleep(FETCHED_AGAIN_AFTER_S - 10)
        polling = await _polling(line(stolen, "k1"), "fetch_once", behind)
        assert await asyncio.wait_for(_refused(polling), 15)
        await _produce(cluster, root, "orders", b"after")
        with pytest.raises(Unauthorized, match="no longer publishes"):
            await streaming
        with pytest.raises(Unavailable, match="fetched again"):
            await line(stolen, "k1").fetch_once(fetch_of("orders", 0))
        await asyncio.sleep(2)
        with pytest.raises(Unauthorized, match="does not publish"):
            await line(stolen, "k1").fetch_once(fetch_of("orders", 0))
        assert values_of(await line(fresh, "k2").fetch_once(fetch_of("orders", 0))) == [b"before", b"after"]
    finally:
        following.cancel()
        await asyncio.wait([following])

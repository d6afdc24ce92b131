"""Clients of the Kafka protocol in a cluster with rules: who they are, what they may do, and until when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.connection import UNPROVEN_FRAME_BYTES_MAX, Connection
from ledgermq_broker.kafka.identity import Identity
from ledgermq_broker.kafka.table import TABLE
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.frames import FRAME_BYTES_MAX, request_frame
from ledgermq_broker.kafka.wire.generated import api_versions_request as v
from ledgermq_broker.kafka.wire.generated import create_topics_request as c
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_request as sa
from ledgermq_broker.kafka.wire.generated import sasl_handshake_request as sh
from ledgermq_broker.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    written,
)
from ledgermq_broker.kafka.wire.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import Ended, KafkaClient, KafkaCluster, batch_of, in_kafka_cluster, records_of
from tests.unit.kafka.drawn_messages import drawn

SECOND_MS = 1000


def plain(password: str, user: str = "", acts_as: str = "") -> bytes:
    return f"{acts_as}\0{user}\0{password}".encode()


def bearer(password: str) -> bytes:
    return f"n,,\x01auth=Bearer {password}\x01\x01".encode()


async def prove(client: KafkaClient, data: bytes, mechanism: str = PLAIN, version: int = 2) -> Any:
    assert (await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(mechanism))).error_code == Code.NONE
    return await client.call(SASL_AUTHENTICATE, version, sa.SaslAuthenticateRequest(data))


async def proven(cluster: KafkaCluster, user: str, **life: int) -> KafkaClient:
    client = cluster.connect(next(iter(cluster.brokers)))
    answer = await prove(client, plain((await token(cluster, user, **life)).text, user))
    assert (answer.error_code, answer.error_message, bytes(answer.auth_bytes)) == (Code.NONE, None, b"")
    return client


async def topic(cluster: KafkaCluster, name: str) -> None:
    await cluster.brokers["a:1"].service.create_topic(pb.CreateTopicRequest(name=name, partitions=1))


@contextmanager
def ends() -> Iterator[None]:
    with pytest.raises(Ended):
        yield


@in_kafka_cluster("a:1", **RULES)
async def test_a_token_is_the_principal_of_every_call(cluster: KafkaCluster) -> None:
    await topic(cluster, "mine")
    await topic(cluster, "theirs")
    await change(cluster, grant=["allow user:ann produce,consume mine", "allow user:ann create new*"])
    for mechanism, say in ((PLAIN, plain), (OAUTHBEARER, bearer)):
        client = cluster.connect("a:1")
        assert (await client.call(API_VERSIONS, 3, v.ApiVersionsRequest())).api_keys
        answer = await prove(client, say((await token(cluster, "ann")).text), mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (Code.NONE, 0)
        assert [one.name for one in (await client.metadata()).topics] == ["mine"]
        named = (await client.metadata("mine", "theirs", "never")).topics
        denied = Code.TOPIC_AUTHORIZATION_FAILED
        assert {one.name: one.error_code for one in named} == {"mine": Code.NONE, "theirs": denied, "never": denied}
        assert (await client.produce("mine", 0, batch_of(b"x"))).error_code == Code.NONE
        assert (await client.produce("theirs", 0, batch_of(b"x"))).error_code == denied
        assert (await client.fetch("theirs", 0, 0)).error_code == denied
        assert records_of(await client.fetch("mine", 0, 0))[0] == (0, b"x")
        request = c.CreateTopicsRequest(
            topics=[c.CreatableTopic(f"new-{mechanism}", 1, 1), c.CreatableTopic("old", 1, 1)]
        )
        made = (await client.call(CREATE_TOPICS, 7, request)).topics
        assert [one.error_code for one in made] == [Code.NONE, denied]


@in_kafka_cluster("a:1", **RULES)
async def test_without_a_token_nothing_is_served_but_versions_and_sasl(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow * produce,consume,describe,create,delete *", "allow * group *"])
    rng = random.Random(4711)
    own = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
    for served in [served for served in TABLE if served.api not in own]:
        client = cluster.connect("a:1")
        request = drawn(rng, served.api.request, nulls=False)
        with ends():
            await client.call(served.api, served.last, request)
    client = cluster.connect("a:1")
    early = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(plain("x")))
    assert early.error_code == Code.ILLEGAL_SASL_STATE
    with ends():
        await client.metadata()
    client = cluster.connect("a:1")
    answer = await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest("GSSAPI"))
    assert (answer.error_code, answer.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM, list(MECHANISMS))
    assert (await prove(client, plain((await token(cluster, "ann")).text))).error_code == Code.NONE  # it may choose


@in_kafka_cluster("a:1", **RULES)
async def test_a_wrong_token_gets_one_text_and_the_end(cluster: KafkaCluster) -> None:
    right = (await token(cluster, "ann")).text
    now_ms = cluster.brokers["a:1"].context.sources.now_ms()
    old = (await token(cluster, "ann", expires_ms=now_ms + SECOND_MS)).text
    await asyncio.sleep(2)
    texts = set()
    wrong = [right[:-1], old, "lmq_", "x", "LedgerMQ-Broker x", "x" * 20_000, "a.b.c"]
    for data in [*(plain(one) for one in wrong), plain(right, "ann", "bob"), b"", b"\xff"]:
        client = cluster.connect("a:1")
        answer = await prove(client, data)
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        texts.add(answer.error_message)
        with ends():
            await client.metadata()
    assert len(texts) == 1
    assert "ann" not in texts.pop()


@in_kafka_cluster("a:1", **RULES)
async def test_a_connection_ends_with_its_token(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow user:ann produce,consume t"])
    now_ms = cluster.brokers["a:1"].context.sources.now_ms()
    client = await proven(cluster, "ann", expires_ms=now_ms + 60 * SECOND_MS)
    assert (await client.produce("t", 0, batch_of(b"x"))).error_code == Code.NONE
    await asyncio.sleep(61)
    with ends():
        await client.produce("t", 0, batch_of(b"y"))
    client = cluster.connect("a:1")
    drawn_token = await token(cluster, "ann")
    await prove(client, plain(drawn_token.text))
    assert (await client.produce("t", 0, batch_of(b"z"))).error_code == Code.NONE
    await cluster.brokers["a:1"].service.revoke_token(pb.RevokeTokenRequest(token_id=drawn_token.token_id))
    await asyncio.sleep(2)
    with ends():
        await client.fetch("t", 0, 0)
    reader = await proven(cluster, "ann")
    assert [value for _, value in records_of(await reader.fetch("t", 0, 0))] == [b"x", b"z"]


@in_kafka_cluster("a:1", **RULES)
async def test_a_client_proves_itself_again_before_its_token_ends(cluster: KafkaCluster) -> None:
    """What an idempotent producer has sent before is known after it; another principal does not get the connection."""
    await topic(cluster, "t")
    await change(cluster, grant=["allow * produce,consume t"])
    sources = cluster.brokers["a:1"].context.sources
    client = cluster.connect("a:1")
    first = (await token(cluster, "ann", expires_ms=sources.now_ms() + 60 * SECOND_MS)).text
    answer = await prove(client, plain(first))
    assert 55 * SECOND_MS < answer.session_lifetime_ms <= 60 * SECOND_MS
    producer = (await client.producer_id()).producer_id

    async def send(value: bytes, sequence: int) -> tuple[int, int]:
        found = await client.produce("t", 0, batch_of(value, producer_id=producer, epoch=0, sequence=sequence))
        return found.error_code, found.base_offset

    assert await send(b"a", 0) == (Code.NONE, 0)
    again = (await token(cluster, "ann", expires_ms=sources.now_ms() + 600 * SECOND_MS)).text
    answer = await prove(client, plain(again))
    assert (answer.error_code, answer.session_lifetime_ms > 500 * SECOND_MS) == (Code.NONE, True)
    assert await send(b"a", 0) == (Code.NONE, 0)
    assert await send(b"b", 1) == (Code.NONE, 1)
    await asyncio.sleep(100)
    assert await send(b"c", 2) == (Code.NONE, 2)
    answer = await prove(client, plain((await token(cluster, "bob")).text))
    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    with ends():
        await send(b"d", 3)


@in_kafka_cluster("a:1", **RULES)
async def test_a_producer_id_belongs_to_the_principal_that_used_it_first(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow * produce,consume t"])
    ann, bob = await proven(cluster, "ann"), await proven(cluster, "bob")
    producer = (await ann.producer_id()).producer_id

    async def send(client: KafkaClient, value: bytes, sequence: int, epoch: int = 0) -> int:
        batch = batch_of(value, producer_id=producer, epoch=epoch, sequence=sequence)
        return int((await client.produce("t", 0, batch)).error_code)

    assert await send(ann, b"a", 0) == Code.NONE
    assert await send(bob, b"evil", 1) != Code.NONE
    assert await send(bob, b"evil", 0, epoch=1) != Code.NONE
    assert await send(ann, b"b", 1) == Code.NONE
    assert [value for _, value in records_of(await ann.fetch("t", 0, 0))] == [b"a", b"b"]


@in_kafka_cluster("a:1", **RULES)
async def test_a_token_in_plain_text_is_not_taken_from_other_machines(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    parts = client.connection._parts
    client.connection._identity = Identity(parts.door, parts.sources, is_private=False)
    answer = await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(PLAIN))
    assert (answer.error_code, answer.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM, [])
    with ends():
        await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(plain("lmq_x")))


@in_kafka_cluster("a:1", **RULES)
async def test_a_certificate_counts_until_a_token_is_given(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow cert:shop.example consume t"])
    client = cluster.connect("a:1")
    client.connection._identity.certified = ["shop.example", "admin.example"]
    assert [one.name for one in (await client.metadata()).topics] == ["t"]
    other = cluster.connect("a:1")
    other.connection._identity.certified = ["shop.example"]
    await prove(other, plain((await token(cluster, "clerk")).text))
    assert (await other.metadata()).topics == []


@in_kafka_cluster("a:1", **RULES)
async def test_bytes_of_an_unknown_caller_are_few(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    line: Connection = client.connection
    assert (line.is_unproven, line.frame_bytes_max) == (True, UNPROVEN_FRAME_BYTES_MAX)
    client.send_bytes(request_frame(API_VERSIONS, 3, 77, "x", written(v.ApiVersionsRequest(), 3)))
    assert line.is_full  # one request waits: nothing more is read
    known = await proven(cluster, "ann")
    assert (known.connection.is_unproven, known.connection.frame_bytes_max) == (False, FRAME_BYTES_MAX)


@in_kafka_cluster("a:1")
async def test_an_open_cluster_takes_any_token_as_our_own_port_does(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    assert (await prove(client, plain("anything", "ann"))).error_code == Code.NONE
    assert (await client.metadata()).brokers

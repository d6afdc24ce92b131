"""Clients of the Kafka protocol in the list of connections: who they are, what they say, write and read."""

from __future__ import annotations

import asyncio

from ledgermq_broker.admission.connections import LISTED_MS, TEXT_MAX, ConnectedCaller, Connections
from ledgermq_broker.kafka.identity import ListedClient
from ledgermq_broker.kafka.wire.generated import api_versions_request as v
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_request as sa
from ledgermq_broker.kafka.wire.generated import sasl_handshake_request as sh
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.access import RULES, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster


def listed(client: KafkaClient) -> list[ConnectedCaller]:
    return list(client.connections.page(0, 10)[0])


async def introduce(client: KafkaClient, name: str, version: str) -> None:
    request = v.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    await client.call(API_VERSIONS, 3, request)


@in_kafka_cluster("a:1")
async def test_what_a_client_says_writes_and_reads(cluster: KafkaCluster) -> None:
    for topic in ("in", "out"):
        await cluster.create(topic, 1)
    client = cluster.connect("a:1", "10.0.0.7")
    await introduce(client, "librdkafka", "2.3.0")
    assert listed(client) == [], "it has only asked what is served"
    await client.produce("out", 0, batch_of(b"a"))
    await client.fetch("in", 0, 0)
    await client.metadata()
    [found] = listed(client)
    assert (found.address, found.principal) == ("kafka:10.0.0.7:1", "anonymous")
    assert (found.client_id, found.client) == ("test", "librdkafka 2.3.0")
    assert (found.produces, found.reads, found.calls, found.calls_now) == ({"out"}, {"in"}, 3, 0)


@in_kafka_cluster("a:1")
async def test_a_client_that_says_nothing_is_listed_by_its_address(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    await client.metadata()
    [found] = listed(client)
    assert (found.client, found.client_id) == ("", "test")


@in_kafka_cluster("a:1")
async def test_what_a_client_says_is_bounded(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    await introduce(client, "x" * 10_000, "1")
    await client.metadata()
    assert len(listed(client)[0].client) == TEXT_MAX


def test_what_a_client_says_is_not_kept_whole() -> None:
    """A frame may have 100 MiB, and a connection lasts for days."""
    said = ListedClient(Connections(), "kafka:10.0.0.7:1")
    said.introduce(v.ApiVersionsRequest(client_software_name="x" * 1_000_000, client_software_version="1" * 1_000_000))
    kept = sum(len(text) for text in vars(said).values() if isinstance(text, str))
    assert kept < 4 * TEXT_MAX


@in_kafka_cluster("a:1", **RULES)
async def test_a_caller_is_listed_by_its_principal_once_it_has_proved_it(cluster: KafkaCluster) -> None:
    drawn = await token(cluster, "root")
    client = cluster.connect("a:1")
    await introduce(client, "kafka-python", "2.0")
    await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(mechanism="PLAIN"))
    assert listed(client) == []
    secret = f"\0\0{drawn.text}".encode()
    answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(auth_bytes=secret))
    assert not answer.error_code, answer
    await client.metadata()
    [found] = listed(client)
    assert (found.principal, found.client) == ("user:root", "kafka-python 2.0")


@in_kafka_cluster("a:1")
async def test_a_client_is_forgotten_some_minutes_after_its_last_request(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    client.connections.now_ms = lambda: round(1000 * asyncio.get_running_loop().time())
    await client.metadata()
    await asyncio.sleep(LISTED_MS / 1000 - 1)
    assert len(listed(client)) == 1
    await asyncio.sleep(2)
    assert listed(client) == []

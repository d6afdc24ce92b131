"""Administrators of the Kafka protocol see and change quotas; in virtual time, byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.security.quotas import ENTRIES_MAX
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import alter_client_quotas_request as aq
from ledgermq_broker.kafka.wire.generated import describe_client_quotas_request as dq
from ledgermq_broker.kafka.wire.generated import describe_user_scram_credentials_request as us
from ledgermq_broker.kafka.wire.messages import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from tests.broker.access import RULES, change
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic

Entity = tuple[tuple[str, str | None], ...]
ANN: Entity = (("user", "ann"),)
EXACT, DEFAULT, ANY = 0, 1, 2


def entry(entity: Entity, **limits: float | None) -> aq.EntryData:
    """`limits`: None drops one."""
    ops = [aq.OpData(key, value or 0.0, value is None) for key, value in limits.items()]
    return aq.EntryData([aq.EntityData(*part) for part in entity], ops)


async def alter(
    client: KafkaClient, *entries: aq.EntryData, version: int = 1, validate_only: bool = False
) -> list[Code]:
    request = aq.AlterClientQuotasRequest(list(entries), validate_only)
    answer = await client.call(ALTER_CLIENT_QUOTAS, version, request)
    assert [[(part.entity_type, part.entity_name) for part in one.entity] for one in answer.entries] == [
        [(part.entity_type, part.entity_name) for part in one.entity] for one in entries
    ]
    assert all(bool(one.error_code) == bool(one.error_message) for one in answer.entries)
    return [Code(one.error_code) for one in answer.entries]


async def described(
    client: KafkaClient, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[Entity, dict[str, float]]:
    request = dq.DescribeClientQuotasRequest([dq.ComponentData(*one) for one in components], strict)
    answer = await client.call(DESCRIBE_CLIENT_QUOTAS, version, request)
    assert answer.error_code == Code.NONE, answer.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in one.entity): {
            value.key: value.value for value in one.values
        }
        for one in answer.entries
    }


async def stored(cluster: KafkaCluster) -> dict[str, dict[str, int]]:
    listed = await next(iter(cluster.brokers.values())).service.list_quotas(pb.ListQuotasRequest())
    return {f"{one.principal} {one.client_id}".strip(): dict(one.limits) for one in listed.quotas}


@in_kafka_cluster("a:1", "b:1")
async def test_quotas_are_set_listed_and_dropped_beside_other_limits(cluster: KafkaCluster) -> None:
    service = cluster.brokers["b:1"].service
    await service.change_quota(pb.ChangeQuotaRequest(principal="user:ann", set={"requests": 7}))
    client = cluster.connect("a:1")
    for version in (0, 1):
        codes = await alter(
            client,
            entry(ANN, producer_byte_rate=1000.0, consumer_byte_rate=2000.0),
            entry((("user", None), ("client-id", "batch")), producer_byte_rate=5.0),
            entry((("user", "bob"),)),
            version=version,
        )
        assert codes == [Code.NONE] * 3
        assert await stored(cluster) == {
            "* batch": {"bytes_in": 5},
            "user:ann": {"bytes_in": 1000, "bytes_out": 2000, "requests": 7},
        }
        every = {
            ANN: {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0},
            (("user", None), ("client-id", "batch")): {"producer_byte_rate": 5.0},
        }
        assert await described(client, version=version) == every
        assert (await described(client, ("user", EXACT, "ann"), strict=True)).keys() == {ANN}
        assert (await described(client, ("client-id", ANY, None))).keys() == every.keys() - {ANN}
    assert await alter(client, entry(ANN, producer_byte_rate=None, consumer_byte_rate=None)) == [Code.NONE]
    assert await stored(cluster) == {"* batch": {"bytes_in": 5}, "user:ann": {"requests": 7}}
    assert ANN not in await described(client)
    assert await alter(client, entry(ANN, producer_byte_rate=None)) == [Code.NONE]  # there is none


@in_kafka_cluster("a:1")
async def test_what_cannot_be_is_refused_and_the_others_are_changed(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    bad = Code.INVALID_REQUEST
    codes = await alter(
        client,
        entry((("client-id", "batch"),), producer_byte_rate=1.0),
        entry(ANN, producer_byte_rate=1.0),
        entry((("user", "bob"),), request_percentage=50.0),
        entry((("ip", "10.0.0.1"),), connection_creation_rate=1.0),
        entry((("user", "eve"),), producer_byte_rate=0.5),
        entry((("user", "dan"),), producer_byte_rate=1.0),
        entry((("user", "dan"),), producer_byte_rate=2.0),
    )
    assert codes == [bad, Code.NONE, bad, bad, bad, bad, bad]
    assert await stored(cluster) == {"user:ann": {"bytes_in": 1}}
    codes = await alter(
        client,
        entry(ANN, producer_byte_rate=9.0),
        entry((*ANN, ("client-id", "*")), producer_byte_rate=9.0),
        validate_only=True,
    )
    assert codes == [Code.NONE, bad]
    too_many = [entry((("user", f"u{n}"),), producer_byte_rate=1.0) for n in range(ENTRIES_MAX + 1)]
    assert set(await alter(client, *too_many)) == {bad}
    assert await stored(cluster) == {"user:ann": {"bytes_in": 1}}
    answer = await client.call(
        DESCRIBE_CLIENT_QUOTAS, 1, dq.DescribeClientQuotasRequest([dq.ComponentData("user", 9, None)])
    )
    assert (answer.error_code, answer.entries) == (bad, None)


@in_kafka_cluster("a:1", **RULES)
async def test_only_who_may_change_quotas_sees_them_and_they_bind(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow user:ann produce,consume t"])
    root, ann = await proven(cluster, "root"), await proven(cluster, "ann")
    denied = Code.CLUSTER_AUTHORIZATION_FAILED
    for validate_only in (False, True):
        assert await alter(ann, entry(ANN, producer_byte_rate=1.0), validate_only=validate_only) == [denied]
    answer = await ann.call(DESCRIBE_CLIENT_QUOTAS, 1, dq.DescribeClientQuotasRequest())
    assert (answer.error_code, answer.entries) == (denied, None)
    assert await alter(root, entry(ANN, producer_byte_rate=1000.0)) == [Code.NONE]
    now_s = asyncio.get_running_loop().time
    begun_s = now_s()
    for _ in range(5):
        assert (await ann.produce("t", 0, batch_of(b"x" * 1000))).error_code == Code.NONE
    assert 2 < now_s() - begun_s < 30
    assert await alter(root, entry(ANN, producer_byte_rate=None)) == [Code.NONE]
    begun_s = now_s()
    for _ in range(5):
        assert (await ann.produce("t", 0, batch_of(b"x" * 1000))).error_code == Code.NONE
    assert now_s() - begun_s < 2


@in_kafka_cluster("a:1")
async def test_tools_that_show_quotas_ask_for_passwords_too(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")

    async def asked(*users: str) -> Any:
        request = us.DescribeUserScramCredentialsRequest([us.UserName(user) for user in users] if users else None)
        return await client.call(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)

    answer = await asked()
    assert (answer.error_code, answer.results) == (Code.NONE, [])
    [found] = (await asked("ann")).results
    assert (found.user, found.error_code, found.credential_infos) == ("ann", Code.RESOURCE_NOT_FOUND, [])

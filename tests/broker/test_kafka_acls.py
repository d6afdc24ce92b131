"""Administrators of the Kafka protocol see, add and remove access rules; in virtual time, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.handlers.security import acls
from ledgermq_broker.kafka.handlers.security.bindings import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    Operation,
    Pattern,
    Resource,
)
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import create_acls_request as ca
from ledgermq_broker.kafka.wire.generated import delete_acls_request as da
from ledgermq_broker.kafka.wire.generated import describe_acls_request as ds
from ledgermq_broker.kafka.wire.messages import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, Api
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import plain, prove, proven, topic

Line = tuple[int, str, int, str, int, int]
"""Resource, name, pattern, principal, operation, permission."""


def entry(
    resource: int,
    operation: int,
    name: str = "orders",
    *,
    pattern: int = Pattern.LITERAL,
    principal: str = "User:ann",
    host: str = "*",
    permission: int = ALLOW,
) -> ca.AclCreation:
    return ca.AclCreation(resource, name, pattern, principal, host, operation, permission)


async def create(client: KafkaClient, *entries: ca.AclCreation, version: int = 3) -> list[Code]:
    answer = await client.call(CREATE_ACLS, version, ca.CreateAclsRequest(list(entries)))
    for one in answer.results:
        assert bool(one.error_code) == bool(one.error_message)
    return [Code(one.error_code) for one in answer.results]


def chosen(kind: type[Any], **more: Any) -> Any:
    return kind(
        **{
            "resource_type_filter": ANY,
            "resource_name_filter": None,
            "pattern_type_filter": ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": ANY,
            "permission_type": ANY,
            **more,
        }
    )


async def shown(client: KafkaClient, version: int = 3, **more: Any) -> list[Line]:
    answer = await client.call(DESCRIBE_ACLS, version, chosen(ds.DescribeAclsRequest, **more))
    assert answer.error_code == Code.NONE, answer.error_message
    return [
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for one in answer.resources
        for acl in one.acls
    ]


async def delete(client: KafkaClient, *filters: dict[str, Any]) -> list[list[int]]:
    """The operations that each filter removed."""
    request = da.DeleteAclsRequest([chosen(da.DeleteAclsFilter, **one) for one in filters])
    answer = await client.call(DELETE_ACLS, 3, request)
    assert [one.error_code for one in answer.filter_results] == [Code.NONE] * len(filters)
    assert not any(acl.error_code for one in answer.filter_results for acl in one.matching_acls)
    return [sorted(acl.operation for acl in one.matching_acls) for one in answer.filter_results]


async def rules(cluster: KafkaCluster) -> list[str]:
    listed = await next(iter(cluster.brokers.values())).service.list_rules(pb.ListRulesRequest())
    return sorted(
        f"{'deny' if one.rule.deny else 'allow'} {one.rule.principal} {','.join(one.rule.operations)}"
        f" {one.rule.name}{'*' if one.rule.prefix else ''}".strip()
        for one in listed.rules
    )


@in_kafka_cluster("a:1", "b:1", **RULES)
async def test_an_acl_counts_at_once_is_listed_and_is_removed(cluster: KafkaCluster) -> None:
    await topic(cluster, "orders")
    root, ann = await proven(cluster, "root"), await proven(cluster, "ann")
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert (await ann.produce("orders", 0, batch_of(b"x"))).error_code == denied
    codes = await create(
        root,
        entry(Resource.TOPIC, Operation.WRITE),
        entry(Resource.TOPIC, Operation.READ, "ord", pattern=Pattern.PREFIXED, principal="User:*"),
        entry(Resource.GROUP, Operation.READ, "*"),
        entry(Resource.TRANSACTIONAL_ID, Operation.ALL, "x 1"),
        entry(Resource.CLUSTER, Operation.ALTER, CLUSTER_NAME, permission=DENY),
    )
    assert codes == [Code.NONE] * 5
    assert (await ann.produce("orders", 0, batch_of(b"x"))).error_code in (Code.NONE, Code.NOT_LEADER_OR_FOLLOWER)
    listed = [
        (Resource.TOPIC, "orders", Pattern.LITERAL, "User:ann", Operation.WRITE, ALLOW),
        (Resource.TOPIC, "ord", Pattern.PREFIXED, "User:*", Operation.READ, ALLOW),
        (Resource.GROUP, "*", Pattern.LITERAL, "User:ann", Operation.READ, ALLOW),
        (Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, "User:ann", Operation.ALTER, DENY),
        (Resource.TRANSACTIONAL_ID, "x 1", Pattern.LITERAL, "User:ann", Operation.WRITE, ALLOW),
    ]
    for version in (1, 2, 3):
        assert await shown(root, version) == listed
    matching = {"resource_type_filter": Resource.TOPIC, "pattern_type_filter": Pattern.MATCH}
    assert await shown(root, **matching, resource_name_filter="orders.eu") == listed[1:2]
    gone = await delete(
        root,
        {"resource_type_filter": Resource.TOPIC, "resource_name_filter": "orders"},
        {"principal_filter": "User:ann"},
        {"principal_filter": "User:nobody"},
    )
    assert gone == [[Operation.WRITE], [Operation.READ, Operation.WRITE, Operation.ALTER], []]
    assert await rules(cluster) == ["allow * consume ord*"]
    assert (await ann.produce("orders", 0, batch_of(b"y"))).error_code == denied


@in_kafka_cluster("a:1", **RULES)
async def test_part_of_a_rule_is_removed_and_the_rest_stays_in_force(cluster: KafkaCluster) -> None:
    await topic(cluster, "orders")
    await change(
        cluster,
        grant=[
            "allow user:ann produce,consume,create orders",
            "allow user:ann produce orders",
            "allow user:ann alter,consume,create,delete,describe,produce all*",
        ],
    )
    root, ann = await proven(cluster, "root"), await proven(cluster, "ann")
    everything = (Resource.TOPIC, "all", Pattern.PREFIXED, "User:ann", Operation.ALL, ALLOW)
    assert [line[4] for line in await shown(root)] == [Operation.READ, Operation.WRITE, Operation.CREATE, Operation.ALL]
    assert everything in await shown(root)
    assert await delete(root, {"operation": Operation.WRITE}, {"operation": Operation.WRITE}) == [
        [Operation.WRITE, Operation.WRITE],
        [],
    ]
    assert await rules(cluster) == [
        "allow user:ann alter,consume,create,delete,describe,produce all*",
        "allow user:ann consume,create orders",
    ]
    assert (await ann.produce("orders", 0, batch_of(b"x"))).error_code == Code.TOPIC_AUTHORIZATION_FAILED
    assert (await ann.fetch("orders", 0, 0)).error_code == Code.NONE
    assert await delete(root, {}) == [[Operation.ALL, Operation.READ, Operation.CREATE]]
    assert await rules(cluster) == []


@in_kafka_cluster("a:1", **RULES)
async def test_what_no_rule_says_is_refused_and_the_others_are_made(cluster: KafkaCluster) -> None:
    root = await proven(cluster, "root")
    invalid = Code.INVALID_REQUEST
    codes = await create(
        root,
        entry(Resource.TOPIC, Operation.READ, host="10.0.0.1"),
        entry(Resource.TOPIC, Operation.READ),
        entry(Resource.TOPIC, Operation.DESCRIBE_CONFIGS),  # the rule above it shows settings
        entry(Resource.TOPIC, Operation.ALTER_CONFIGS),
        entry(Resource.GROUP, Operation.DESCRIBE, "g"),
        entry(Resource.TRANSACTIONAL_ID, Operation.WRITE, "x"),
        entry(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE, "x"),
        entry(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, CLUSTER_NAME),
        entry(Resource.CLUSTER, Operation.CREATE, CLUSTER_NAME),
        entry(Resource.DELEGATION_TOKEN, Operation.DESCRIBE),
        entry(Resource.TOPIC, Operation.READ, principal="ann"),
    )
    good = Code.NONE
    assert codes == [invalid, good, good, invalid, invalid, good, good, good, invalid, invalid, invalid]
    assert await rules(cluster) == ["allow user:ann consume orders", "allow user:ann transaction x"]
    assert await create(root, entry(Resource.TOPIC, Operation.READ)) == [good]  # twice is once
    assert len(await rules(cluster)) == 2
    too_many = [entry(Resource.TOPIC, Operation.READ, f"t{n}") for n in range(acls.ENTRIES_MAX + 1)]
    assert set(await create(root, *too_many)) == {invalid}
    assert await create(root, *too_many[1:]) == [good] * acls.ENTRIES_MAX
    unknown = await root.call(DESCRIBE_ACLS, 3, chosen(ds.DescribeAclsRequest, operation=99))
    assert (unknown.error_code, unknown.resources) == (invalid, [])
    request = da.DeleteAclsRequest([chosen(da.DeleteAclsFilter, permission_type=0)] * 2)
    answer = await root.call(DELETE_ACLS, 3, request)
    assert [one.error_code for one in answer.filter_results] == [invalid] * 2
    assert len(await rules(cluster)) == 2 + acls.ENTRIES_MAX
    [removed] = await delete(root, {"resource_type_filter": Resource.TOPIC})  # in more than one change
    assert len(removed) == 1 + acls.ENTRIES_MAX
    assert await rules(cluster) == ["allow user:ann transaction x"]


@in_kafka_cluster("a:1", **RULES)
async def test_only_who_may_change_rules_sees_and_changes_acls(cluster: KafkaCluster) -> None:
    await change(cluster, grant=["allow user:ann produce,consume,describe,create,alter,delete *"])
    ann = await proven(cluster, "ann")
    denied = Code.CLUSTER_AUTHORIZATION_FAILED
    answer = await ann.call(DESCRIBE_ACLS, 3, chosen(ds.DescribeAclsRequest))
    assert (answer.error_code, answer.resources) == (denied, [])
    assert await create(ann, entry(Resource.CLUSTER, Operation.ALTER, CLUSTER_NAME)) == [denied]
    answer = await ann.call(DELETE_ACLS, 3, da.DeleteAclsRequest([chosen(da.DeleteAclsFilter)]))
    [result] = answer.filter_results
    assert (result.error_code, result.matching_acls) == (denied, [])
    assert len(await rules(cluster)) == 1


@in_kafka_cluster("a:1")
async def test_where_rules_are_not_enforced_no_acl_seems_to_count(cluster: KafkaCluster) -> None:
    await change(cluster, grant=["allow user:ann produce orders"])
    client = cluster.connect("a:1")
    off = Code.SECURITY_DISABLED
    answer = await client.call(DESCRIBE_ACLS, 3, chosen(ds.DescribeAclsRequest))
    assert (answer.error_code, answer.resources) == (off, [])
    assert "security = open" in answer.error_message
    assert await create(client, *[entry(Resource.TOPIC, Operation.READ)] * 2) == [off] * 2
    answer = await client.call(DELETE_ACLS, 3, da.DeleteAclsRequest([chosen(da.DeleteAclsFilter)]))
    assert [one.error_code for one in answer.filter_results] == [off]
    assert await rules(cluster) == ["allow user:ann produce orders"]


class Between:
    """The API of a caller, with something that happens before each change of rules."""

    def __init__(self, api: BrokerApi, happens: Callable[[], Awaitable[Any]]) -> None:
        self._api = api
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def change_rules(self, request: pb.ChangeRulesRequest) -> pb.ChangeRulesResponse:
        await self._happens()
        return await self._api.change_rules(request)


async def served(cluster: KafkaCluster, api: Api, request: Any, happens: Callable[[], Awaitable[Any]]) -> Any:
    broker = cluster.brokers["a:1"]
    admitted = await broker.door.admit("Bearer " + (await token(cluster, "root")).text)
    handler = acls.answers(broker.context.sources)[api]
    return await handler(Asked(cast(BrokerApi, Between(admitted.api, happens)), request, 3))


@in_kafka_cluster("a:1", **RULES)
async def test_what_another_program_revoked_meanwhile_does_not_come_back(cluster: KafkaCluster) -> None:
    granted = await change(cluster, grant=["allow user:ann produce,consume orders"])
    filters = [chosen(da.DeleteAclsFilter, operation=Operation.WRITE)]
    answer = await served(cluster, DELETE_ACLS, da.DeleteAclsRequest(filters), lambda: change(cluster, revoke=granted))
    [result] = answer.filter_results
    assert [one.error_code for one in result.matching_acls] == [Code.NONE]
    assert await rules(cluster) == []


@in_kafka_cluster("a:1", **RULES)
async def test_what_is_left_of_one_rule_stays_if_another_one_was_revoked_meanwhile(cluster: KafkaCluster) -> None:
    gone, *_ = await change(cluster, grant=["deny * produce,consume orders", "deny * produce,create orders"])
    filters = [chosen(da.DeleteAclsFilter, operation=one) for one in (Operation.READ, Operation.CREATE)]
    await served(cluster, DELETE_ACLS, da.DeleteAclsRequest(filters), lambda: change(cluster, revoke=[gone]))
    assert await rules(cluster) == ["deny * produce orders"]


@in_kafka_cluster("a:1", **RULES)
async def test_one_filter_removes_a_part_of_more_rules_than_a_call_changes(cluster: KafkaCluster) -> None:
    await change(cluster, grant=[f"allow user:ann produce,consume t{number}" for number in range(600)])
    root = await proven(cluster, "root")
    assert await delete(root, {"operation": Operation.READ}) == [[Operation.READ] * 600]
    assert {line.split()[2] for line in await rules(cluster)} == {"produce"}


@in_kafka_cluster("a:1", **RULES)
async def test_a_change_that_fails_is_reported_for_each_acl(cluster: KafkaCluster) -> None:
    await change(cluster, grant=["allow user:ann produce orders"])

    async def no_controller() -> None:
        raise Unavailable("no controller")

    wanted = [entry(Resource.TOPIC, Operation.READ), entry(Resource.TOPIC, Operation.READ, host="h")]
    answer = await served(cluster, CREATE_ACLS, ca.CreateAclsRequest(wanted), no_controller)
    failed = Code.REQUEST_TIMED_OUT
    assert [one.error_code for one in answer.results] == [failed, Code.INVALID_REQUEST]
    filters = [chosen(da.DeleteAclsFilter)]
    answer = await served(cluster, DELETE_ACLS, da.DeleteAclsRequest(filters), no_controller)
    [result] = answer.filter_results
    assert [one.error_code for one in result.matching_acls] == [failed]
    assert len(await rules(cluster)) == 1


async def repeated(change: Callable[[], Awaitable[list[Code]]]) -> None:
    """As Java's client does: what may have happened is sent again."""
    while (codes := set(await change())) != {Code.NONE}:
        assert codes <= {Code.NONE, Code.REQUEST_TIMED_OUT, Code.THROTTLING_QUOTA_EXCEEDED}


@in_kafka_cluster("a:1", "b:1", "c:1", **RULES)
async def test_two_administrators_at_once_while_the_controller_is_killed(cluster: KafkaCluster) -> None:
    controller = await cluster.owner_of("__metadata", 0)
    secret = (await token(cluster, "root")).text
    left = [address for address in cluster.brokers if address != controller]
    roots = [cluster.connect(address) for address in left]
    for root in roots:
        assert (await prove(root, plain(secret))).error_code == Code.NONE

    async def add(root: KafkaClient, name: str, count: int) -> None:
        for n in range(count):
            wanted = [entry(Resource.TOPIC, each, f"{name}{n}") for each in (Operation.READ, Operation.WRITE)]
            shared = entry(Resource.TOPIC, Operation.READ, f"shared{n}")
            await asyncio.sleep(0.1)
            await repeated(lambda wanted=wanted, shared=shared: create(root, *wanted, shared))  # type: ignore[misc]

    async def kill() -> None:
        await asyncio.sleep(0.35)
        await cluster.stop(controller, graceful=False)

    async with asyncio.TaskGroup() as group:
        for root, name in zip(roots, "xy", strict=True):
            group.create_task(add(root, name, 8))
        group.create_task(kill())
    found = [f"allow user:ann {what} {name}{n}" for name in "xy" for what in ("consume", "produce") for n in range(8)]
    assert await rules(cluster) == sorted([*found, *(f"allow user:ann consume shared{n}" for n in range(8))])
    assert await shown(roots[0]) == await shown(roots[1])
    removed = await asyncio.gather(*(delete(root, {"operation": Operation.READ}) for root in roots))
    assert len(removed[0][0]) + len(removed[1][0]) >= 24, "each was removed by one of them"
    assert await rules(cluster) == sorted(line for line in found if "produce" in line)

"""Unmodified administration clients of the Kafka protocol see, add and remove access rules and quotas."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.tokens import draw_token
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.kafka.java import tool

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
ACLS = "AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="{password}";'


@dataclass
class Guarded:
    """A broker with `security = rules` on this machine, where tokens need no TLS. `tokens`: by user."""

    folder: Path
    address: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    is_up: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def serve(self) -> None:
        settings = load_settings(
            port=0,
            kafka_port=0,
            security="rules",
            super_principals="user:root",
            background_compaction=False,
        )
        sources = Sources()
        async with await Node.start((self.folder / "root").as_uri(), settings, sources) as node:
            assert node.kafka_address is not None
            self.address = node.kafka_address
            api = node.broker.service
            await api.create_topic(pb.CreateTopicRequest(name="orders", partitions=1))
            for user in ("root", "ann"):
                drawn = draw_token(sources)
                await api.create_token(pb.CreateTokenRequest(token_id=drawn.token_id, hash=drawn.hash, user=user))
                self.tokens[user] = drawn.text
            self.is_up.set()
            while not self.is_over.is_set():
                await asyncio.sleep(0.05)

    def librdkafka(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.tokens[user],
        }

    def python(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": self.tokens[user],
        }

    def java(self, user: str) -> tuple[str, ...]:
        config = self.folder / f"{user}.properties"
        jaas = JAAS.format(user=user, password=self.tokens[user])
        config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
        return ("--bootstrap-server", self.address, "--command-config", str(config))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    world = Guarded(tmp_path_factory.mktemp("guarded"))
    thread = threading.Thread(target=lambda: asyncio.run(world.serve()), name="broker")
    thread.start()
    try:
        assert world.is_up.wait(120)
        yield world
    finally:
        world.is_over.set()
        thread.join(120)


def _may_write(guarded: Guarded, topic: str) -> bool:
    from confluent_kafka import KafkaError, Producer

    errors: list[Any] = []
    producer = Producer({"message.timeout.ms": 30_000, **guarded.librdkafka("ann")})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert errors[0] is None or errors[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return errors[0] is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kafka_acls_of_java(guarded: Guarded) -> None:
    at = guarded.java("root")
    ann = ("--allow-principal", "User:ann")
    assert not _may_write(guarded, "orders")
    tool(ACLS, *at, "--add", *ann, "--producer", "--topic", "orders", "--transactional-id", "shop", "--idempotent")
    assert _may_write(guarded, "orders")
    tool(
        ACLS,
        *at,
        "--add",
        *ann,
        "--consumer",
        "--topic",
        "ord",
        "--group",
        "pack",
        "--resource-pattern-type",
        "prefixed",
    )
    tool(ACLS, *at, "--add", "--deny-principal", "User:bob", "--operation", "All", "--topic", "*")
    said = tool(ACLS, *at, "--list")
    for line in (
        "resourceType=TOPIC, name=orders, patternType=LITERAL",
        "principal=User:ann, host=*, operation=WRITE, permissionType=ALLOW",
        "principal=User:ann, host=*, operation=CREATE, permissionType=ALLOW",
        "resourceType=TRANSACTIONAL_ID, name=shop, patternType=LITERAL",
        "resourceType=TOPIC, name=ord, patternType=PREFIXED",
        "resourceType=TOPIC, name=*, patternType=LITERAL",
        "principal=User:bob, host=*, operation=ALL, permissionType=DENY",
    ):
        assert line in said, said
    said = tool(ACLS, *at, "--list", "--topic", "orders.eu", "--resource-pattern-type", "match")
    assert "name=ord," in said
    assert "name=orders," not in said
    refused = ("--allow-host", "10.0.0.1", "--operation", "Read", "--topic", "orders")
    assert "host of an ACL is *" in tool(ACLS, *at, "--add", *ann, *refused, status=1)
    denied = tool(ACLS, *guarded.java("ann"), "--list", status=1)
    assert "ClusterAuthorizationException" in denied
    tool(ACLS, *at, "--remove", "--force", *ann, "--operation", "Write", "--topic", "orders")
    assert not _may_write(guarded, "orders")
    tool(ACLS, *at, "--remove", "--force", "--topic", "*")
    tool(ACLS, *at, "--remove", "--force", "--topic", "orders")
    said = tool(ACLS, *at, "--list")
    assert "name=orders," not in said
    assert "User:bob" not in said


def test_acls_of_librdkafka(guarded: Guarded) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient(guarded.librdkafka("root"))

    def binding(name: str, operation: AclOperation, host: str = "*") -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC,
            name,
            ResourcePatternType.LITERAL,
            "User:ann",
            host,
            operation,
            AclPermissionType.ALLOW,
        )

    mine = binding("of.librdkafka", AclOperation.READ)
    [made] = admin.create_acls([mine]).values()
    made.result(DEADLINE_S)
    [refused] = admin.create_acls([binding("of.librdkafka", AclOperation.ALTER_CONFIGS)]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert "there is no rule for ALTER_CONFIGS" in caught.value.args[0].str()
    wanted = AclBindingFilter(
        ResourceType.ANY,
        "of.librdkafka",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert mine in admin.describe_acls(wanted).result(DEADLINE_S)
    exactly = AclBindingFilter(
        ResourceType.TOPIC,
        "of.librdkafka",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    [gone] = admin.delete_acls([exactly]).values()
    assert gone.result(DEADLINE_S) == [mine]
    assert mine not in admin.describe_acls(wanted).result(DEADLINE_S)


def test_acls_of_kafka_python(guarded: Guarded) -> None:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )

    admin = KafkaAdminClient(**guarded.python("root"))
    mine = ACL(
        principal="User:ann",
        host="*",
        operation=ACLOperation.READ,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(ResourceType.GROUP, "of kafka-python"),
    )
    made = admin.create_acls([mine])
    assert made["succeeded"] == [mine]
    wanted = ACLFilter(
        principal="User:ann",
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.GROUP, "of kafka-python", ACLResourcePatternType.LITERAL),
    )
    found, _ = admin.describe_acls(wanted)
    assert found == [mine]
    [(_, gone, _)] = admin.delete_acls([wanted])
    assert gone == [mine]
    admin.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quotas_of_java(guarded: Guarded) -> None:
    at = guarded.java("root")
    ann = (*at, "--entity-type", "users", "--entity-name", "ann")
    tool(CONFIGS, *ann, "--alter", "--add-config", "producer_byte_rate=1000000,consumer_byte_rate=2000000")
    said = tool(CONFIGS, *ann, "--describe")
    assert "Quota configs for user-principal 'ann' are" in said
    assert "producer_byte_rate=1000000.0" in said
    assert "consumer_byte_rate=2000000.0" in said
    batch = (*at, "--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "batch")
    tool(CONFIGS, *batch, "--alter", "--add-config", "producer_byte_rate=5000")
    said = tool(CONFIGS, *batch, "--describe")
    assert "producer_byte_rate=5000.0" in said
    refused = tool(CONFIGS, *ann, "--alter", "--add-config", "request_percentage=50", status=1)
    assert "calls a second" in refused
    clients = (*at, "--entity-type", "clients", "--entity-name", "batch")
    refused = tool(CONFIGS, *clients, "--alter", "--add-config", "producer_byte_rate=5000", status=1)
    assert "name the user, too" in refused
    tool(CONFIGS, *ann, "--alter", "--delete-config", "producer_byte_rate")
    said = tool(CONFIGS, *ann, "--describe")
    assert "producer_byte_rate" not in said
    assert "consumer_byte_rate=2000000.0" in said
    own = (*guarded.java("ann"), "--entity-type", "users", "--entity-name", "ann")
    assert "ClusterAuthorizationException" in tool(CONFIGS, *own, "--describe", status=1)

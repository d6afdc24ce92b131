"""Unmodified administration clients of the Kafka protocol see, add and remove access rules and quotas."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

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
    from confluent_kafka import KafkaError
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


# Passwords

SCRAM_JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'


def _scram(guarded: Guarded, user: str, mechanism: str, password: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of librdkafka, and of the clients written in Python."""
    librdkafka = guarded.librdkafka("ann") | {
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    python = guarded.python("ann") | {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    return librdkafka, python


def _topics_of_librdkafka(config: dict[str, Any]) -> set[str] | str:
    """What a client may see, or why it is refused."""
    from confluent_kafka.admin import AdminClient

    errors: list[Any] = []
    admin = AdminClient({**config, "error_cb": errors.append})
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s and not errors:
        try:
            return set(admin.list_topics(timeout=2).topics)
        except KafkaException:
            admin.poll(0.1)
    return str(errors[0].str())


def _topics_of_python(config: dict[str, Any]) -> list[str]:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(**config)
    try:
        return sorted(admin.list_topics())
    finally:
        admin.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kafka_configs_sets_passwords_that_clients_prove(guarded: Guarded) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError as AioError
    from kafka.errors import KafkaError as PythonError

    at, root = ("--entity-type", "users", "--entity-name", "eve"), guarded.java("root")
    passwords = {"SCRAM-SHA-256": "pass-word,1", "SCRAM-SHA-512": "other=word"}
    for mechanism, password in passwords.items():
        said = await asyncio.to_thread(
            tool, CONFIGS, *root, *at, "--alter", "--add-config", f"{mechanism}=[iterations=8192,password={password}]"
        )
        assert "Completed updating" in said
        for given in (password, f"{password}x"):
            librdkafka, python = _scram(guarded, "eve", mechanism, given)
            found = await asyncio.to_thread(_topics_of_librdkafka, librdkafka)
            if given == password:
                assert found == set()
                async with AIOKafkaProducer(**python):
                    pass
                assert await asyncio.to_thread(_topics_of_python, python) == []
                continue
            assert "the token or password is wrong" in found
            refused = AIOKafkaProducer(**python)
            with pytest.raises(AioError):
                await refused.start()
            await refused.stop()
            with pytest.raises(PythonError):
                await asyncio.to_thread(_topics_of_python, python)
    said = await asyncio.to_thread(tool, CONFIGS, *root, *at, "--describe")
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=8192" in said
    config = guarded.folder / "eve.properties"
    jaas = SCRAM_JAAS.format(user="eve", password=passwords["SCRAM-SHA-512"])
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}\n")
    own = ("--bootstrap-server", guarded.address, "--command-config", str(config))
    assert await asyncio.to_thread(tool, "TopicCommand", *own, "--list") == ""
    said = await asyncio.to_thread(tool, CONFIGS, *own, *at, "--describe", status=1)
    assert "ClusterAuthorizationException" in said
    await asyncio.to_thread(tool, CONFIGS, *root, *at, "--alter", "--delete-config", "SCRAM-SHA-256")
    found = await asyncio.to_thread(
        _topics_of_librdkafka, _scram(guarded, "eve", "SCRAM-SHA-256", passwords["SCRAM-SHA-256"])[0]
    )
    assert "the token or password is wrong" in found


def test_librdkafka_sets_and_shows_passwords(guarded: Guarded) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient(guarded.librdkafka("root"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion("mia", info, b"a long password")
    assert admin.alter_user_scram_credentials([upsertion])["mia"].result(DEADLINE_S) is None
    [shown] = admin.describe_user_scram_credentials(["mia"])["mia"].result(DEADLINE_S).scram_credential_infos
    assert (shown.mechanism, shown.iterations) == (ScramMechanism.SCRAM_SHA_512, 4096)
    assert _topics_of_librdkafka(_scram(guarded, "mia", "SCRAM-SHA-512", "a long password")[0]) == set()
    deletion = UserScramCredentialDeletion("mia", ScramMechanism.SCRAM_SHA_512)
    assert admin.alter_user_scram_credentials([deletion])["mia"].result(DEADLINE_S) is None
    with pytest.raises(KafkaException, match="no SCRAM-SHA-512 credential"):
        admin.alter_user_scram_credentials([deletion])["mia"].result(DEADLINE_S)

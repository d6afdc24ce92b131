"""Unmodified clients prove themselves through TLS: PLAIN with our tokens, OAUTHBEARER with those of a provider."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.tokens import draw_token
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.ports.tls import followed_certificates
from ledgermq_broker.settings.processes import load_settings
from tests.broker.access import rule_of
from tests.certificates import Authority
from tests.e2e.test_identities import Provider

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
WRONG = "lmq_0123456789ab_" + "x" * 43
LIFE_S = 5
OLD_MS = 3000
"""Life of the token that is old when the tests begin; a broker on a busy machine has to make it before."""
GRANTS = (
    "allow user:ann produce,consume mine*",
    "allow user:ann group *",
    "allow jwt:alice produce,consume mine*",
)


@dataclass
class Secured:
    """A broker with TLS and `security = rules`. `old`: a token that has expired."""

    ca: Path
    provider: Provider
    key: RSAKey
    address: str = ""
    token: str = ""
    old: str = ""
    is_up: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def serve(self, folder: Path, tls: dict[str, str]) -> None:
        sources = Sources()
        settings = load_settings(
            port=0,
            kafka_port=0,
            security="rules",
            jwt_issuer=self.provider.url,
            jwt_audience="ledgermq",
            tls_ca_file=str(self.ca),
            background_compaction=False,
            **tls,
        )
        async with (
            followed_certificates(settings, sources) as certificates,
            await Node.start(folder.as_uri(), settings, sources, certificates=certificates) as node,
        ):
            assert node.kafka_address is not None
            self.address = node.kafka_address
            api = node.broker.service
            grants = [rule_of(text) for text in GRANTS]
            await api.change_rules(pb.ChangeRulesRequest(grant=grants))
            for name in ("mine", "theirs"):
                await api.create_topic(pb.CreateTopicRequest(name=name, partitions=1))
            self.token = await self._token(api, sources, 0)
            expires_ms = sources.now_ms() + OLD_MS
            self.old = await self._token(api, sources, expires_ms)
            await asyncio.sleep((expires_ms - sources.now_ms()) / 1000 + 0.01)
            self.is_up.set()
            while not self.is_over.is_set():
                await asyncio.sleep(0.05)

    async def _token(self, api: Any, sources: Sources, expires_ms: int) -> str:
        drawn = draw_token(sources)
        request = pb.CreateTokenRequest(token_id=drawn.token_id, hash=drawn.hash, user="ann", expires_ms=expires_ms)
        await api.create_token(request)
        return drawn.text

    def librdkafka(self, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        }

    def python(self, password: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "ann",
            "sasl_plain_password": password,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    with Provider() as provider:
        key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        provider.keys = [key]
        serving = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        world = Secured(authority.ca, provider, key)
        tls = authority.issue("broker").settings()
        thread = threading.Thread(target=lambda: asyncio.run(world.serve(folder / "root", tls)), name="broker")
        thread.start()
        try:
            assert world.is_up.wait(120)
            yield world
        finally:
            world.is_over.set()
            thread.join(120)
            provider.shutdown()
            serving.join()


def _sent(config: dict[str, Any], topic: str, value: bytes) -> Any:
    """The error of a message of librdkafka; None: it is stored."""
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer({"message.timeout.ms": 30_000, **config})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[0]


def test_librdkafka_with_a_token(secured: Secured) -> None:
    from confluent_kafka import Consumer, KafkaError

    config = secured.librdkafka(secured.token)
    assert _sent(config, "mine", b"of librdkafka") is None
    assert _sent(config, "theirs", b"no").code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer({**config, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["mine"])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    assert message.error() is None
    consumer.close()


@pytest.mark.parametrize("which", ["wrong", "old"])
def test_librdkafka_with_a_token_that_does_not_count(secured: Secured, which: str) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

    errors: list[Any] = []
    password = WRONG if which == "wrong" else secured.old
    admin = AdminClient({**secured.librdkafka(password), "error_cb": errors.append})
    until_s = time.monotonic() + DEADLINE_S
    while not errors and time.monotonic() < until_s:
        admin.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "authentication failed: the token or password is wrong, has expired or was revoked" in errors[0].str()


@pytest.mark.slow
def test_librdkafka_with_the_provider_s_tokens_and_a_new_one_in_time(secured: Secured) -> None:
    """A connection that sends all the time lives longer than its first token, because the client gives the next."""
    from confluent_kafka import Producer

    given: list[float] = []

    def oauth(_: str) -> tuple[str, float]:
        ends_s = int(time.time()) + LIFE_S
        given.append(ends_s)
        return secured.provider.token(secured.key, exp=ends_s), ends_s

    config = {**secured.librdkafka(""), "sasl.mechanism": "OAUTHBEARER", "oauth_cb": oauth}
    del config["sasl.username"], config["sasl.password"]
    errors: list[Any] = []
    producer = Producer(config)
    until_s = time.monotonic() + 2.5 * LIFE_S
    sent = 0
    while time.monotonic() < until_s:
        producer.produce("mine", b"of alice", on_delivery=lambda error, _: errors.append(error))
        sent += 1
        assert producer.flush(DEADLINE_S) == 0
        time.sleep(0.1)
    assert errors == [None] * sent
    assert len(given) > 2


async def test_aiokafka_with_a_token_and_without_one_that_counts(secured: Secured) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

    tls = ssl.create_default_context(cafile=str(secured.ca))
    async with AIOKafkaProducer(ssl_context=tls, **secured.python(secured.token)) as producer:
        assert (await producer.send_and_wait("mine", b"of aiokafka")).offset >= 0
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("theirs", b"no")
    for password in (WRONG, secured.old):
        refused = AIOKafkaProducer(ssl_context=tls, **secured.python(password))
        with pytest.raises(KafkaError):
            await refused.start()
        await refused.stop()


def test_kafka_python_with_a_token_and_without_one_that_counts(secured: Secured) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    more: dict[str, Any] = {"ssl_cafile": str(secured.ca), "request_timeout_ms": 20_000}
    producer = KafkaProducer(**secured.python(secured.token), **more)
    assert producer.send("mine", b"of kafka-python").get(DEADLINE_S).offset >= 0
    producer.close()
    for password in (WRONG, secured.old):
        refused = KafkaProducer(**secured.python(password), **more, api_version=(2, 6), max_block_ms=3000)
        with pytest.raises(KafkaError):
            refused.send("mine", b"no").get(10)
        refused.close(timeout=1)


def test_plain_text_reaches_nothing(secured: Secured) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    for config in (
        {"bootstrap.servers": secured.address},
        {**secured.librdkafka(secured.token), "security.protocol": "SASL_PLAINTEXT"},
        {"bootstrap.servers": secured.address, "security.protocol": "SSL", "ssl.ca.location": str(secured.ca)},
    ):
        with pytest.raises(KafkaException):
            AdminClient(config).list_topics(timeout=3)

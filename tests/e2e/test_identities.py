"""Who a caller is to real broker processes with `security = rules`: the names in client certificates,
and the signed tokens of an identity provider whose keys change.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

import ledgermq
from ledgermq import errors
from ledgermq.client.client import Client
from tests.certificates import Authority, Pair
from tests.e2e.processes import QUICK, BrokerProcesses

RULES = (*QUICK, "--security", "rules")
SLOW_S = 60.0


async def refused(call: Awaitable[object], text: str = "may not|does not have the operation") -> None:
    with pytest.raises(errors.Unauthorized, match=text):
        await call


async def send(client: Client, topic: str, value: str) -> None:
    async with client.producer() as producer:
        await producer.send(topic, value)


# -- client certificates


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def strict_brokers(authority: Authority, tmp_path: Path) -> Iterator[BrokerProcesses]:
    """Two brokers that serve only callers with a certificate of the authority."""
    pair, ca = authority.issue("broker"), authority.ca
    options = (
        *RULES,
        "--super-principals=cert:admin.example",
        f"--tls-cert-file={pair.cert}",
        f"--tls-key-file={pair.key}",
        f"--tls-ca-file={ca}",
        "--tls-client-auth=required",
        f"--tls-client-ca-file={ca}",
        "--log-format=json",
    )
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), options) as brokers:
        brokers.start_all(2)
        yield brokers


async def test_a_client_is_the_first_name_in_its_certificate(
    authority: Authority, strict_brokers: BrokerProcesses
) -> None:
    def connect(pair: Pair, token: str = "") -> Any:
        return ledgermq.connect(strict_brokers.addresses, tls=authority.tls(pair), token=token, timeout_s=SLOW_S)

    admin_pair = authority.issue("admin", "admin.example")
    async with (
        connect(admin_pair) as admin,
        connect(authority.issue("shop", "shop.example", "admin.example")) as shop,
        connect(authority.issue("billing", "spiffe.example", common_name="shop.example")) as billing,
    ):
        await admin.create_topic("orders", 4)
        await admin.create_topic("wages", 1)
        assert (await shop.access.test("produce", "orders")).principal == "cert:shop.example"
        await refused(send(shop, "orders", "early"), "cert:shop.example may not use 'orders'")
        await refused(shop.access.list())  # the second name of the certificate is nobody
        await admin.access.grant("cert:shop.example", ["produce"], "ord*")
        await send(shop, "orders", "first")
        assert [topic.name for topic in await shop.list_topics()] == ["orders"]
        await refused(shop.read_arrow("orders"))
        await refused(send(shop, "wages", "no"))
        await refused(send(billing, "orders", "no"), "cert:spiffe.example")  # the common name is nobody

        reading = await admin.access.grant("cert:spiffe.example", ["consume"], "orders")
        assert (await billing.read_arrow("orders")).column("value").to_pylist() == [b"first"]
        denied = await admin.access.grant("cert:shop.example", ["produce"], "orders", deny=True)
        await refused(send(shop, "orders", "denied"))
        assert list(await admin.access.revoke(denied, reading)) == [denied, reading]
        await send(shop, "orders", "second")
        await refused(billing.read_arrow("orders"))

        token = (await admin.access.create_token("clerk")).token
        async with connect(admin_pair, token) as clerk:  # a token decides, whatever the certificate
            assert (await clerk.access.test("produce", "orders")).principal == "user:clerk"
            await refused(clerk.create_topic("more", 1))
        async with connect(admin_pair, "lmq_0123456789ab_" + "x" * 43) as wrong:
            await refused(wrong.list_topics(), "wrong, or was revoked")
        read = await admin.read_arrow("orders")
        assert sorted(read.column("value").to_pylist()) == [b"first", b"second"]
    for broker in strict_brokers.running:
        assert token not in broker.text()


async def test_a_certificate_without_a_subject_alternative_name_proves_nothing(
    authority: Authority, strict_brokers: BrokerProcesses
) -> None:
    """Authorities check the names of a certificate; many let its common name be anything."""
    nameless = authority.issue("nameless", common_name="admin.example")
    async with ledgermq.connect(strict_brokers.addresses, tls=authority.tls(nameless), timeout_s=SLOW_S) as client:
        await refused(client.list_topics(), "without credentials")


async def test_a_broker_s_own_certificate_does_not_make_a_broker(
    authority: Authority, strict_brokers: BrokerProcesses, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "authority-broker.pem", tmp_path / "authority-broker.key")
    async with ledgermq.connect(strict_brokers.addresses, tls=authority.tls(pair), timeout_s=SLOW_S) as client:
        assert await client.list_topics() == []
        await refused(client.create_topic("orders", 1), "cert:localhost")


# -- an identity provider


class Provider(ThreadingHTTPServer):
    """Serves its discovery document and its keys on a free port of this machine, from a thread."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_port}/realm"
        self.keys: list[Any] = []

    def token(self, key: Any, **claims: Any) -> str:
        given = {"iss": self.url, "aud": "ledgermq", "sub": "alice", "exp": int(time.time()) + 3600} | claims
        alg = "ES256" if isinstance(key, ECKey) else "RS256"
        return jwt.encode({"alg": alg, "kid": key.kid}, given, key, algorithms=[alg])


class _Answers(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        found = {
            "/realm/.well-known/openid-configuration": {
                "issuer": self.server.url,
                "jwks_uri": f"{self.server.url}/keys",
            },
            "/realm/keys": {"keys": [key.as_dict(private=False) for key in self.server.keys]},
        }.get(self.path)
        body = json.dumps(found).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def wrong_tokens(provider: Provider, key: RSAKey, good: str) -> list[tuple[str, str]]:
    """Tokens that brokers refuse, each with a word of the reason."""
    stranger = RSAKey.generate_key(2048, {"kid": "old", "use": "sig"})
    return [
        (provider.token(key, aud="another"), "invalid_claim"),
        (provider.token(key, iss="http://127.0.0.1:1/realm"), "invalid_claim"),
        (provider.token(key, exp=int(time.time()) - 90), "has expired"),
        (provider.token(stranger, roles=["sales"]), "bad_signature"),
        (good.rpartition(".")[0] + ".", "not"),
    ]


@pytest.mark.slow
async def test_signed_tokens_of_an_identity_provider(provider: Provider, tmp_path: Path) -> None:
    old = RSAKey.generate_key(2048, {"kid": "old", "use": "sig"})
    new = ECKey.generate_key("P-256", {"kid": "new", "use": "sig"})
    options = (
        *RULES,
        "--super-principals=jwt:admin",
        f"--jwt-issuer={provider.url}",
        "--jwt-audience=ledgermq",
        "--jwt-groups-claim=roles",
    )
    provider.keys = [old]
    admin_token, alice_token = provider.token(old, sub="admin"), provider.token(old, roles=["sales"])
    tokens = [admin_token, alice_token]
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), options) as brokers:

        def connect(token: str) -> Any:
            tokens.append(token)
            return ledgermq.connect(brokers.addresses, token=token, timeout_s=SLOW_S)

        await asyncio.to_thread(brokers.start_all, 2)
        async with connect(admin_token) as first, connect(alice_token) as alice:
            admin = first
            await admin.create_topic("orders", 4)  # if keys are not fetched yet, the client waits
            assert (await alice.access.test("produce", "orders")).principal == "jwt:alice"
            await refused(send(alice, "orders", "early"), "jwt:alice may not use 'orders'")
            await admin.access.grant("group:sales", ["produce", "consume"], "ord*")
            await send(alice, "orders", "first")
            assert (await alice.read_arrow("orders")).column("value").to_pylist() == [b"first"]
            await refused(alice.create_topic("ordinary", 1))

            for token, why in wrong_tokens(provider, old, alice_token):
                async with connect(token) as client:
                    await refused(client.list_topics(), why)

            # The provider begins to use another key: brokers fetch it when a token names it.
            provider.keys = [new]
            renewed = provider.token(new, roles=["sales"])
            async with connect(renewed) as client:
                await send(client, "orders", "second")
                assert (await client.read_arrow("orders")).num_rows == 2
            async with connect(provider.token(old, sub="bob", roles=["sales"])) as client:
                await refused(client.list_topics(), "does not publish")

            # A signed token cannot be revoked: a rule denies its subject, and it counts at once.
            async with connect(provider.token(new, sub="admin")) as admin:
                await admin.access.grant("jwt:alice", ["produce", "consume"], "*", deny=True)
            # Within a minute no broker accepts the token of the former key, so the renewed one is tried.
            async with connect(renewed) as client:
                await refused(send(client, "orders", "denied"), "may not")
                await refused(client.read_arrow("orders"), "may not")

        logged = "".join(broker.text() for broker in brokers.running)
    for token in tokens:
        assert token not in logged
        assert token.rpartition(".")[2][:20] not in logged or token.endswith(".")

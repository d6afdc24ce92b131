"""Tokens of an identity provider: which count, and how its keys are followed."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from ledgermq.errors import InvalidConfig, LedgerMQError, Unauthorized, Unavailable
from ledgermq_broker.access.identity.jwt import (
    ANSWER_BYTES_MAX,
    ASKED_AGAIN_AFTER_S,
    FETCHED_AGAIN_AFTER_S,
    KEPT_S,
    SKEW_S,
    Issuer,
    SignedTokens,
    fetch_by_http,
    keys_of,
)
from ledgermq_broker.node import issuer_of
from ledgermq_broker.settings.processes import load_settings
from tests.virtual_time import run_virtual, virtual_sources

ISSUER = Issuer("https://login.example", "ledgermq")
KEYS_URL = "https://login.example/keys"
OLD = RSAKey.generate_key(2048, {"kid": "old", "use": "sig"})
NEW = ECKey.generate_key("P-256", {"kid": "new", "use": "sig"})
SOURCES = virtual_sources()


class Provider:
    """Answers requests for the discovery document and the keys; counts them."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys)
        self.fetched = 0
        self.down = False
        self.takes_s = 0.0

    async def fetch(self, url: str) -> bytes:
        if self.down:
            raise OSError("connection refused")
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": ISSUER.url, "jwks_uri": KEYS_URL}).encode()
        assert url == KEYS_URL
        self.fetched += 1
        answer = document(*self.keys)
        await asyncio.sleep(self.takes_s)
        return answer


def document(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def now_s() -> int:
    return SOURCES.now_ms() // 1000


def token(key: Any = OLD, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    given = {"iss": ISSUER.url, "aud": "ledgermq", "sub": "alice", "exp": now_s() + 600} | claims
    given = {name: value for name, value in given.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jwt.encode({"alg": alg, "kid": key.kid} | (header or {}), given, key, algorithms=[alg])


@asynccontextmanager
async def following(provider: Provider) -> AsyncIterator[SignedTokens]:
    tokens = SignedTokens(ISSUER, SOURCES, provider.fetch)
    task = asyncio.create_task(tokens.run())
    await asyncio.sleep(0.1)
    try:
        yield tokens
    finally:
        task.cancel()
        await asyncio.wait([task])


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run() -> None:
        run_virtual(test)

    run.__name__ = test.__name__
    return run


@virtually
async def test_a_token_proves_subject_groups_and_life() -> None:
    async with following(Provider(OLD, NEW)) as tokens:
        found = tokens.principal(token(groups=["ops", "staff"]))
        assert (found.name, found.groups) == ("jwt:alice", {"ops", "staff"})
        assert found.expires_ms == (now_s() + 600 + SKEW_S) * 1000
        assert tokens.principal(token(NEW, "ES256", aud=["other", "ledgermq"], groups="no list")).groups == frozenset()


def _signed_by(secret: bytes) -> str:
    """A token whose HMAC was made with a published key, which joserfc itself does not make."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"old"}').rstrip(b"=").decode()
    body = f"{header}.{token().split('.')[1]}"
    signature = base64.urlsafe_b64encode(hmac.digest(secret, body.encode(), "sha256")).rstrip(b"=").decode()
    return f"{body}.{signature}"


REFUSED: dict[str, Callable[[], str]] = {
    "other issuer": lambda: token(iss="https://evil.example"),
    "other audience": lambda: token(aud="another"),
    "no audience": lambda: token(aud=None),
    "no subject": lambda: token(sub=None),
    "no end": lambda: token(exp=None),
    "ended": lambda: token(exp=now_s() - SKEW_S - 1),
    "not yet": lambda: token(nbf=now_s() + SKEW_S + 10),
    "subject with spaces": lambda: token(sub="a b"),
    "subject is a number": lambda: token(sub=5),
    "end is a text": lambda: token(exp="tomorrow"),
    "too many groups": lambda: token(groups=["g"] * 101),
    "shared secret": lambda: token(OctKey.import_key("x" * 32, {"kid": "old"}), "HS256"),
    "public key as a secret": lambda: _signed_by(OLD.as_pem(private=False)),
    "unsigned": lambda: token().rpartition(".")[0] + ".",
    "no algorithm": lambda: "eyJhbGciOiJub25lIn0." + token().split(".")[1] + ".",
    "wrong key": lambda: token(RSAKey.generate_key(2048, {"kid": "old"})),
    "changed": lambda: ".".join([token().split(".")[0], token(sub="root").split(".")[1], token().split(".")[2]]),
    "garbage": lambda: "a.b.c",
    "empty": lambda: "..",
    "PS256": lambda: token(OLD, "PS256"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_a_token_that_does_not_count(which: str) -> None:
    async def run() -> None:
        text = REFUSED[which]()
        async with following(Provider(OLD, NEW)) as tokens:
            with pytest.raises((Unauthorized, LedgerMQError)) as refused:
                tokens.principal(text)
            assert not isinstance(refused.value, Unavailable), refused.value
            assert text not in refused.value.message

    run_virtual(run)


@virtually
async def test_clocks_may_differ_a_little() -> None:
    async with following(Provider(OLD)) as tokens:
        tokens.principal(token(exp=now_s() - SKEW_S + 5, nbf=now_s() + SKEW_S - 5))


@virtually
async def test_a_new_key_counts_soon_and_the_former_one_ends() -> None:
    provider = Provider(OLD)
    async with following(provider) as tokens:
        provider.keys = [NEW]
        await asyncio.sleep(ASKED_AGAIN_AFTER_S)
        with pytest.raises(Unavailable):
            tokens.principal(token(NEW, "ES256"))
        await asyncio.sleep(1)
        assert tokens.principal(token(NEW, "ES256")).name == "jwt:alice"
        with pytest.raises(Unauthorized):
            tokens.principal(token(OLD))


@virtually
async def test_calls_make_no_requests_however_many_unknown_keys_they_name() -> None:
    provider = Provider(OLD)
    async with following(provider) as tokens:
        stranger = ECKey.generate_key("P-256", {"kid": "stranger"})
        text = token(stranger, "ES256")
        for _ in range(100):
            with pytest.raises(LedgerMQError):
                tokens.principal(text)
            await asyncio.sleep(0.5)
        assert provider.fetched <= 3
        with pytest.raises(Unauthorized, match="does not publish"):
            tokens.principal(text)
        before = provider.fetched
        for _ in range(100):
            tokens.principal(token())
        assert provider.fetched == before


@virtually
async def test_known_keys_outlive_the_provider_for_a_day() -> None:
    provider = Provider(OLD)
    async with following(provider) as tokens:
        provider.down = True
        await asyncio.sleep(KEPT_S - FETCHED_AGAIN_AFTER_S)
        tokens.principal(token())
        await asyncio.sleep(2 * FETCHED_AGAIN_AFTER_S)
        with pytest.raises(Unavailable):
            tokens.principal(token())
        provider.down = False
        await asyncio.sleep(FETCHED_AGAIN_AFTER_S)
        tokens.principal(token())


@virtually
async def test_before_the_first_answer_callers_wait() -> None:
    provider = Provider(OLD)
    provider.down = True
    async with following(provider) as tokens:
        with pytest.raises(Unavailable, match="not known yet"):
            tokens.principal(token())


@virtually
async def test_a_new_key_counts_soon_after_callers_waited_for_the_first_ones() -> None:
    provider = Provider(OLD)
    provider.takes_s = 1.0
    async with following(provider) as tokens:
        with pytest.raises(Unavailable, match="not known yet"):
            tokens.principal(token())
        await asyncio.sleep(3)
        tokens.principal(token())
        provider.keys = [NEW]
        with pytest.raises(Unavailable, match="fetched again"):
            tokens.principal(token(NEW, "ES256"))
        await asyncio.sleep(3)
        tokens.principal(token(NEW, "ES256"))


@virtually
async def test_a_new_key_is_not_refused_for_an_answer_that_is_older_than_the_question() -> None:
    provider = Provider(OLD)
    async with following(provider) as tokens:
        provider.takes_s = 1.0
        await asyncio.sleep(FETCHED_AGAIN_AFTER_S)  # the next fetch has just begun, and will bring the old key
        provider.keys = [NEW]
        for _ in range(15):
            with pytest.raises(Unavailable, match="fetched again"):
                tokens.principal(token(NEW, "ES256"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        tokens.principal(token(NEW, "ES256"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"keys": 5}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "eA"}]}',
        b'{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}]}',
    ],
)
def test_a_document_without_usable_keys_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        keys_of(body)


def test_short_keys_and_keys_for_encryption_are_left_out() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = RSAKey.generate_key(1024, {"kid": "short"})
    other = RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"})
    assert [key.kid for key in keys_of(document(short, other, OLD))] == ["old"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"jwt_issuer": "https://a", "jwt_audience": "x"}, "security = rules"),
        ({"jwt_issuer": "https://a", "security": "rules"}, "jwt_audience"),
        ({"jwt_issuer": "http://a", "jwt_audience": "x", "security": "rules"}, "https"),
        ({"jwt_issuer": "x", "jwt_audience": "x", "jwt_keys_url": "file:///k", "security": "rules"}, "jwt_keys_url"),
        (
            {
                "jwt_issuer": "https://a",
                "jwt_audience": "x",
                "jwt_keys_url": "http://fetcher:open-sesame@k",
                "security": "rules",
            },
            r"fetcher:\*+@k",
        ),
    ],
)
def test_settings_that_would_prove_nothing_are_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as refused:
        issuer_of(load_settings(None, **settings))
    assert "sesame" not in refused.value.message


def test_settings_name_the_provider() -> None:
    assert issuer_of(load_settings(None)) is None
    found = issuer_of(
        load_settings(
            None,
            security="rules",
            jwt_issuer="https://a",
            jwt_audience="x",
            jwt_keys_url="https://k",
            jwt_groups_claim="roles",
        )
    )
    assert found == Issuer("https://a", "x", "https://k", "roles")


async def test_keys_are_fetched_over_http_within_bounds() -> None:
    async def keys(request: web.Request) -> web.Response:
        return web.Response(body=document(OLD))

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(ANSWER_BYTES_MAX + 1))

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("/keys")

    app = web.Application()
    app.add_routes([web.get("/keys", keys), web.get("/large", large), web.get("/elsewhere", elsewhere)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        assert [key.kid for key in keys_of(await fetch_by_http(f"{url}/keys"))] == ["old"]
        with_password = url.replace("//", "//fetcher:open-sesame@")
        for path in ("large", "elsewhere", "absent"):
            with pytest.raises(ValueError, match=path) as refused:
                await fetch_by_http(f"{with_password}/{path}")
            assert "sesame" not in str(refused.value)
    finally:
        await runner.cleanup()
    with pytest.raises(OSError, match="keys") as silent:
        await fetch_by_http(f"{with_password}/keys")
    assert "sesame" not in str(silent.value)

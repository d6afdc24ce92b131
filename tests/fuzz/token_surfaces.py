"""Tokens as texts: whatever they hold, only a token that was made here counts. No broker takes part, so that a
million of each is a matter of minutes; `access_surfaces` has the door with everything behind it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from contextlib import suppress
from functools import cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from joserfc.jwk import ECKey, RSAKey

from ledgermq.errors import InvalidConfig
from ledgermq.protocol.naming.tokens import DrawnToken, bearer, draw_token, is_token_id, token_id_of
from ledgermq_broker.access.identity.jwt import SKEW_S, Issuer, SignedTokens
from ledgermq_broker.access.state.records import StoredToken, encode_token, token_key
from ledgermq_broker.access.state.rule_set import RuleSet, rule_set_of
from tests.fuzz.surface import Surface, Untyped
from tests.virtual_time import EPOCH_US, VirtualLoop, virtual_sources
from tests.worlds.batches import mutate

NOW_S = EPOCH_US // 1_000_000
ISSUER = Issuer("https://login.example", "ledgermq")

Json = dict[str, Any]


# Static tokens


@cache
def _tokens() -> tuple[DrawnToken, RuleSet]:
    """A token, and a rule set that knows it and another one."""
    drawn, other = (draw_token(virtual_sources(seed)) for seed in (1, 2))
    records = {
        token_key(each.token_id): (at, encode_token(StoredToken(each.token_id, each.hash, f"user{at}")))
        for at, each in enumerate((drawn, other))
    }
    return drawn, rule_set_of(records)


def check_static_token(data: bytes) -> None:
    good, rules = _tokens()
    text = data.decode("utf-8", "surrogateescape")
    found = rules.token(text)
    if (found is not None) != (text == good.text):
        raise Untyped(f"{text!r} {'counts' if found else 'does not count'}")
    token_id = token_id_of(text)
    if token_id is not None and not is_token_id(token_id):
        raise Untyped(f"{token_id!r} is no id")
    with suppress(InvalidConfig):
        sent = bearer(text)
        if not (sent.isascii() and sent.isprintable()):
            raise Untyped(f"{sent!r} would be sent in a header")


# Signed tokens


@cache
def _private() -> dict[str, ec.EllipticCurvePrivateKey]:
    """Keys of the provider, by id, the same in every process; "stranger" is nobody's."""
    return {name: ec.derive_private_key(at, ec.SECP256R1()) for at, name in enumerate(("e", "f", "stranger"), 4711)}


@cache
def _rsa() -> RSAKey:
    """A key of the provider with which no input is signed, so that each is the same in every process."""
    return RSAKey.generate_key(2048, {"kid": "r"})


def _published() -> list[Any]:
    """The provider's keys, as it publishes them."""
    found = []
    for name in ("e", "f"):
        public = _private()[name].public_key()
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        found.append(ECKey.import_key(pem, {"kid": name}).as_dict(private=False))
    return [*found, _rsa().as_dict(private=False)]


def _claims(**other: object) -> Json:
    return {"iss": ISSUER.url, "aud": ISSUER.audience, "sub": "alice", "exp": NOW_S + 10**6, **other}


def _token(head: object, claims: object, key: str) -> bytes:
    body = b".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    r, s = decode_dss_signature(_private()[key].sign(body, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return body + b"." + _encoded(r.to_bytes(32, "big") + s.to_bytes(32, "big"))


@cache
def signed_tokens() -> list[bytes]:
    """Good ones, by each key."""
    return [
        _token({"alg": "ES256", "kid": "e"}, _claims(), "e"),
        _token({"alg": "ES256", "kid": "f"}, _claims(groups=["ops"]), "f"),
        _token({"alg": "ES256", "kid": "e", "typ": "JWT"}, _claims(aud=["x", ISSUER.audience]), "e"),
    ]


_HEADERS: tuple[Json, ...] = (
    {"alg": "none"},
    {"alg": "HS256", "kid": "r"},
    {"alg": "ES256", "kid": "r"},
    {"alg": "RS256", "kid": "e"},
    {"alg": "ES256", "kid": "unknown"},
    {"alg": "ES256"},
    {"alg": ["ES256"], "kid": "e"},
    {"alg": "ES256", "kid": {"e": 1}},
    {"alg": "ES256", "kid": "e", "crit": ["exp"], "b64": False},
    {"alg": "ES256", "kid": "e", "jwk": {"kty": "oct", "k": "AA"}, "jku": "https://evil.example"},
    {"alg": "PS256", "kid": "r"},
    {"alg": "EdDSA", "kid": "e"},
)
_ODD: tuple[Any, ...] = (None, "", "x", 0, -1, 2**70, 1e400, 1.5, True, [], {}, ["ledgermq"], "a b", "\x00", "ä" * 300)


def spoil_signed(rng: random.Random, good: bytes) -> bytes:
    """Edited bytes, another header over the same claims, or odd claims under a signature that counts or does not."""
    kind = rng.random()
    if kind < 0.4:
        return mutate(rng, good, rng.choice(signed_tokens()))
    if kind < 0.7:
        parts = good.split(b".")
        at = rng.randrange(3)
        odd = json.dumps(rng.choice((*_HEADERS, *_ODD, [[]] * 50, _claims(exp=NOW_S - 10**6))), default=str)
        parts[at] = _encoded(odd.encode()) if rng.random() < 0.8 else mutate(rng, parts[at], parts[at])
        return b".".join(parts)
    claims = _claims()
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(("iss", "aud", "sub", "exp", "nbf", "iat", "groups", "jti"))
        if rng.random() < 0.3:
            claims.pop(name, None)
        else:
            claims[name] = rng.choice((*_ODD, NOW_S - SKEW_S, NOW_S - SKEW_S - 1, NOW_S + 5))
    head = rng.choice(_HEADERS) if rng.random() < 0.3 else {"alg": "ES256", "kid": "e"}
    return _token(head, claims, "e" if rng.random() < 0.7 else "stranger")


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decoded(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


class Provider:
    """What a broker knows of an identity provider, whose keys were fetched at the first input."""

    def __init__(self) -> None:
        self._loop: VirtualLoop | None = None
        self._tokens = SignedTokens(ISSUER, virtual_sources(), self._fetch)

    async def _fetch(self, url: str) -> bytes:
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": ISSUER.url, "jwks_uri": "https://login.example/keys"}).encode()
        return json.dumps({"keys": _published()}).encode()

    def check(self, data: bytes) -> None:
        if self._loop is None:
            self._loop = VirtualLoop()
            self._loop.run_until_complete(self._follow())
        self._loop.run_until_complete(self._check(data))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    async def _follow(self) -> None:
        following = asyncio.create_task(self._tokens.run())
        await asyncio.sleep(1)
        following.cancel()
        await asyncio.wait([following])

    async def _check(self, data: bytes) -> None:
        token = data.decode("latin-1")
        principal = self._tokens.principal(token)
        why = why_it_does_not_count(data)
        if why or not principal.name.startswith("jwt:") or principal.is_broker:
            raise Untyped(f"{token!r} counts as {principal}, though {why}")


def why_it_does_not_count(token: bytes) -> str:
    """Judge a token by a few lines that share nothing with the library."""
    try:
        head, body, proof = token.split(b".")
        header, claims = json.loads(_decoded(head)), json.loads(_decoded(body))
        algorithm = str(header["alg"])
        keys = [header["kid"]] if "kid" in header else ["e", "f"]
        if not any(_verifies(algorithm, key, head + b"." + body, _decoded(proof)) for key in keys):
            return "no key of the provider has signed it"
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims["iss"] != ISSUER.url or ISSUER.audience not in audience:
            return "it is of another issuer or audience"
        if not claims["exp"] + SKEW_S >= NOW_S:
            return "it has expired"
        return "" if claims["sub"] and isinstance(claims["sub"], str) else "it names no subject"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"it is none: {error!r}"


def _verifies(algorithm: str, key: str, signed: bytes, proof: bytes) -> bool:
    """Only ES256 is used here: whatever claims another algorithm was not signed by the provider."""
    if algorithm != "ES256" or key not in ("e", "f") or len(proof) != 64:
        return False
    encoded = encode_dss_signature(int.from_bytes(proof[:32], "big"), int.from_bytes(proof[32:], "big"))
    try:
        _private()[key].public_key().verify(encoded, signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def surfaces() -> list[Surface]:
    provider = Provider()
    good = _tokens()[0].text.encode()
    static = [good, good[:-1], good + b"=", good.upper(), b"lmq_" + b"0" * 12 + b"_" + b"A" * 43, b"lmq_", b""]
    return [
        Surface("static-token", static, check_static_token),
        Surface("signed-token", signed_tokens(), provider.check, spoil_signed, close=provider.close),
    ]

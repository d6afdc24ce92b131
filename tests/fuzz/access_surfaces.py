"""Credentials of calls, and records of access rules and tokens: whatever they hold, only a credential
that was made here is admitted, and no record is taken for another rule than it is.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import cache

from joserfc import jwt
from joserfc.jwk import RSAKey

from ledgermq.errors import Unauthorized, Unavailable
from ledgermq.protocol.tokens import bearer
from security.quotas import Limit, Quota, StoredQuota, Subject
from security.records import (
    StoredRule,
    StoredToken,
    Unreadable,
    decode_quota,
    decode_rule,
    decode_token,
    encode_quota,
    encode_rule,
    encode_token,
    quota_key,
    rule_key,
    token_key,
)
from security.rules import Operation, Principal, Rule
from stateless_broker.security.broker_identity import BrokerCredentials
from stateless_broker.security.jwt import Issuer, SignedTokens
from tests.broker.access import RULES, token
from tests.broker.cluster import Cluster, cluster_of
from tests.fuzz.surface import Surface, Untyped
from tests.virtual_time import EPOCH_US, VirtualLoop

ISSUER = Issuer("https://login.example", "ledgermq")


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "k"})


@cache
def _signed() -> str:
    claims = {"iss": ISSUER.url, "aud": ISSUER.audience, "sub": "alice", "exp": EPOCH_US // 1_000_000 + 10**9}
    return jwt.encode({"alg": "RS256", "kid": "k"}, claims, _key())


class Doors:
    """A broker with a door, made by the first input. An input is a credential in which the words
    TOKEN, BROKER and SIGNED stand for what is made here.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None
        self._good: dict[bytes, str] = {}

    def check(self, data: bytes) -> None:
        self._runner.run(self._check(data))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _check(self, data: bytes) -> None:
        if self._cluster is None:
            self._cluster = await self._stack.enter_async_context(cluster_of("a:1", "b:1", **RULES))
            await self._open(self._cluster)
        text = _with(data, self._good)
        made = text in (bearer(self._good[b"TOKEN"]), bearer(self._good[b"SIGNED"]), self._good[b"BROKER"])
        try:
            principal = (await self._cluster.brokers["a:1"].door.admit(text)).principal.name
        except (Unauthorized, Unavailable) as error:
            if made:
                raise Untyped(f"a good credential was refused: {error}") from error
            raise
        if principal not in ("user:alice", "jwt:alice", f"broker:{self._cluster.brokers['b:1'].broker_id}"):
            raise Untyped(f"{text!r} was admitted as {principal}")
        if not any(good in text for good in self._good.values()):
            raise Untyped(f"{text!r} was admitted")

    async def _open(self, cluster: Cluster) -> None:
        broker = cluster.brokers["a:1"]

        async def keys(url: str) -> bytes:
            if url.endswith("openid-configuration"):
                return json.dumps({"issuer": ISSUER.url, "jwks_uri": "https://login.example/keys"}).encode()
            return json.dumps({"keys": [_key().as_dict(private=False)]}).encode()

        broker.door.signed = SignedTokens(ISSUER, broker.context.sources, keys)
        following = asyncio.create_task(broker.door.signed.run())
        self._stack.callback(following.cancel)
        await asyncio.sleep(1)
        peer: BrokerCredentials = cluster.brokers["b:1"].credentials
        self._good = {
            b"TOKEN": (await token(cluster, "alice")).text,
            b"SIGNED": _signed(),
            b"BROKER": peer.credential("a:1"),
        }


def _with(data: bytes, good: dict[bytes, str]) -> str:
    """The credential: a byte of the input may also change a character of what was made."""
    head, _, tail = data.partition(b"\x00")
    for word, text in good.items():
        head = head.replace(word, text.encode())
    text_ = head.decode("latin-1")
    if tail and text_:
        at = int.from_bytes(tail[:2], "big") % len(text_)
        text_ = text_[:at] + chr(tail[-1]) + text_[at + 1 :]
    return text_


CREDENTIALS = [
    b"Bearer TOKEN",
    b"Bearer SIGNED",
    b"BROKER",
    b"Bearer TOKEN\x00\x00\x20x",
    b"Bearer SIGNED\x00\x01\x20x",
    b"BROKER\x00\x00\x30x",
    b"LedgerMQ-Broker W10=.e30=",
    b"Bearer lmq_0123456789ab_x",
    b"Basic TOKEN",
]

GOOD_RULE = Rule(True, "user:alice", frozenset({Operation.PRODUCE, Operation.CONSUME}), "orders.", True)
GOOD_QUOTA = Quota(bytes_in=1000, requests=5, connections=2)
RECORDS = [
    b"r" + encode_rule(StoredRule(GOOD_RULE, 5, "user:root")),
    b"q" + encode_quota(StoredQuota(GOOD_QUOTA, 5, "user:root")),
    b"t" + encode_token(StoredToken("0123456789ab", bytes(32), "alice", ("ops",), 1, 2, "user:root")),
]


def check_record(data: bytes) -> None:
    """A rule is read under its own key only, as what it is; a token has a hash and a user; limits of a quota are
    not negative.
    """
    if data[:1] == b"q":
        subject = Subject("user:alice", "batch")
        quota = decode_quota(quota_key(subject), data[1:])
        if not isinstance(quota, Unreadable):
            if quota[0] != subject or min(quota[1].quota.of(limit) for limit in Limit) < 0:
                raise Untyped(f"another quota passes for that of {subject}: {quota}")
            if decode_quota(quota_key(subject), encode_quota(quota[1])) != quota:
                raise Untyped("a quota that was read is another one when it is encoded again")
        return
    if data[:1] == b"t":
        found = decode_token(token_key("0123456789ab"), data[1:])
        if not isinstance(found, Unreadable):
            again = decode_token(token_key("0123456789ab"), encode_token(found))
            if again != found or not isinstance(found.principal, Principal) or len(found.hash) != 32:
                raise Untyped("a token that was read is another one when it is encoded again")
        return
    rule = decode_rule(rule_key(GOOD_RULE.id), data[1:])
    if not isinstance(rule, Unreadable) and rule.rule != GOOD_RULE:
        raise Untyped(f"another rule passes for {GOOD_RULE}: {rule.rule}")


def surfaces() -> list[Surface]:
    doors = Doors()
    return [
        Surface("credential", CREDENTIALS, doors.check, close=doors.close),
        Surface("access-record", RECORDS, check_record),
    ]

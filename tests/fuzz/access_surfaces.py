"""What comes with a call, and records of access rules and tokens: whatever they hold, only a credential
that was made here is admitted, no client passes for a broker, and no record is taken for another rule
than it is.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

from google.protobuf.message import Message
from joserfc import jwt
from joserfc.jwk import RSAKey

from ledgermq.errors import CorruptFrame, Unauthorized, Unavailable
from ledgermq.protocol.methods import METHODS, Kind, Method
from ledgermq.protocol.naming.tokens import bearer
from ledgermq_broker.access.door import Door
from ledgermq_broker.access.identity.broker_identity import BrokerCredentials
from ledgermq_broker.access.identity.jwt import Issuer, SignedTokens
from ledgermq_broker.access.state.quotas import Limit, Quota, StoredQuota, Subject
from ledgermq_broker.access.state.records import (
    StoredRule,
    StoredToken,
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
from ledgermq_broker.access.state.rules import Operation, Principal, Rule
from ledgermq_broker.ports.call_metadata import call_metadata
from ledgermq_ledger.format.versioned import Unreadable
from tests.broker.access import RULES, token
from tests.broker.cluster import Cluster, cluster_of
from tests.fuzz.mutation import filled, mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.virtual_time import EPOCH_US, VirtualLoop
from tests.worlds.batches import mutate

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
        self._root = ""

    def check(self, data: bytes) -> None:
        self._run(self._check(data))

    def check_metadata(self, data: bytes) -> None:
        self._run(self._check_metadata(data))

    def check_forwarded(self, data: bytes) -> None:
        self._run(self._check_forwarded(data))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._runner.get_loop().run_until_complete(work)  # `Runner.run` takes longer than the rest

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _door(self) -> Door:
        if self._cluster is None:
            self._cluster = await self._stack.enter_async_context(cluster_of("a:1", "b:1", **RULES))
            await self._open(self._cluster)
        return self._cluster.brokers["a:1"].door

    async def _check(self, data: bytes) -> None:
        door = await self._door()
        await self._admit(door, _with(data, self._good))

    async def _check_metadata(self, data: bytes) -> None:
        """The input: lines of key and value of the metadata of a call, divided by a colon. The key *certified* stands
        for a name in the certificate of the caller; a value that begins with a star is bytes.
        """
        door = await self._door()
        pairs = [_pair(line, self._good) for line in data.split(b"\n")]
        said = call_metadata(_Call(tuple(pair for pair in pairs if pair[0] != "certified")))  # type: ignore[arg-type]
        certified = [str(value) for key, value in pairs if key == "certified"]
        await self._admit(door, said.credential, certified, said.client_id)
        assert not await door.delegate(said.delegate, certified), "no delegates are set"

    async def _check_forwarded(self, data: bytes) -> None:
        """A call as only brokers make it, by a client that may do everything else."""
        door = await self._door()
        method = OF_BROKERS[data[0] % len(OF_BROKERS)] if data else OF_BROKERS[0]
        request = method.decode_request(data[1:])
        if "forwarded" in request.DESCRIPTOR.fields_by_name:
            request.forwarded = True
        api = (await door.admit(bearer(self._root))).api
        try:
            answer = await getattr(api, method.attribute)(request)
        except Unauthorized:
            return
        raise Untyped(f"{method.name} of a client was served as if a broker had sent it: {answer}")

    async def _admit(self, door: Door, text: str, certified: Sequence[str] = (), client_id: str = "") -> None:
        assert self._cluster is not None
        made = text in (bearer(self._good[b"TOKEN"]), bearer(self._good[b"SIGNED"]), self._good[b"BROKER"])
        try:
            principal = (await door.admit(text, certified, client_id)).principal.name
        except (Unauthorized, Unavailable) as error:
            if made:
                raise Untyped(f"a good credential was refused: {error}") from error
            raise
        if not text and certified and principal == f"cert:{certified[0]}":
            return
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

        broker.rules.signed = SignedTokens(ISSUER, broker.context.sources, keys, broker.rules.next_generation)
        following = asyncio.create_task(broker.rules.signed.run())
        self._stack.callback(following.cancel)
        await asyncio.sleep(1)
        self._root = (await token(cluster, "root")).text
        peer: BrokerCredentials = cluster.brokers["b:1"].credentials
        self._good = {
            b"TOKEN": (await token(cluster, "alice")).text,
            b"SIGNED": _signed(),
            b"BROKER": peer.credential("a:1"),
        }


class _Call:
    """The part of gRPC's context that holds the metadata of a call."""

    def __init__(self, pairs: tuple[tuple[str, str | bytes], ...]) -> None:
        self._pairs = pairs

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._pairs


def _pair(line: bytes, good: dict[bytes, str]) -> tuple[str, str | bytes]:
    key, _, value = line.partition(b":")
    text = _with(value.removeprefix(b"*"), good)
    return key.decode("latin-1"), text.encode("latin-1") if value.startswith(b"*") else text


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

METADATA = [
    b"authorization:Bearer TOKEN\nledgermq-client-id:nightly",
    b"authorization:Bearer SIGNED\nledgermq-client-id:x\nuser-agent:grpc",
    b"authorization:BROKER",
    b"certified:billing.example\nledgermq-client-id:nightly",
    b"authorization:Bearer TOKEN\ncertified:billing.example",
    b"authorization:Bearer TOKEN\nauthorization:Bearer TOKEN",
    b"authorization:*Bearer TOKEN",
    b"ledgermq-client-id:*\xff\nauthorization:",
]


def _message_of(method: Method) -> Message | None:
    """An empty request; None for a frame."""
    try:
        found = method.decode_request(b"")
    except CorruptFrame:
        return None
    return found if isinstance(found, Message) else None


OF_BROKERS = tuple(
    method
    for method in METHODS
    if method.kind is Kind.UNARY
    and (request := _message_of(method)) is not None
    and (method.guard.brokers or "forwarded" in request.DESCRIPTOR.fields_by_name)
)
"""Methods for brokers only, and those with requests that brokers pass on."""

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


def _calls() -> list[bytes]:
    return [
        bytes([number]) + filled(type(request)).SerializeToString()
        for number, method in enumerate(OF_BROKERS)
        if (request := _message_of(method)) is not None
    ]


def _spoil_call(rng: random.Random, good: bytes) -> bytes:
    if rng.random() < 0.5:
        return good[:1] + mutate(rng, good[1:], good[1:])
    request: Message = OF_BROKERS[good[0]].decode_request(good[1:])
    mutate_fields(rng, request)
    return good[:1] + request.SerializeToString()


def surfaces() -> list[Surface]:
    doors, metadata, forwarded = Doors(), Doors(), Doors()
    return [
        Surface("credential", CREDENTIALS, doors.check, close=doors.close),
        Surface("call-metadata", METADATA, metadata.check_metadata, close=metadata.close),
        Surface("forwarded-call", _calls(), forwarded.check_forwarded, _spoil_call, close=forwarded.close),
        Surface("access-record", RECORDS, check_record),
    ]

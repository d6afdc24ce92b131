"""Use access rules in tests in virtual time: tokens, rules, and what a call was answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import LedgerMQError, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import Kind, Method
from ledgermq.protocol.naming.tokens import DrawnToken, bearer, draw_token
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, fetch_of, values_of
from tests.virtual_time import virtual_sources

RULES = {"security": "rules", "super_principals": "user:root"}
TOKENS = virtual_sources(4711)


async def token(cluster: Cluster, user: str, *groups: str, expires_ms: int = 0) -> DrawnToken:
    """Create a token at a broker, as whoever holds the root's credentials may."""
    drawn = draw_token(TOKENS)
    request = pb.CreateTokenRequest(
        token_id=drawn.token_id, hash=drawn.hash, user=user, groups=groups, expires_ms=expires_ms
    )
    await next(iter(cluster.brokers.values())).service.create_token(request)
    return drawn


def rule_of(text: str) -> pb.Rule:
    """A rule as its own text: allow user:alice produce,consume orders*"""
    effect, principal, operations, *name = text.split(" ")
    given = name[0] if name else ""
    return pb.Rule(
        deny=effect == "deny",
        principal=principal,
        operations=operations.split(","),
        name=given.removesuffix("*"),
        prefix=given.endswith("*"),
    )


async def change(cluster: Cluster, *, grant: Iterable[str] = (), revoke: Iterable[str] = ()) -> list[str]:
    """Change rules at a broker, as whoever holds the root's credentials may; the ids of those granted."""
    request = pb.ChangeRulesRequest(grant=[rule_of(text) for text in grant], revoke=revoke)
    answer = await next(iter(cluster.brokers.values())).service.change_rules(request)
    return list(answer.granted)


async def call(line: Any, method: Method, request: Any) -> Any:
    """One request and the first answer of a method of any kind; a LedgerMQError that it raised."""
    try:
        if method.kind is Kind.UNARY:
            return await line.ask(method, request)
        requests = request if method.kind is Kind.SERVER_STREAM else _once(request)
        answers = getattr(line, method.attribute)(requests)
        try:
            return await anext(answers)
        finally:
            await answers.aclose()
    except LedgerMQError as error:
        return error


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request


def is_refused(answer: Any) -> bool:
    """Whether the call, or anything in its answer, was refused for want of rights."""
    if isinstance(answer, LedgerMQError):
        return isinstance(answer, Unauthorized)
    return Unauthorized.code in codes_of(answer)


def message_of(given: Any) -> Any:
    """The message of a request or an answer, which may be a frame."""
    return given.header if isinstance(given, Frame) else given


def codes_of(answer: Any) -> Iterable[str]:
    """The codes of all errors in an answer."""
    for field, value in message_of(answer).ListFields():
        if isinstance(value, pb.Error):
            yield value.code
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                yield from codes_of(each)


@asynccontextmanager
async def client_with(cluster: Cluster, secret: str) -> AsyncIterator[ledgermq.Client]:
    connector = InProcessConnector(cluster.network, lambda address: bearer(secret) if secret else "")
    settings = ClientSettings(timeout_s=30, attempt_timeout_s=5)
    sources = virtual_sources(next(cluster.client_seeds))
    async with ledgermq.Client(connector, list(cluster.brokers), settings, sources) as client:
        yield client


async def cluster_values(cluster: Cluster, secret: str, topic: str) -> list[bytes]:
    return values_of(await cluster.line("a:1", secret).fetch_once(fetch_of(topic, 0)))

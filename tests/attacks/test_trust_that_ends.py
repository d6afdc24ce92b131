"""Trust that ends: rights that were revoked while a call waits, tokens that were revoked, and a root with rules
that a broker without the setting serves. And names that a caller may not see, by any answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import ledgermq
from ledgermq.errors import Unauthenticated, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import METHODS, Kind, Method
from tests.attacks.cluster import SLOW_S, Attacked, attacked, line_of, raw_channel
from tests.broker.cluster import fetch_of
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.fuzz.mutation import filled

pytestmark = pytest.mark.slow

WAIT_MS = 25_000
"""Of a long poll."""


def _fetch(topic: str) -> pb.FetchRequest:
    request = fetch_of(topic, 0)
    request.max_wait_ms, request.min_bytes = WAIT_MS, 1
    return request


def _share(topic: str) -> pb.ShareFetchRequest:
    partition = pb.SharePartition(topic=topic, partition=0)
    return pb.ShareFetchRequest(
        group="hands", member_id="m1", partitions=[partition], max_records=10, max_wait_ms=WAIT_MS, lease_ms=600_000
    )


POLLS: dict[str, Callable[[str], Any]] = {"fetch_once": _fetch, "share_fetch": _share}


@pytest.mark.parametrize("ends", ["rule", "token"])
@pytest.mark.parametrize("poll", POLLS)
async def test_a_call_that_waits_gives_no_record_after_the_right_has_ended(
    shared_broker: Attacked, poll: str, ends: str
) -> None:
    """Both waiting calls returned a record that was produced five seconds after the revocation was answered, and
    the queue leased it.
    """
    at, topic, reader = shared_broker, f"prices-{poll}-{ends}".replace("_", "-"), f"reader-{poll}-{ends}"
    async with at.client("root") as root, at.client("victim") as victim, victim.producer() as producer:
        await root.create_topic(topic, 1)
        rule = await root.access.grant(f"user:{reader}", "consume", topic)
        await root.access.grant(f"user:{reader}", "group", "hands")
        at.tokens[reader] = (made := await root.access.create_token(reader)).token
        async with line_of(at, reader) as line:
            waiting = asyncio.create_task(getattr(line, poll)(POLLS[poll](topic)))
            await asyncio.sleep(0.5)  # it waits at the broker; a late one is refused at once, which is as good
            if ends == "rule":
                await root.access.revoke(rule)
            else:
                await root.access.revoke_token(made.token_id)
            await producer.send(topic, b"secret", partition=0)
            try:
                async with asyncio.timeout(SLOW_S):
                    answer = await waiting
            except (Unauthorized, Unauthenticated):
                return
            assert not b"".join(answer.payload), "a record came"


async def test_a_root_with_rules_is_not_served_openly_by_default(tmp_path: Path) -> None:
    """A broker without the setting, on a root that holds rules and tokens, let every program in."""
    async with attacked(tmp_path) as at:
        root_url = at.processes.root_url
        assert await asyncio.to_thread(at.processes.stop, at.broker) == 0
        (tmp_path / "again").mkdir()
        with BrokerProcesses(tmp_path / "again", root_url, QUICK) as processes:
            broker = await asyncio.to_thread(processes.start)
            async with ledgermq.connect(broker.address, timeout_s=SLOW_S) as stranger:
                with pytest.raises(Unauthenticated):
                    await stranger.access.list_tokens()
                with pytest.raises(Unauthenticated):
                    await stranger.list_topics()
            at.broker = broker
            async with at.client("victim") as client:
                assert await client.list_offsets("orders")


HIDDEN, NEAR = "mina-merger-acme", "mine-merger-acme"
"""A topic and a group of others, and a name of mallory's own, one letter off."""


def _named(message: Message) -> None:
    """Put the near name into every field of text."""
    for field, value in list(message.ListFields()):
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                for each in value if field.is_repeated else [value]:
                    _named(each)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                value[:] = [NEAR]
            else:
                setattr(message, field.name, NEAR)


def _request(method: Method) -> bytes:
    request = method.decode_request(b"")
    if isinstance(request, Frame):
        framed = filled(type(request.header))
        _named(framed)
        batches = [getattr(each, "batch", each) for each in framed.batches]
        data = b"x" * sum(batch.length for batch in batches)
        return method.encode_request(Frame(framed, [data]))
    request = filled(type(request))
    _named(request)
    return request.SerializeToString()


async def test_no_answer_of_any_method_shows_a_name_that_its_caller_may_not_see(shared_broker: Attacked) -> None:
    """Five methods said "did you mean 'hidden-merger-acme'?" to a caller that may not see this topic."""
    at = shared_broker
    async with at.client("victim") as client:
        await client.create_topic(HIDDEN, 1)
        async with client.producer() as producer, client.consumer(HIDDEN, group=HIDDEN) as consumer:
            await producer.send(HIDDEN, b"x", partition=0)
            await anext(aiter(consumer))
            await consumer.commit()
    async with raw_channel(at) as channel:
        for method in METHODS:
            answer = await _answer(channel, method, at.metadata("mallory"))
            assert HIDDEN.encode() not in answer, (method.name, answer)


async def _answer(channel: grpc.aio.Channel, method: Method, metadata: Any) -> bytes:
    """All that a caller gets: the first answer, the text and the trailing metadata of the end."""
    request, options = _request(method), {"metadata": metadata, "timeout": 3.0}
    is_unary = method.kind is Kind.UNARY
    if is_unary:
        call = channel.unary_unary(method.path)(request, **options)
    elif method.kind is Kind.SERVER_STREAM:
        call = channel.unary_stream(method.path)(request, **options)
    else:
        call = channel.stream_stream(method.path)(iter([request]), **options)
    found = b""
    try:
        answer = await (call if is_unary else call.read())
        found = answer if isinstance(answer, bytes) else b""
    except grpc.aio.AioRpcError as error:
        found = str(error.details()).encode() + json.dumps(str(error.trailing_metadata())).encode()
    call.cancel()
    return found

"""What a client of the Kafka protocol sends, and what it reads: frames, and each message in each version."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import replace
from functools import cache, partial

from scramp import ScramClient, ScramMechanism

from ledgermq.errors import CorruptFrame, LedgerMQError, Unauthenticated
from ledgermq_broker.kafka.handlers.security.bindings import ALLOW, Acl, acls_of, is_included, rule_of
from ledgermq_broker.kafka.wire.frames import FrameBuffer, read_head, request_frame
from ledgermq_broker.kafka.wire.messages import Api, Message, api_of, read_whole, written
from ledgermq_broker.kafka.wire.primitives import Reader
from ledgermq_broker.kafka.wire.sasl import PLAIN, TOKENS, claim
from ledgermq_broker.kafka.wire.scram import SCRAM, Exchange, Keys
from tests.fuzz.surface import Surface, Untyped
from tests.unit.kafka.drawn_messages import every_message, message

_rng = random.Random(1)


def frame_seeds() -> list[bytes]:
    """Requests of every version, some of them behind each other, each with its number of pieces in the first byte."""
    frames = [
        request_frame(api, version, 7, "client", [message(_rng, kind, version)[1]])
        for api, kind, version in every_message()
        if kind is api.request
    ]
    pairs = [_rng.choice(frames) + _rng.choice(frames) for _ in range(20)]
    return [bytes([n % 7]) + frame for n, frame in enumerate(frames + pairs)]


def check_frames(data: bytes) -> None:
    """Cut a stream into frames in pieces, and read each request."""
    if not data:
        return
    size = max(1, len(data) // (1 + data[0] % 7))
    buffer = FrameBuffer()
    for at in range(1, len(data), size):
        for frame in _only_corrupt(partial(buffer.feed, data[at : at + size])):
            _only_corrupt(partial(_read_request, frame))
        if buffer.held_bytes > 2 * (64 * 1024 + len(data)):
            raise Untyped(f"{buffer.held_bytes} bytes are held for {len(data)} that arrived")


def _read_request(frame: memoryview) -> list[memoryview]:
    head, reader = read_head(frame)
    api = api_of(head.api_key)
    if api is not None and api.reads(head.version):
        read_whole(api.request, reader, head.version)
    return []


def _only_corrupt(work: partial[list[memoryview]]) -> list[memoryview]:
    try:
        return work()
    except CorruptFrame:
        raise
    except LedgerMQError as error:
        raise Untyped(f"not CorruptFrame but {error.code}") from error


def message_seeds() -> list[bytes]:
    """Messages of every version: place in `every_message`, then the bytes."""
    return [
        struct.pack(">H", number) + message(_rng, kind, version)[1]
        for number, (_, kind, version) in enumerate(every_message())
    ]


def spoil_message(rng: random.Random, data: bytes) -> bytes:
    """Keep the kind, and change what follows; sometimes a byte becomes one that is an extreme length."""
    body = bytearray(data[2:])
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(body) + 1)
        if rng.random() < 0.5 and body:
            body[place % len(body)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif rng.random() < 0.5:
            body[place:place] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80" * 6, b"\0"))
        else:
            del body[place : place + rng.choice((1, 2, 8))]
    return data[:2] + bytes(body)


def check_message(data: bytes) -> None:
    """A message that can be read is written again as the same message."""
    if len(data) < 2:
        return
    every = every_message()
    api, kind, version = every[struct.unpack_from(">H", data)[0] % len(every)]
    _check_message(api, kind, version, data[2:])


def _check_message(api: Api, kind: type[Message], version: int, data: bytes) -> None:
    found = read_whole(kind, Reader(data), version)
    again = b"".join(written(found, version))
    if read_whole(kind, Reader(again), version) != found:
        raise Untyped(f"{kind.__name__} {version} is another message after it was written again")


def peak_bytes(data: bytes) -> int:
    """Return the memory that reading an input takes at its peak."""
    tracemalloc.start()
    try:
        check_message(data)
    except CorruptFrame:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def sasl_seeds() -> list[bytes]:
    """Messages of both mechanisms, each behind the number of a mechanism; messages of that mechanism come first."""
    plain = [b"\0user\0token", b"other\0user\0token", b"user\0user\0t\0", b"\0\0"]
    bearer = [
        b"n,,\1auth=Bearer token\1\1",
        b"n,a=user=2Cx,\1host=h\1auth=bearer token\1\1",
        b"y,,\1auth=Bearer \1\1",
        b"n,,\1auth=Bearer a\1auth=Bearer b\1\1",
    ]
    return [
        bytes([number]) + text
        for number, mechanism in enumerate(TOKENS)
        for text in (plain + bearer if mechanism == PLAIN else bearer + plain)
    ]


def check_sasl(data: bytes) -> None:
    """What a client proves itself with is a token of one line, or refused without a word of it."""
    if not data:
        return
    try:
        found = claim(TOKENS[data[0] % len(TOKENS)], data[1:])
    except Unauthenticated as error:
        if len(error.message) > 200:
            raise Untyped("a refusal repeats what was sent") from None
        raise
    if not found.token or not (found.token.isascii() and found.token.isprintable()):
        raise Untyped(f"{found} is no claim")


@cache
def keys_of_ann(mechanism: str) -> Keys:
    salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
        "secret", iteration_count=4096, salt=b"s" * 16
    )
    return Keys(salt, iterations, stored_key, server_key)


@cache
def proof(mechanism: str) -> tuple[bytes, bytes]:
    """Return the first and the final message of the only client that knows the password."""
    client = ScramClient([mechanism], "ann", "secret", c_nonce="abc")
    first = client.get_client_first()
    exchange = Exchange(mechanism, lambda user: keys_of_ann(mechanism), "server")
    client.set_server_first(exchange.first(first.encode()).decode())
    return first.encode(), client.get_client_final().encode()


def scram_seeds() -> list[bytes]:
    """The mechanism in a byte, then the client's first and final message with a NUL between."""
    proofs = [bytes([number]) + b"\0".join(proof(mechanism)) for number, mechanism in enumerate(SCRAM)]
    firsts = [
        b"n,,n=ann,r=abc",
        b"y,,n=a=2Cb,r=abc",
        b"n,a=ann,n=ann,r=abc,tokenauth=true",
        b"p=tls-unique,,n=ann,r=abc",
    ]
    finals = [
        b"c=biws,r=abcserver,p=AAAA",
        b"c=eSws,r=abcserver,x=y,p=" + b"A" * 43 + b"=",
        b"c=biws,r=abc,p=AAAA",
        b"c=,p=",
    ]
    return proofs + [
        bytes([number]) + first + b"\0" + final for number in range(2) for first in firsts for final in finals
    ]


def check_scram(data: bytes) -> None:
    """Nobody proves a password by chance, and a refusal is short and shows no key."""
    if not data:
        return
    mechanism = SCRAM[data[0] % 2]
    first, _, final = data[1:].partition(b"\0")
    exchange = Exchange(mechanism, lambda user: keys_of_ann(mechanism), "server")
    try:
        challenge = exchange.first(first)
        if not exchange.user or b"server" not in challenge:
            raise Untyped(f"{challenge!r} challenges nobody")
        answer = exchange.final(final)
        if (first, final) != proof(mechanism):
            raise Untyped(f"{answer!r} was proved by chance")
    except Unauthenticated as error:
        if len(error.message) > 1000:
            raise Untyped("a refusal repeats what was sent") from None
        raise


def acl_seeds() -> list[bytes]:
    """Resource, pattern, operation and permission, a byte each; then name, principal and host with NUL between."""
    return [
        bytes([resource, pattern, operation, ALLOW]) + f"{name}\0{principal}\0*".encode()
        for resource, operation in ((2, 2), (2, 3), (2, 10), (3, 3), (3, 8), (4, 7), (5, 4))
        for pattern, name in ((3, "*"), (3, "my group"), (4, "orders."), (4, "__kaf"), (3, "kafka-cluster"))
        for principal in ("User:ann", "User:*", "group:sales")
    ]


def check_acl(data: bytes) -> None:
    """An ACL that is taken is a rule that shows it again, and no other one."""
    if len(data) < 4:
        return
    name, principal, host, *_ = (data[4:].decode(errors="replace") + "\0\0").split("\0")
    given = Acl(data[0] % 10, name, data[1] % 6, principal, host, data[2] % 18, data[3] % 5)
    is_included(given, ())
    rule = rule_of(given)
    shown = acls_of(rule)
    if [replace(one, operation=given.operation) for one in shown] != [given] or rule_of(shown[0]) != rule:
        raise Untyped(f"{given} became {rule}, which is shown as {shown}")


def surfaces() -> list[Surface]:
    return [
        Surface("kafka-frames", frame_seeds(), check_frames, weight=2),
        Surface("kafka-sasl", sasl_seeds(), check_sasl),
        Surface("kafka-scram", scram_seeds(), check_scram),
        Surface("kafka-acls", acl_seeds(), check_acl),
        Surface("kafka-messages", message_seeds(), check_message, spoil_message, weight=3),
    ]

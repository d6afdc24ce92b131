"""What the messages of SASL say, and that nothing but a refusal comes of any other bytes."""

from __future__ import annotations

import random

import pytest

from ledgermq.errors import Unauthenticated
from ledgermq_broker.kafka.wire.sasl import OAUTHBEARER, PLAIN, TOKENS, Claim, claim


@pytest.mark.parametrize(
    ("mechanism", "data", "wanted"),
    [
        (PLAIN, b"\0ann\0lmq_x", Claim("lmq_x")),
        (PLAIN, b"ann\0ann\0lmq_x", Claim("lmq_x")),  # kafka-python, aiokafka
        (PLAIN, b"bob\0ann\0lmq_x", Claim("lmq_x", "bob")),
        (PLAIN, b"\0\0lmq_x", Claim("lmq_x")),
        (OAUTHBEARER, b"n,,\x01auth=Bearer a.b.c\x01\x01", Claim("a.b.c")),
        (OAUTHBEARER, b"n,a=bob,\x01auth=bearer a.b.c\x01traceId=7\x01\x01", Claim("a.b.c", "bob")),
        (OAUTHBEARER, b"n,a=b=2Cb,\x01auth=Bearer a.b.c\x01\x01", Claim("a.b.c", "b,b")),
    ],
)
def test_a_message_says_its_token(mechanism: str, data: bytes, wanted: Claim) -> None:
    assert claim(mechanism, data) == wanted


@pytest.mark.parametrize(
    ("mechanism", "data"),
    [
        (PLAIN, b""),
        (PLAIN, b"ann\0lmq_x"),
        (PLAIN, b"\0ann\0"),
        (PLAIN, b"\0ann\0lmq_x\0more"),
        (PLAIN, b"\0ann\0lmq\r\nx"),
        (PLAIN, b"\0ann\0\xff"),
        (PLAIN, "\0ann\0lmq_é".encode()),
        (OAUTHBEARER, b""),
        (OAUTHBEARER, b"n,,"),
        (OAUTHBEARER, b"n,,\x01auth=Bearer a.b.c"),
        (OAUTHBEARER, b"n,,\x01auth=Bearer a.b.c\x01"),
        (OAUTHBEARER, b"n,,\x01auth=Bearer \x01\x01"),
        (OAUTHBEARER, b"n,,\x01auth=Basic a.b.c\x01\x01"),
        (OAUTHBEARER, b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01"),
        (OAUTHBEARER, b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01"),
        (OAUTHBEARER, b"n,bob,\x01auth=Bearer a.b.c\x01\x01"),
    ],
)
def test_everything_else_is_refused(mechanism: str, data: bytes) -> None:
    with pytest.raises(Unauthenticated):
        claim(mechanism, data)


def test_any_bytes_are_a_claim_or_a_refusal() -> None:
    rng = random.Random(7)
    pieces = [b"\0", b"\x01", b"n,", b"a=", b",", b"auth=", b"Bearer ", b"lmq_x", b"\xff", b"=2C", b"ann"]
    for _ in range(20_000):
        data = b"".join(rng.choices(pieces, k=rng.randrange(12)))
        for mechanism in TOKENS:
            try:
                found = claim(mechanism, data)
            except Unauthenticated:
                continue
            assert found.token
            assert found.token.isprintable()


def test_a_token_is_in_no_text_of_a_claim() -> None:
    assert "lmq_secret" not in repr(claim(PLAIN, b"\0ann\0lmq_secret"))

"""The client's side of SCRAM, by RFC 5802 alone, and what a program sends to set a password."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from ledgermq_broker.kafka.wire.generated import alter_user_scram_credentials_request as al
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_request as sa
from ledgermq_broker.kafka.wire.generated import sasl_handshake_request as sh
from ledgermq_broker.kafka.wire.messages import ALTER_USER_SCRAM_CREDENTIALS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.kafka_world import KafkaClient

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
NUMBERS = {SHA_256: 1, SHA_512: 2}
SALT = b"0123456789abcdefghij"


def _hash(mechanism: str) -> str:
    return {SHA_256: "sha256", SHA_512: "sha512"}[mechanism]


def upsertion(
    user: str, password: str, mechanism: str = SHA_256, iterations: int = 4096, salt: bytes = SALT
) -> al.ScramCredentialUpsertion:
    salted = hashlib.pbkdf2_hmac(_hash(mechanism), password.encode(), salt, iterations)
    return al.ScramCredentialUpsertion(user, NUMBERS[mechanism], iterations, salt, salted)


async def alter(client: KafkaClient, *changes: Any) -> dict[str, int]:
    """Set and remove passwords; return the code of each user."""
    request = al.AlterUserScramCredentialsRequest(
        deletions=[one for one in changes if isinstance(one, al.ScramCredentialDeletion)],
        upsertions=[one for one in changes if isinstance(one, al.ScramCredentialUpsertion)],
    )
    answer = await client.call(ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    return {one.user: one.error_code for one in answer.results}


class Proof:
    """One proof of a password. `signature`: what the broker has to answer, if it knows the password, too."""

    def __init__(self, user: str, password: str, mechanism: str = SHA_256, acts_as: str = "") -> None:
        self.mechanism, self.password = mechanism, password
        self.head = f"n,{f'a={acts_as}' if acts_as else ''},"
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=fyko+d2lbbFgONRv9qkxdawL"
        self.signature = b""

    @property
    def first(self) -> bytes:
        return (self.head + self.bare).encode()

    def final(self, challenge: bytes) -> bytes:
        name, said = _hash(self.mechanism), dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(name, self.password.encode(), base64.b64decode(said["s"]), int(said["i"]))
        without = f"c={base64.b64encode(self.head.encode()).decode()},r={said['r']}"
        text = f"{self.bare},{challenge.decode()},{without}".encode()
        key = hmac.digest(salted, b"Client Key", name)
        signed = hmac.digest(hashlib.new(name, key).digest(), text, name)
        proof = bytes(a ^ b for a, b in zip(key, signed, strict=True))
        self.signature = b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), text, name))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


async def prove(client: KafkaClient, proof: Proof) -> int:
    """Prove a password; return the code of the last answer."""
    handshake = await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(proof.mechanism))
    if handshake.error_code:
        return int(handshake.error_code)
    challenge = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(proof.first))
    if challenge.error_code:
        return int(challenge.error_code)
    final = proof.final(bytes(challenge.auth_bytes))
    answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(final))
    if not answer.error_code:
        assert bytes(answer.auth_bytes) == proof.signature, "the broker knows what proves the password, too"
    return int(answer.error_code)

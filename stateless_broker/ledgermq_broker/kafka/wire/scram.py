"""The messages of SCRAM (RFC 5802, RFC 7677), by which a client proves a password without sending it. Pure.

    client     n,,n=USER,r=NONCE
    broker     r=NONCE and more, s=SALT, i=ITERATIONS
    client     c=biws,r=…,p=PROOF
    broker     v=SIGNATURE: it knows what proves the password, too

The rules of the messages are scramp's, which is maintained and serves both sides; pysasl has no SCRAM. It is loaded
with the first client that needs it. No channel binding and no other name to act as: Kafka clients have neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ledgermq.errors import Unauthenticated

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MESSAGE_BYTES_MAX = 4096


class Keys(NamedTuple):
    """What is stored of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class Exchange:
    """One proof: `first`, then `final`. `keys_of(user)`: of a user; a user who has none gets such that nothing proves.
    `nonce`: printable ASCII without commas, not used before.
    """

    def __init__(self, mechanism: str, keys_of: Callable[[str], Keys], nonce: str) -> None:
        from scramp import ScramMechanism

        self.user = ""
        self._mechanism = mechanism
        self._keys_of = keys_of
        self._server: Any = ScramMechanism(mechanism).make_server(self._found, s_nonce=nonce)

    def first(self, data: bytes) -> bytes:
        """Take the client's first message, and return the answer. Raises Unauthenticated, and what `keys_of` raises."""
        return self._step(self._text(data), self._server.set_client_first, self._server.get_server_first)

    def final(self, data: bytes) -> bytes:
        """Take the client's proof, and return the broker's. Raises Unauthenticated."""
        return self._step(self._text(data), self._server.set_client_final, self._server.get_server_final)

    def _found(self, user: object) -> tuple[bytes, bytes, bytes, int]:
        self.user = str(user)
        keys = self._keys_of(self.user)
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations

    def _text(self, data: bytes) -> str:
        try:
            if len(data) <= MESSAGE_BYTES_MAX:
                return data.decode()
        except UnicodeDecodeError:
            pass
        raise Unauthenticated(f"a message of {self._mechanism} is UTF-8, of at most {MESSAGE_BYTES_MAX} bytes")

    def _step(self, text: str, take: Callable[[str], None], answer: Callable[[], str]) -> bytes:
        from scramp import ScramException

        try:
            take(text)
            return answer().encode()
        except (ScramException, ValueError) as error:
            whom = f"user {self.user[:100]!r} failed by" if self.user else "failed by"
            raise Unauthenticated(f"{whom} {self._mechanism}: wrong password, or no such user ({error})") from None

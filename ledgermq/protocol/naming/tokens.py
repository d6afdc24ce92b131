"""Draw static tokens, and carry credentials in the metadata of calls.

    lmq_<id, 12 characters>_<secret, 43 characters>

A token is drawn by the client that creates it. Brokers get its SHA-256, which is enough to
recognize it: the secret has 256 random bits, which cannot be found by trying. The id is no secret; it
names the token in lists, logs and revocations.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources

AUTHORIZATION = "authorization"
"""The key of a credential in the metadata of a call."""
BEARER = "Bearer "
CREDENTIAL_CHARS_MAX = 8192
HASH_BYTES = 32

_ID_BYTES, _SECRET_BYTES = 6, 32
_TOKEN = re.compile(r"lmq_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
_ID = re.compile(r"[0-9a-f]{12}\Z")
_SENDABLE = re.compile(r"[\x21-\x7e]+\Z")


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """`text`: the token, which is shown once and stored nowhere."""

    token_id: str
    text: str = field(repr=False)
    hash: bytes


def draw_token(sources: Sources) -> DrawnToken:
    """Draw a token. Outside of simulations the randomness of `sources` is the system's, which is fit for
    secrets.
    """
    token_id = sources.random.getrandbits(8 * _ID_BYTES).to_bytes(_ID_BYTES, "big").hex()
    secret = sources.random.getrandbits(8 * _SECRET_BYTES).to_bytes(_SECRET_BYTES, "big")
    text = f"lmq_{token_id}_{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"
    return DrawnToken(token_id, text, hash_of(text))


def hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def token_id_of(token: str) -> str | None:
    """Return the id in a static token; None if the text is not a static token."""
    found = _TOKEN.match(token)
    return found[1] if found else None


def is_token_id(text: str) -> bool:
    return _ID.match(text) is not None


def bearer(token: str) -> str:
    """Return the credential that a call carries. Raises InvalidConfig for a text that is no token; the
    error does not show it.
    """
    if len(token) > CREDENTIAL_CHARS_MAX:
        raise InvalidConfig(f"a token has at most {CREDENTIAL_CHARS_MAX} characters, this one has {len(token)}")
    if not _SENDABLE.match(token):
        raise InvalidConfig("a token is one word of ASCII letters, digits and signs, without spaces")
    return BEARER + token

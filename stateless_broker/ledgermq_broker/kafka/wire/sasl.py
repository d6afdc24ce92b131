"""What clients of the Kafka protocol prove themselves with: the mechanisms of SASL, and the messages of those that
carry a token. Pure.

PLAIN         [authzid] NUL authcid NUL password        RFC 4616; the password is a token
OAUTHBEARER   n,[a=authzid],^A auth=Bearer TOKEN ^A [name=value ^A]… ^A    RFC 7628; one message
SCRAM-SHA-256, SCRAM-SHA-512         see `scram`
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.errors import Unauthenticated
from ledgermq_broker.kafka.wire.scram import SCRAM

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
TOKENS = (OAUTHBEARER, PLAIN)
MECHANISMS = (*TOKENS, *SCRAM)
SEPARATOR = "\x01"


@dataclass(frozen=True, slots=True)
class Claim:
    """`acts_as`: the name as which the client wants to act; "" for its own."""

    token: str = field(repr=False)
    acts_as: str = ""


def claim(mechanism: str, data: bytes) -> Claim:
    """Return what a client's message says. Raises Unauthenticated."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Unauthenticated(f"the message of {mechanism} is not UTF-8") from None
    found = _plain(text) if mechanism == PLAIN else _bearer(text)
    if not found.token:
        raise Unauthenticated(f"the message of {mechanism} holds no token")
    if not found.token.isascii() or not found.token.isprintable():
        raise Unauthenticated("a token has printable ASCII characters only")
    return found


def _plain(text: str) -> Claim:
    parts = text.split("\0")
    if len(parts) != 3:
        raise Unauthenticated("the message of PLAIN has three parts: a name to act as, a user name, a password")
    acts_as, user, password = parts
    return Claim(password, "" if acts_as == user else acts_as)


def _bearer(text: str) -> Claim:
    head, *pairs = text.split(SEPARATOR)
    flag, _, rest = head.partition(",")
    if flag not in ("n", "y") or not rest.endswith(",") or pairs[-2:] != ["", ""]:
        raise Unauthenticated("the message of OAUTHBEARER is not as RFC 7628 says")
    acts_as = rest[:-1]
    if acts_as and not acts_as.startswith("a="):
        raise Unauthenticated("the message of OAUTHBEARER is not as RFC 7628 says")
    found = [value for name, _, value in (pair.partition("=") for pair in pairs) if name == "auth"]
    if len(found) != 1 or found[0][:7].lower() != "bearer ":
        raise Unauthenticated("the message of OAUTHBEARER carries exactly one auth=Bearer TOKEN")
    return Claim(found[0][7:].strip(), acts_as[2:].replace("=2C", ",").replace("=3D", "="))

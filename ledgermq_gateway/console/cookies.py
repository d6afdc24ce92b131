"""The cookie of the console: a caller's token, sealed, with the time at which it ends. Pure, but for the key's file.

A cookie goes to each program on its host name, whatever the port, so it must not be a token that brokers take. Nothing
is stored in the gateway: any gateway with the same key opens it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ledgermq.client.connection.credentials import others_may_use
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.log import get_log
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import Proof

COOKIE = "__Host-ledgermq"
"""The prefix makes browsers refuse it without Secure and Path=/, and from other hosts of the domain."""
TOKEN_CHARS_MAX = 2_800
LASTS_S = 43_200
KEY_BYTES = 32
NONCE_BYTES = 12
_VERSION = b"ledgermq-console-1"
_HEXADECIMAL = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}\Z")
_log = get_log("ledgermq.gateway")
_ATTRIBUTES = "HttpOnly; Secure; SameSite=Strict; Path=/"


class Cookies:
    """Seals and opens tokens. `draw(count)` returns random bytes that cannot be guessed."""

    def __init__(self, key: bytes, draw: Callable[[int], bytes]) -> None:
        self._cipher = AESGCM(key)
        self._draw = draw

    def sealed(self, token: str, now_ms: int) -> str:
        """Return the header Set-Cookie for a token. Raises Problem for one that is too long."""
        if len(token) > TOKEN_CHARS_MAX:
            raise Problem(
                "INVALID_REQUEST",
                f"the token has more than {TOKEN_CHARS_MAX} characters, too many for a cookie: the page keeps it in its"
                " memory until it is closed",
            )
        nonce = self._draw(NONCE_BYTES)
        ends = (now_ms + LASTS_S * 1000).to_bytes(8, "big")
        value = urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, ends + token.encode("ascii"), _VERSION))
        return f"{COOKIE}={value.decode()}; {_ATTRIBUTES}; Max-Age={LASTS_S}"

    def opened(self, value: str) -> Proof:
        """Return what a cookie proves until it is over. Raises Problem (401) for one that this key has not sealed."""
        try:
            sealed = urlsafe_b64decode(value.encode("ascii"))
            plain = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _VERSION)
        except (InvalidTag, ValueError):
            raise Problem(
                "UNAUTHENTICATED", "sign in again: this gateway has not made the cookie", status=401
            ) from None
        return Proof(plain[8:].decode("ascii"), int.from_bytes(plain[:8], "big"))


def ended() -> str:
    """Return the header Set-Cookie that drops the cookie."""
    return f"{COOKIE}=; {_ATTRIBUTES}; Max-Age=0"


def cookie_of(header: str) -> str:
    """Return the console's cookie in a Cookie header, "" for none. Raises Problem for two: one was planted."""
    found = [value for name, _, value in (part.strip().partition("=") for part in header.split(";")) if name == COOKIE]
    if len(found) > 1:
        raise Problem("MALFORMED", f"the cookie {COOKIE} is given twice: delete the cookies of this host")
    return found[0] if found else ""


def key_of(path: str, draw: Callable[[int], bytes]) -> bytes:
    """Return the key in a file (32 bytes, or 64 hexadecimal digits); without a file a new one. Raises InvalidConfig."""
    if not path:
        return draw(KEY_BYTES)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        if _HEXADECIMAL.match(path):  # neither the text nor its cause may repeat it
            raise InvalidConfig(
                "console_key_file is given a key itself: give the path of a file that holds it"
            ) from None
        raise InvalidConfig(f"console_key_file {path}: {error.strerror or error}") from error
    if others_may_use(Path(path)):
        _log.warning("other users of this machine may read the key of the console, %s: chmod 600", path)
    if len(data) == KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(
            f"console_key_file {path}: it must hold {KEY_BYTES} random bytes, or twice as many hexadecimal digits:"
            f" openssl rand -hex {KEY_BYTES}"
        )
    return key

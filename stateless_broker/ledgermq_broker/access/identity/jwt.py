"""Recognize callers by the signed tokens (JWT) of an identity provider (decision 47).

The provider's public keys (JWKS) are fetched in the background, never in a call. A call whose token
names an unknown key asks for them to be fetched again soon, at most every `ASKED_AGAIN_AFTER_S`, and
is answered with Unavailable until then: the provider may have begun to use a new key. While the
provider does not answer, the keys that are known stay, for `KEPT_S` at most.

A key that the provider no longer publishes ends the tokens that it has signed, also those that this
broker has accepted before, within `FETCHED_AGAIN_AFTER_S` and the time of a fetch: removing a key is how
an operator ends a stolen one.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from joserfc import jwk, jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import ECKey, Key, KeySet, RSAKey

from ledgermq.errors import InvalidConfig, Unauthenticated, Unavailable
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from ledgermq_broker.access.state.rules import GROUPS_MAX, NAME_CHARS_MAX, Principal, checked_user
from ledgermq_broker.logs import get_logger
from ledgermq_broker.settings.sources import shown

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
"""Signatures by a private key only: with a shared secret, every broker could make tokens."""
SKEW_S = 60
"""How much the clocks of the provider and of this machine may differ."""
FETCHED_AGAIN_AFTER_S = 45.0
ASKED_AGAIN_AFTER_S = 30.0
RETRIED_AFTER_S = 30.0
KEPT_S = 24 * 3600.0
FETCH_S_MAX = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
KEYS_MAX = 100
RSA_BITS_MIN = 2048
DISCOVERY = "/.well-known/openid-configuration"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the body of a successful GET of a URL. Raises OSError, TimeoutError, ValueError."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Issuer:
    """`url`: the claim `iss` of the tokens. `keys_url`: "" to find it by the provider's discovery document.
    `groups_claim`: the claim with the groups of the caller.
    """

    url: str
    audience: str
    keys_url: str = ""
    groups_claim: str = "groups"

    def __post_init__(self) -> None:
        if not self.audience:
            raise InvalidConfig("jwt_issuer needs jwt_audience: otherwise tokens for any program of the issuer count")
        _check_url("jwt_keys_url" if self.keys_url else "jwt_issuer", self.keys_url or self.url)


class SignedTokens:
    """Check tokens of one issuer. `run` follows its keys and calls `changed` when the set is another one."""

    def __init__(
        self, issuer: Issuer, sources: Sources, fetch: Fetch, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._issuer = issuer
        self._sources = sources
        self._fetch = fetch
        self._keys = KeySet([])
        self._published: frozenset[str] = frozenset()
        """Thumbprints (RFC 7638) of the keys in `_keys`."""
        self._fetched_s = float("-inf")
        """When the last fetch began that was answered."""
        self._asked_s = float("-inf")
        self._wanted = asyncio.Event()
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: sources.now_ms() // 1000,
            leeway=SKEW_S,
            iss={"essential": True, "value": issuer.url},
            aud={"essential": True, "value": issuer.audience},
            sub={"essential": True},
            exp={"essential": True},
        )

    async def run(self) -> None:
        """Fetch the keys now and again, until cancelled."""
        while True:
            self._wanted.clear()
            fetched = await self._fetch_keys()
            # No jitter: brokers start at different times, and a provider serves thousands of such requests.
            await wait_for(self._wanted, FETCHED_AGAIN_AFTER_S if fetched else RETRIED_AFTER_S)

    def principal(self, token: str) -> Principal:
        """Return the caller that a token proves. Raises Unauthenticated, which shows nothing of the token;
        Unavailable while the provider's keys are not known.
        """
        now_s = asyncio.get_running_loop().time()
        if self._unknown(now_s):
            self._want(now_s)
            raise Unavailable("the keys of the identity provider are not known yet", retry_after_ms=1000)
        try:
            decoded = jwt.decode(token, self._keys, algorithms=ALGORITHMS)
            self._claims.validate(decoded.claims)
            return self._principal(decoded.claims, self._keys.get_by_kid(decoded.header.get("kid")))
        except InvalidKeyIdError:
            if self._want(now_s):
                raise Unavailable(
                    "the token names a key that is not known yet; the keys are fetched again", retry_after_ms=1000
                ) from None
            raise Unauthenticated("the token is signed by a key that the identity provider does not publish") from None
        except ExpiredTokenError:
            raise Unauthenticated("the token has expired: get a new one") from None
        except JoseError as error:
            raise Unauthenticated(f"the token is not valid here ({error.error})") from None
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise Unauthenticated("the token is not a signed JSON web token") from None

    def check(self, signing_key: str) -> None:
        """Check that the provider still publishes the key that signed an accepted token.

        `signing_key`: the thumbprint that `principal` noted. Raises Unauthenticated; Unavailable while the
        provider's keys are not known.
        """
        if self._unknown(asyncio.get_running_loop().time()):
            raise Unavailable("the keys of the identity provider are not known", retry_after_ms=1000)
        if signing_key not in self._published:
            raise Unauthenticated(
                "the identity provider no longer publishes the key that signed the token: get a new token"
            )

    def _principal(self, claims: dict[str, Any], key: Key) -> Principal:
        subject, groups = claims["sub"], claims.get(self._issuer.groups_claim, [])
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            groups = []
        if len(groups) > GROUPS_MAX:
            raise Unauthenticated(f"the token names {len(groups)} groups; at most {GROUPS_MAX} are allowed")
        named = frozenset(group for group in groups if 0 < len(group) <= NAME_CHARS_MAX)
        return Principal(
            f"jwt:{checked_user(subject, 'subject')}",
            named,
            signing_key=key.thumbprint(),
            expires_ms=(claims["exp"] + SKEW_S) * 1000,
        )

    def _want(self, now_s: float) -> bool:
        """Ask for the keys; return whether they may be fetched again for this."""
        if now_s - self._asked_s < ASKED_AGAIN_AFTER_S:
            return self._fetched_s < self._asked_s  # no fetch that began after the question is done
        self._asked_s = now_s
        self._wanted.set()
        return True

    def _unknown(self, now_s: float) -> bool:
        return now_s - self._fetched_s > KEPT_S

    async def _fetch_keys(self) -> bool:
        """Fetch the keys; return whether that was possible. What was known stays otherwise."""
        began_s = asyncio.get_running_loop().time()
        try:
            keys = keys_of(await self._fetch(await self._keys_url()))
        except (OSError, TimeoutError, ValueError) as error:
            log.warning("keys of the identity provider not fetched", issuer=shown(self._issuer.url), error=str(error))
            return False
        if self._unknown(began_s):
            self._asked_s = float("-inf")  # those who waited for the first keys did not ask for newer ones
        self._keys, self._fetched_s = keys, began_s
        published = frozenset(key.thumbprint() for key in keys)
        if published != self._published:
            self._published = published
            self._changed()
        return True

    async def _keys_url(self) -> str:
        if self._issuer.keys_url:
            return self._issuer.keys_url
        found = json.loads(await self._fetch(self._issuer.url.rstrip("/") + DISCOVERY))
        if not isinstance(found, dict) or found.get("issuer") != self._issuer.url:
            raise ValueError("the discovery document is of another issuer")
        url = found.get("jwks_uri")
        if not isinstance(url, str):
            raise ValueError("the discovery document names no keys")
        try:
            _check_url("jwks_uri", url)
        except InvalidConfig as error:
            raise ValueError(error.message) from None
        return url


def keys_of(body: bytes) -> KeySet:
    """Return the keys of a JWKS document that may sign tokens. Raises ValueError if there is none."""
    found = json.loads(body)
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the answer is no set of keys")
    keys: list[Any] = []
    for entry in entries[:KEYS_MAX]:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC") or entry.get("use", "sig") != "sig":
            continue
        with suppress(JoseError, ValueError, TypeError, KeyError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that are too short, which are left out below
            key = jwk.import_key(entry)
            if isinstance(key, ECKey) or (isinstance(key, RSAKey) and key.public_key.key_size >= RSA_BITS_MIN):
                keys.append(key)
    if not keys:
        raise ValueError("the set holds no RSA or EC key for signatures")
    return KeySet(keys)


async def fetch_by_http(url: str) -> bytes:
    """Return the body of a URL. Raises OSError, TimeoutError, ValueError."""
    import aiohttp  # late: only brokers with an identity provider need it here

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S_MAX)) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ValueError(f"{shown(url)} answered with status {answer.status}")
            body = await answer.content.read(ANSWER_BYTES_MAX + 1)
            while len(body) <= ANSWER_BYTES_MAX and (more := await answer.content.read(ANSWER_BYTES_MAX)):
                body += more
    except aiohttp.ClientError as error:
        raise OSError(f"{shown(url)}: {shown(str(error))}") from error
    if len(body) > ANSWER_BYTES_MAX:
        raise ValueError(f"{shown(url)} answered with more than {ANSWER_BYTES_MAX} bytes")
    return body


def _check_url(name: str, url: str, plain: Collection[str] = _LOOPBACK) -> None:
    """Raise InvalidConfig unless the URL is https, or http of this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = None, None
    if parts is None or not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in plain)):
        raise InvalidConfig(
            f"{name}: give an https:// URL, not {shown(url)!r}: keys that came by plain HTTP prove nothing"
        )

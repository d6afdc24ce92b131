"""Prove that a call comes from a broker of this cluster, without certificates.

A broker draws a key pair when it starts, and announces the public half in its heartbeat. A process
that may write heartbeats may claim bundles anyway, so a signature by that key is as good a proof as
the cluster has (decision 44). Each call to another broker carries a credential:

    LedgerMQ-Broker base64url(JSON of [broker id, session, address that is called, time in ms]).base64url(signature)

It is for one address, for `LIFE_MS` around its time, which is the store's (brokers compare no clocks of
machines), and for the process that made it: it ends when the broker's heartbeat shows another session.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledgermq.errors import LedgerMQError, Unauthenticated, Unavailable
from ledgermq.sources import Sources
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.cluster.membership import Membership
from ledgermq_ledger import keys

SCHEME = "LedgerMQ-Broker "
KIND = "broker:"
"""Names of brokers as principals begin with it."""
LIFE_MS = 180_000
SIGNED_AGAIN_AFTER_S = 30.0
READS_PER_S_MAX = 10
"""Heartbeats that are read for callers whom the last look did not show, so that forged credentials cost the store
no more than that.
"""

StoreTime = Callable[[], int | None]
"""Estimates the store's time, in microseconds since the epoch; None: there is no estimate yet."""


class KeyPair:
    def __init__(self, sources: Sources) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(sources.random.getrandbits(256).to_bytes(32, "big"))
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


class BrokerCredentials:
    """Make the credentials of this broker's calls."""

    def __init__(self, pair: KeyPair, membership: Membership, store_time: StoreTime) -> None:
        self._pair = pair
        self._membership = membership
        self._store_time = store_time
        self._made: dict[str, tuple[float, str]] = {}

    def credential(self, address: str) -> str:
        """Return the credential for calls to the broker at `address`."""
        now_s = asyncio.get_running_loop().time()
        made_s, text = self._made.get(address, (float("-inf"), ""))
        if now_s - made_s >= SIGNED_AGAIN_AFTER_S:
            self._made = {a: made for a, made in self._made.items() if now_s - made[0] < SIGNED_AGAIN_AFTER_S}
            text = self._signed(address)
            self._made[address] = (now_s, text)
        return text

    def _signed(self, address: str) -> str:
        me = self._membership.me
        body = json.dumps([me.broker, me.session, address, (self._store_time() or 0) // 1000]).encode()
        return f"{SCHEME}{_text(body)}.{_text(self._pair.sign(body))}"


class BrokerProofs:
    """Check the credentials of other brokers' calls to this one."""

    def __init__(self, membership: Membership, store_time: StoreTime) -> None:
        self._membership = membership
        self._store_time = store_time
        self._reads_s: deque[float] = deque(maxlen=READS_PER_S_MAX)

    def is_over(self, principal: Principal) -> bool:
        """Return whether another process has taken the place of the broker that proved itself."""
        member = self._membership.members.get(principal.name.removeprefix(KIND))
        found = member.heartbeat if member is not None else None
        return found is not None and found.session != principal.session

    async def principal(self, credential: str) -> tuple[Principal, int]:
        """Return the broker that made the credential, and for how many ms the credential still counts. Raises
        Unauthenticated, and Unavailable if the store does not show the broker's heartbeat now.
        """
        try:
            body, _, signature = credential.removeprefix(SCHEME).partition(".")
            signed = _bytes(body)
            broker, session, address, made_ms = json.loads(signed)
            if not (isinstance(broker, str) and isinstance(session, str) and type(made_ms) is int):
                raise ValueError("not a credential of a broker")
            proof = _bytes(signature)
        except (ValueError, TypeError, RecursionError):
            raise Unauthenticated("the credential is not one that a broker makes") from None
        me = self._membership.me
        if address not in (me.address, me.peer_address or me.address):
            raise Unauthenticated(f"the credential of broker {broker[:64]} is for another address than {me.address}")
        now_us = self._store_time()
        if now_us is None:
            raise Unavailable("this broker is starting, and does not know the time yet", retry_after_ms=200)
        if abs(now_us // 1000 - made_ms) > LIFE_MS:
            raise Unauthenticated(f"the credential of broker {broker[:64]} is too old")
        await self._check(broker, session, signed, proof)
        principal = Principal(f"{KIND}{broker}", is_broker=True, session=session)
        return principal, LIFE_MS + made_ms - now_us // 1000

    def _check_reads(self, broker: str, session: str) -> None:
        """Count a read of a heartbeat. Raises Unavailable where there were too many."""
        member = self._membership.members.get(broker)
        known = member.heartbeat if member is not None else None
        if known is not None and known.session == session:
            return
        now_s = asyncio.get_running_loop().time()
        if len(self._reads_s) == READS_PER_S_MAX and now_s - self._reads_s[0] < 1.0:
            raise Unavailable(f"broker {broker[:64]} is not known here yet; retry", retry_after_ms=500)
        self._reads_s.append(now_s)

    async def _check(self, broker: str, session: str, signed: bytes, proof: bytes) -> None:
        if keys.parse_broker(keys.broker(broker)) is None:
            raise Unauthenticated(f"the credential names no broker: {broker[:64]!r}")
        self._check_reads(broker, session)
        try:
            heartbeat = await self._membership.heartbeat_of(broker, session)
        except LedgerMQError as error:
            raise Unavailable(
                f"the heartbeat of broker {broker[:64]}, which would prove its call, cannot be read: {error.message}",
                retry_after_ms=500,
            ) from error
        refused = Unauthenticated(f"no broker {broker[:64]} with this credential takes part in the cluster")
        if heartbeat is None or not heartbeat.public_key:
            raise refused
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(heartbeat.public_key)).verify(proof, signed)
        except (InvalidSignature, ValueError):
            raise refused from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)

"""Who is at the other end of a connection: a certificate of TLS says so, or SASL does, which counts more.

    SaslHandshake        names a mechanism; without TLS only programs on this machine are offered any,
                         for a token would travel in plain text
    SaslAuthenticate     carries a token as our own calls do; again before its end (KIP-368), by the same principal
    SCRAM                two of these: a password is proved, and what is admitted is the proof
    a wrong token        gets code 58 after `FAILED_S`, without a word why: the audit log says it; then the
                         connection ends
    no answer of the     the connection ends without one: code 58 would be final for Java clients
    identity provider

Every request has its caller admitted again, which costs a look into a table: a connection ends with its
token, when that is revoked or expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ledgermq.errors import InvalidConfig, Unauthenticated, Unavailable
from ledgermq.protocol.naming.client_ids import check_client_id
from ledgermq.protocol.naming.tokens import BEARER
from ledgermq.sources import Sources
from ledgermq_broker.access.door import Admitted, Credential, Door
from ledgermq_broker.access.state.rules import ScramProof
from ledgermq_broker.admission.connections import TEXT_MAX, Connections
from ledgermq_broker.kafka.handlers.produce import NO_OFFSET, NO_OFFSET_OF_JAVA
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_response, sasl_handshake_response
from ledgermq_broker.kafka.wire.messages import FETCH, PRODUCE, Api
from ledgermq_broker.kafka.wire.sasl import MECHANISMS, claim
from ledgermq_broker.kafka.wire.scram import SCRAM, Exchange, Keys

FAILED_S = 0.1
AGAIN_S = 1.0
"""A broker that does not know the newest rules yet, or a new signing key, does so a moment later."""
JAVA = "apache-kafka-java"
"""The name by which Java clients introduce themselves."""
REFUSED = "authentication failed: the token or password is wrong, has expired or was revoked"


class Identity:
    """`is_private`: what the client sends cannot be read by others."""

    def __init__(self, door: Door, sources: Sources, *, is_private: bool = True) -> None:
        self._door = door
        self._sources = sources
        self.certified: Sequence[str] = ()
        """The names in the client's certificate, which TLS has verified."""
        self._mechanisms = MECHANISMS if is_private else ()
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._stored: ScramProof | None = None
        """The password that the client is about to prove."""
        self._credential: Credential = ""
        self._principal = ""
        self.failure: Unauthenticated | None = None
        """Why the connection has to end behind the answer."""

    async def admitted(self, client_id: str) -> Admitted:
        """Return what the caller gets. Raises Unauthenticated, Unavailable."""
        found = await self._door.admit(self._credential, self.certified, client_id)
        self._principal = found.principal.name
        return found

    def handshake(self, mechanism: str) -> sasl_handshake_response.SaslHandshakeResponse:
        answer = sasl_handshake_response.SaslHandshakeResponse(mechanisms=list(self._mechanisms))
        self._exchange = None
        if mechanism in self._mechanisms:
            self._mechanism = mechanism
        else:
            answer.error_code = Code.UNSUPPORTED_SASL_MECHANISM
            if not self._mechanisms:
                self.failure = Unauthenticated("a token is taken only through TLS: set tls_cert_file at the broker")
        return answer

    @property
    def is_between(self) -> bool:
        """Return whether the client has to send more before it is known who it is."""
        return self._exchange is not None

    async def authenticate(self, data: bytes, client_id: str) -> sasl_authenticate_response.SaslAuthenticateResponse:
        """Take a token, or a message of SCRAM. Raises Unavailable."""
        answer = sasl_authenticate_response.SaslAuthenticateResponse(error_message=None)
        if not self._mechanism:
            answer.error_code, answer.error_message = Code.ILLEGAL_SASL_STATE, "SaslHandshake comes first"
            self.failure = Unauthenticated("SaslAuthenticate before SaslHandshake")
            return answer
        try:
            if self._mechanism in SCRAM and not self.is_between:
                answer.auth_bytes = await self._challenge(data)
                return answer
            found = await self._proven(data, client_id, answer)
        except Unauthenticated as error:
            await asyncio.sleep(FAILED_S)
            self._exchange = None
            answer.error_code, answer.error_message = Code.SASL_AUTHENTICATION_FAILED, REFUSED
            self.failure = error
            return answer
        if found.principal.expires_ms:
            answer.session_lifetime_ms = max(1, found.principal.expires_ms - self._sources.now_ms())
        return answer

    async def _challenge(self, data: bytes) -> bytes:
        """Begin a proof by SCRAM. Raises Unauthenticated, Unavailable."""

        def keys_of(user: str) -> Keys:
            stored = self._door.scram(user, self._mechanism)
            self._stored = stored.proof
            return Keys(stored.salt, stored.iterations, stored.stored_key, stored.server_key)

        def begun() -> tuple[Exchange, bytes]:
            nonce = self._sources.random.getrandbits(192).to_bytes(24, "big").hex()
            exchange = Exchange(self._mechanism, keys_of, nonce)
            return exchange, exchange.first(data)

        try:
            try:
                self._exchange, answer = begun()
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
                self._exchange, answer = begun()
        except Unauthenticated as error:
            self._door.refused(error.message)
            raise
        return answer

    async def _proven(
        self, data: bytes, client_id: str, answer: sasl_authenticate_response.SaslAuthenticateResponse
    ) -> Admitted:
        mechanism, self._mechanism = self._mechanism, ""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            said = claim(mechanism, data)
            return await self._admitted_by(BEARER + said.token, said.acts_as, client_id)
        try:
            answer.auth_bytes = exchange.final(data)
        except Unauthenticated as error:
            self._door.refused(error.message)
            raise
        assert self._stored is not None, "the keys were asked for"
        return await self._admitted_by(self._stored, "", client_id)

    async def _admitted_by(self, credential: Credential, acts_as: str, client_id: str) -> Admitted:
        try:
            found = await self._door.admit(credential, client_id=client_id)
        except Unavailable:
            await asyncio.sleep(AGAIN_S)
            found = await self._door.admit(credential, client_id=client_id)
        name = found.principal.name
        if self._door.closed and acts_as not in ("", name, name.partition(":")[2]):
            raise Unauthenticated(f"{name} wants to act as another name")
        if self._principal and self._principal != name:
            raise Unauthenticated(f"a connection of {self._principal} cannot become one of {name}")
        self._credential, self._principal = credential, name
        return found


def client_id_of(text: str) -> str:
    """Return the client id for quotas; "" for one that none of ours could have."""
    try:
        return check_client_id(text) if text else ""
    except InvalidConfig:
        return ""


class ListedClient:
    """What a client says of its software, and its place in the list of connections. `peer`: its address, as in logs."""

    def __init__(self, connections: Connections, peer: str) -> None:
        self._connections = connections
        self._peer = peer
        self._software = self._client = ""

    def introduce(self, message: Any) -> None:
        """Note what ApiVersions says of the software; requests before version 3 say nothing. It may be as long as a
        frame, and stays as long as the connection: only its beginning is kept.
        """
        self._software = message.client_software_name[:TEXT_MAX]
        self._client = f"{self._software} {message.client_software_version[:TEXT_MAX]}".strip()

    @property
    def no_offset(self) -> int:
        """Return the number that tells this client of records without an offset yet."""
        return NO_OFFSET_OF_JAVA if self._software == JAVA else NO_OFFSET

    def note(self, principal: str, client_id: str, api: Api, message: Any) -> None:
        """Note a request, and which topics it writes or reads."""
        found = self._connections.begin_call(self._peer, principal, client_id, self._client)
        if api is PRODUCE:
            found.note_written(topic.name for topic in message.topic_data)
        elif api is FETCH:
            found.note_read(topic.topic for topic in message.topics)
        found.end_call(self._connections.now_ms())

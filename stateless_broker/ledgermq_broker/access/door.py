"""Admit callers: find out which principal makes a call, and return the broker's API for it.

    credential                        principal
    Bearer lmq_…                      user:NAME, of a static token
    Bearer, another text              jwt:SUBJECT, of a token that the identity provider signed
    LedgerMQ-Broker …                 a broker of this cluster
    a password, proved by SCRAM       user:NAME; only the Kafka port hands such a proof in, no call carries one
    none, and a client certificate    cert:NAME, the first name in the certificate

A credential that is given decides, and must count; a certificate counts only without one. A caller
that cannot be admitted learns why, but nothing about the cluster. With `security = open` every caller
may do everything, and is `anonymous` for quotas, which bind all callers but brokers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ledgermq.errors import Unauthenticated, Unavailable
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.naming.client_ids import check_client_id
from ledgermq.protocol.naming.tokens import BEARER, CREDENTIAL_CHARS_MAX
from ledgermq.sources import Sources
from ledgermq_broker.access.audit.log import UNKNOWN, audit
from ledgermq_broker.access.freshness import RulesInForce
from ledgermq_broker.access.identity.broker_identity import SCHEME, BrokerProofs
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.quota_counts import QuotaCounts
from ledgermq_broker.access.state.quotas import ANONYMOUS
from ledgermq_broker.access.state.rules import Principal, ScramProof
from ledgermq_broker.access.state.scram import ScramName, StoredScram, decoy
from ledgermq_broker.access.state.usage import Account, OpenTransaction
from ledgermq_broker.access.wrappers.authorized import AuthorizedService
from ledgermq_broker.access.wrappers.throttled import ThrottledService

ADMITTED_MAX = 10_000
"""Callers that are remembered; the one that was not used for longest is forgotten first."""


Credential = str | ScramProof


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a caller gets. `principal`: its name, `anonymous` if rules are not enforced. `account`: None for
    brokers, which no quota binds.
    """

    api: BrokerApi
    principal: Principal
    account: Account | None


class Door:
    """`service`: the broker's API without any check. `is_open(transaction)`: whether anything of it is staged
    at this broker.
    """

    def __init__(
        self,
        service: BrokerApi,
        in_force: RulesInForce,
        proofs: BrokerProofs,
        sources: Sources,
        counts: QuotaCounts,
        is_open: Callable[[OpenTransaction], bool],
    ) -> None:
        self._service = service
        self._in_force = in_force
        self._proofs = proofs
        self._sources = sources
        self._counts = counts
        self._is_open = is_open
        self._secret = b""
        self._admitted: OrderedDict[tuple[Credential, str, str], Admitted] = OrderedDict()

    @property
    def closed(self) -> bool:
        """Return whether callers have to prove who they are."""
        return self._in_force.enforced

    async def admit(self, credential: Credential, certified: Sequence[str] = (), client_id: str = "") -> Admitted:
        """Return the API for a caller.

        `credential`: what the call carries, "" for none, or what the caller has proved. `certified`: the names in
        the caller's certificate, which the transport has verified. `client_id`: "" for none. Raises
        Unauthenticated, Unavailable, InvalidConfig for a client id that is none.
        """
        if self._in_force.enforced:
            key = (credential, "" if credential else next(iter(certified), ""), client_id)
        else:
            is_broker = isinstance(credential, str) and credential.startswith(SCHEME)
            key = (credential if is_broker else "", "", client_id)
        found = self._admitted.get(key)
        if found is not None and not self._is_over(found.principal):
            self._admitted.move_to_end(key)
            return found
        if client_id:
            check_client_id(client_id)
        principal = await (self._proven(*key[:2]) if self._in_force.enforced else self._unproven(key[0]))
        found = self._admitted[key] = self._for(principal, client_id)
        if len(self._admitted) > ADMITTED_MAX:
            self._admitted.popitem(last=False)
        return found

    async def delegate(self, credential: str, certified: Sequence[str] = ()) -> str:
        """Return the principal that has passed a call on, if it is believed what it says of the caller (setting
        `delegates`); "" if not. It decides nothing about the call. `credential`, `certified`: what proves it.
        """
        if not self._in_force.enforced or not self._in_force.delegates:
            return ""
        try:
            principal = await self._principal(credential, "" if credential else next(iter(certified), ""))
        except (Unauthenticated, Unavailable):
            return ""
        return principal.name if principal.name in self._in_force.delegates and not principal.is_broker else ""

    def _for(self, principal: Principal, client_id: str) -> Admitted:
        api, account, throttled = self._service, None, None
        if not principal.is_broker:
            account = Account(self._in_force.usages, principal.name, client_id)
            api = throttled = ThrottledService(api, account, self._counts, self._is_open)
        if self._in_force.enforced:
            for_one_call = throttled.for_one_call if throttled is not None else lambda: self._service
            api = AuthorizedService(for_one_call, Permissions(principal, self._in_force, self._sources))
        return Admitted(api, principal, account)

    def scram(self, user: str, mechanism: str) -> StoredScram:
        """Return what proves the password of a user; for a user without one, keys that nothing proves: callers do not
        learn which users there are. Raises Unavailable.
        """
        if self._in_force.enforced:
            self._in_force.check_fresh()  # otherwise a password that was just set would seem to be wrong
        name = ScramName(user, mechanism)
        if not self._secret:
            self._secret = self._sources.new_id()
        return self._in_force.rules.scram.get(name) or decoy(name, self._secret)

    def refused(self, why: str) -> None:
        """Note a caller that failed to prove who it is."""
        audit(UNKNOWN, "admission", "", allowed=False, why=why)

    async def _proven(self, credential: Credential, certified: str) -> Principal:
        try:
            return await self._principal(credential, certified)
        except Unauthenticated as error:
            self.refused(error.message)
            raise

    async def _unproven(self, credential: Credential) -> Principal:
        """Return the principal of a caller that need not prove anything. A broker does, in order not to be
        bound by quotas.
        """
        if credential:
            with suppress(Unauthenticated):
                return await self._principal(credential, "")
        return Principal(ANONYMOUS)

    def _is_over(self, principal: Principal) -> bool:
        """Return whether a credential has to be examined again, because it no longer counts. Then the answer says
        why.
        """
        if principal.is_broker and self._proofs.is_over(principal):
            return True
        try:
            self._in_force.check_credential(principal, self._sources.now_ms())
        except (Unauthenticated, Unavailable):
            return True
        return False

    async def _principal(self, credential: Credential, certified: str) -> Principal:
        if isinstance(credential, ScramProof):
            return self._of_password(credential)
        if len(credential) > CREDENTIAL_CHARS_MAX:
            raise Unauthenticated(f"the credential has more than {CREDENTIAL_CHARS_MAX} characters")
        if credential.startswith(SCHEME):
            found, left_ms = await self._proofs.principal(credential)
            return replace(found, expires_ms=self._sources.now_ms() + left_ms)
        if credential.startswith(BEARER):
            return self._of_token(credential.removeprefix(BEARER).strip())
        if credential:
            raise Unauthenticated("the credential is of an unknown kind: send metadata `authorization: Bearer TOKEN`")
        if certified:
            return Principal(f"cert:{certified}")
        raise Unauthenticated(
            "this cluster serves no callers without credentials: give a token (`token`, `token_file`, or the variable"
            " LEDGERMQ_TOKEN), or a client certificate"
        )

    def _of_password(self, proof: ScramProof) -> Principal:
        self._in_force.check_fresh()
        stored = self._in_force.rules.proven(proof)
        if stored is None:
            raise Unauthenticated(f"the password of user:{proof.user} was changed or removed: prove the new one")
        return stored.principal

    def _of_token(self, token: str) -> Principal:
        if self._in_force.signed is not None and token.count(".") == 2:
            return self._in_force.signed.principal(token)
        self._in_force.check_fresh()  # otherwise a token that was just made would seem to be wrong
        stored = self._in_force.rules.token(token)
        if stored is None:
            raise Unauthenticated("the token is wrong, or was revoked: get a new one")
        principal = stored.principal
        if principal.expires_ms and self._sources.now_ms() >= principal.expires_ms:
            raise Unauthenticated(f"token {principal.token_id} of {principal.name} has expired: get a new one")
        return principal

"""Keep this broker's rule set, and refuse to judge by one that may be outdated.

A change of rules is acknowledged when no broker judges by the rules before it. Each broker proves to
itself, again and again, that it has read everything that was in `__metadata` at some moment, and
judges for `LEASE_S` after that moment. The controller waits until every other broker has confirmed
the change, or its last proof from before the change has ended. So a broker that is not reached stops
serving; it never serves by old rules (decision 45).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    InvalidConfig,
    LedgerMQError,
    Unauthenticated,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.access.identity.jwt import SignedTokens
from ledgermq_broker.access.state.records import quota_set_of
from ledgermq_broker.access.state.rule_set import RuleSet, rule_set_of
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.access.state.usage import Usages
from ledgermq_broker.cluster.heartbeat import ENFORCING, RULES, Heartbeat
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.topics.catalog import read_catalog

LEASE_S = 5.0
"""How long a proof lasts: the longest wait for a change while a broker does not answer."""
RENEWALS = 4
"""Proofs within a lease."""
DRIFT = 1.02
"""How much faster another machine's clock may be."""
UNWRITTEN_S_MAX = 3000.0
"""Age of this broker's heartbeat up to which its proofs count. Other brokers remove a heartbeat after an
hour of silence, and the controller waits only for those that have one.
"""
CONFIRM_PAUSE_S = 0.1
CONFIRM_S_MAX = 1.0

log = get_logger(__name__)


class RulesInForce:
    """`rules`: what this broker judges by. `supers`: principals that may do everything but the calls
    between brokers. `delegates`: those that are believed when they say where a call comes from. `signed`:
    recognizes tokens of an identity provider; None: there is none. `generation` differs after every change
    of these, and `changed` is set then. `usages`: what callers use here, bound by the quotas that this
    broker knows.

    With `enforced` False no call is judged here, and no proofs are made.
    """

    def __init__(
        self,
        metadata: Metadata,
        membership: Membership,
        supers: frozenset[str],
        delegates: frozenset[str],
        *,
        enforced: bool,
    ) -> None:
        self.rules = RuleSet()
        self.generation = 0
        self.enforced = enforced
        self.undecided = False
        """Whether they are enforced only because nothing says yet whether they should be."""
        self.supers = supers
        self.delegates = delegates
        self.signed: SignedTokens | None = None
        self.changed = asyncio.Event()
        """Of this generation: a change sets it, and puts a new one in its place."""
        self._metadata = metadata
        self._membership = membership
        self.usages = Usages()
        self._proven_until_s = float("-inf")
        self._withdrawn = False

    async def enforce_what_is_kept(self, ledger: LedgerRef) -> None:
        """Enforce from the start if the root holds rules or tokens: it was closed once, and a start without a
        setting does not open it.

        `ledger`: that of bundle 0. Raises the store's errors. While it cannot be read, no caller is served; the
        first catalog that is read decides.
        """
        try:
            self._decide(rule_set_of((await read_catalog(ledger)).others, self.rules))
        except (DataDamaged, FormatNotSupported) as error:
            self.enforced = self.undecided = True
            log.warning("access rules are enforced until the root's can be read", error=error.message)

    def _decide(self, held: RuleSet) -> None:
        self.undecided = False
        self.enforced = bool(held.rules or held.tokens or held.scram or held.unreadable)
        if self.enforced:
            log.warning(
                "access rules are enforced, because the root holds some; security = open serves every caller",
                rules=len(held.rules),
                tokens=len(held.tokens),
            )

    def follow_others(self) -> None:
        """Enforce the rules if another broker does, for a start without a setting."""
        me = self._membership.me.broker
        others = [heartbeat for name, heartbeat in self._membership.present().items() if name != me]
        if any(ENFORCING in heartbeat.features for heartbeat in others):
            self.enforced, self.undecided = True, False

    @property
    def is_decided(self) -> bool:
        """Return whether this broker enforces rules, and not only because nothing says yet whether it should."""
        return self.enforced and not self.undecided

    def refuse_beside_old_brokers(self) -> None:
        """Raise InvalidConfig if rules are to be enforced while a broker is present that ignores them."""
        for heartbeat in self._membership.lacking(RULES) if self.is_decided else ():
            raise InvalidConfig(
                f"security = rules: broker {heartbeat.broker} at {heartbeat.address} runs"
                f" {heartbeat.release or 'a release that does not announce its number'}, which ignores access rules:"
                " upgrade or stop it, then start this broker again"
            )

    def alarms(self) -> list[str]:
        """Return an alarm for each broker that lets through what this one refuses."""
        if not self.enforced:
            return []
        return [
            f"broker {heartbeat.broker} at {heartbeat.address} does not enforce access rules: start it with"
            " security = rules"
            for heartbeat in self._membership.lacking(ENFORCING)
        ]

    def catalog_changed(self) -> None:
        """Take over what the catalog holds now."""
        others = self._metadata.catalog.others
        self.usages.take(quota_set_of(others, self.usages.quotas))
        found = rule_set_of(others, self.rules)
        if self.undecided:
            self._decide(found)
        if found is not self.rules:
            self.rules = found
            self.next_generation()

    def take_supers(self, supers: frozenset[str]) -> None:
        self.supers = supers
        self.next_generation()

    def next_generation(self) -> None:
        """Let everything be judged again that was judged before, calls that wait included."""
        self.generation += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def check_credential(self, principal: Principal, now_ms: int) -> None:
        """Check that the credential of a principal still counts.

        `now_ms`: the wall clock. Raises Unauthenticated for one that was revoked or has expired, or whose key is
        no longer published; Unavailable while the keys of the identity provider are not known.
        """
        if principal.expires_ms and now_ms >= principal.expires_ms:
            raise Unauthenticated(f"the credential of {principal.name} has expired: get a new one")
        if principal.token_id and principal.token_id not in self.rules.tokens:
            raise Unauthenticated(f"token {principal.token_id} of {principal.name} was revoked: get a new one")
        if principal.scram is not None and self.rules.proven(principal.scram) is None:
            raise Unauthenticated(f"the password of {principal.name} was changed or removed: prove the new one")
        if principal.signing_key:
            if self.signed is None:
                raise Unauthenticated("this broker accepts no tokens of an identity provider")
            self.signed.check(principal.signing_key)

    def check_fresh(self) -> None:
        """Raise Unavailable if this broker cannot be sure that it knows all rules."""
        if asyncio.get_running_loop().time() >= self._proven_until_s:
            raise Unavailable(
                "this broker cannot be sure that it knows the newest access rules, because it reaches neither the"
                " controller nor the object store; another broker may answer",
                retry_after_ms=200,
            )

    def withdraw(self) -> None:
        """Judge no further call: this broker is about to leave the cluster."""
        self._withdrawn = True
        self._proven_until_s = float("-inf")

    async def run(self) -> None:
        """Renew the proof until cancelled."""
        while self.enforced:
            await self.prove()
            await asyncio.sleep(LEASE_S / RENEWALS)

    async def prove(self) -> None:
        """Read everything that `__metadata` holds now, from the controller, or from the store while the
        controller does not answer.
        """
        began_s = asyncio.get_running_loop().time()
        try:
            await self._metadata.catch_up()
        except LedgerMQError:
            try:
                await self._metadata.load()
            except LedgerMQError as error:
                log.warning("access rules cannot be renewed", error=error.message)
                return
        self.catalog_changed()
        if not self._withdrawn and self._membership.unwritten_s() < UNWRITTEN_S_MAX:
            self._proven_until_s = max(self._proven_until_s, began_s + LEASE_S)

    async def confirm(self, offset: int) -> None:
        """Wait until this broker judges by all records below `offset`. Raises Unavailable."""
        if self._metadata.catalog.offset < offset:
            await self._metadata.catch_up()
        if self._metadata.catalog.offset < offset:
            raise Unavailable(f"this broker has read __metadata up to {self._metadata.catalog.offset}, not {offset}")
        self.catalog_changed()


class Everywhere:
    """Wait until a change of rules is in force in every broker. `broker(address)`: a connection to it."""

    def __init__(self, membership: Membership, broker: Callable[[str], BrokerApi]) -> None:
        self._membership = membership
        self._broker = broker

    async def wait(self, offset: int) -> None:
        """Wait, at most for a lease, until no broker judges without the records below `offset`, which
        are durable. Raises Unavailable if the brokers cannot be listed: the change is made then, but
        may not be in force.
        """
        until_s = asyncio.get_running_loop().time() + LEASE_S * DRIFT
        try:
            others = await self._membership.announced()
        except LedgerMQError as error:
            raise Unavailable(
                f"the change is stored, but the brokers that must confirm it cannot be listed: {error.message};"
                " repeat it to be sure that it is in force",
                retry_after_ms=1000,
            ) from error
        waits: list[Awaitable[None]] = [
            self._confirmed(name, heartbeat, offset, until_s) for name, heartbeat in sorted(others.items())
        ]
        await asyncio.gather(*waits)

    async def _confirmed(self, name: str, heartbeat: Heartbeat | None, offset: int, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while heartbeat is not None and (left_s := until_s - loop.time()) > 0:
            with suppress(LedgerMQError, TimeoutError):
                async with asyncio.timeout(min(left_s, CONFIRM_S_MAX)):
                    line = self._broker(heartbeat.address)
                    answer = await line.confirm_rules(pb.ConfirmRulesRequest(offset=offset))
                if answer.session == heartbeat.session:
                    return
            await asyncio.sleep(min(CONFIRM_PAUSE_S, max(0.0, until_s - loop.time())))
        await asyncio.sleep(max(0.0, until_s - loop.time()))
        log.warning("a broker did not confirm a change of access rules within a lease", peer=name)

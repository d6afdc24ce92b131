"""Judge the calls of one principal by the rules in force.

A decision is kept until the rules change, so that a stream pays for it once. The lines of the audit
log follow from that: a decision is logged when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import Unauthorized
from ledgermq.runtime.ports.turns import give_way
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from ledgermq_broker.access.audit.log import audit
from ledgermq_broker.access.freshness import RulesInForce
from ledgermq_broker.access.state.rules import TOPIC_OPERATIONS, Operation, Principal
from ledgermq_ledger.keys import is_internal

TURN_NAMES = 256
"""Names of one call that are judged before other calls get their turn."""
KEPT_MAX = 10_000
"""Decisions that are kept for one principal. At this number all are forgotten."""


class Permissions:
    def __init__(self, principal: Principal, in_force: RulesInForce, sources: Sources) -> None:
        self.principal = principal
        self._in_force = in_force
        self._sources = sources
        self._generation = -1
        self._kept: dict[tuple[Operation, str], str] = {}

    @property
    def is_super(self) -> bool:
        return self.principal.is_broker or self.principal.name in self._in_force.supers

    @property
    def generation(self) -> int:
        """Return what differs when decisions may differ."""
        return self._in_force.generation

    def check_credential(self) -> None:
        """Check that the credential still counts, and that this broker knows the newest rules.

        Raises Unauthenticated for one that was revoked or has expired, or whose signing key is no longer published;
        Unavailable.
        """
        if self.principal.is_broker:
            return
        self._in_force.check_fresh()
        self._in_force.check_credential(self.principal, self._sources.now_ms())

    async def until_judged_again(self) -> None:
        """Wait until the rules change or the credential ends, whichever is first."""
        expires_ms = self.principal.expires_ms
        left_s = (expires_ms - self._sources.now_ms()) / 1000 if expires_ms else None
        await wait_for(self._in_force.changed, left_s)

    def may(self, operation: Operation, name: str = "") -> bool:
        """Return whether the principal may do something to this topic, group or transactional id."""
        return not self.refusal(operation, name)

    def require(self, operation: Operation, name: str = "") -> None:
        """Raise Unauthorized unless the principal may do it. The text is the same whether the name
        exists or not.
        """
        if text := self.refusal(operation, name):
            raise Unauthorized(text)

    def may_all(self, operation: Operation, prefix: str) -> bool:
        """Return whether the principal may do something to every name with this prefix."""
        return self.is_super or self._in_force.rules.allows_all(self.principal, operation, prefix)

    def require_all(self, operation: Operation, prefix: str, what: str) -> None:
        """Raise Unauthorized unless the principal may do it to every name with this prefix."""
        if not self.may_all(operation, prefix):
            audit(self.principal.name, operation.value, f"{prefix}*", allowed=False)
            raise Unauthorized(
                f"{self.principal.name} may not {operation.value} everything that begins with {prefix!r}, as {what}"
                " needs: name the topics, or begin the pattern with a prefix for which there is a rule"
            )

    def require_broker(self, what: str) -> None:
        """Raise Unauthorized unless a broker calls."""
        if not self.principal.is_broker:
            audit(self.principal.name, "between brokers", what, allowed=False)
            raise Unauthorized(f"{what} is for brokers of this cluster only")

    async def refusals(self, operation: Operation, names: Iterable[str]) -> list[str]:
        """Return for each name why it is refused, "" if it is allowed. Other calls get their turns meanwhile."""
        found = []
        for number, name in enumerate(names, 1):
            found.append(self.refusal(operation, name))
            if number % TURN_NAMES == 0:
                await give_way()
        return found

    async def require_each(self, operation: Operation, names: Iterable[str]) -> None:
        """Raise Unauthorized unless the principal may do it to all of these names."""
        for number, name in enumerate(names, 1):
            self.require(operation, name)
            if number % TURN_NAMES == 0:
                await give_way()

    def refusal(self, operation: Operation, name: str, *, change: bool = False) -> str:
        """Return why it is refused, "" if it is allowed. `change`: see `audit`."""
        if self._generation != self._in_force.generation:
            self._kept.clear()
            self._generation = self._in_force.generation
        found = self._kept.get((operation, name))
        if found is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            found = self._kept[(operation, name)] = self._decided(operation, name, change)
        return found

    def changes(self, operation: Operation, name: str = "") -> None:
        """Raise Unauthorized unless the principal may make this change, and log the change either way."""
        is_kept = (operation, name) in self._kept and self._generation == self._in_force.generation
        text = self.refusal(operation, name, change=True)
        if is_kept:
            audit(self.principal.name, operation.value, name, allowed=not text, change=True)
        if text:
            raise Unauthorized(text)

    def _decided(self, operation: Operation, name: str, change: bool) -> str:
        principal = self.principal
        if principal.is_broker:
            return ""
        if operation in TOPIC_OPERATIONS and is_internal(name):
            audit(principal.name, operation.value, name, allowed=False, why="internal topics are for brokers only")
            return self._text(operation, name)
        if self.is_super:
            audit(principal.name, operation.value, name, allowed=True, why="super principal", change=change)
            return ""
        decision = self._in_force.rules.decide(principal, operation, name)
        audit(principal.name, operation.value, name, allowed=decision.allowed, why=decision.why, change=change)
        return "" if decision.allowed else self._text(operation, name)

    def _text(self, operation: Operation, name: str) -> str:
        what = f"{self.principal.name} may not use {name[:300]!r} for {operation.value!r}, or it does not exist"
        if operation is Operation.CLUSTER:
            what = f"{self.principal.name} does not have the operation {operation.value!r}"
        return f"{what}: ask an administrator for a rule (`ledgermq acl grant`)"


def refuse_forwarded(permissions: Permissions, *, forwarded: bool) -> None:
    """Raise Unauthorized for a request that claims to come from another broker, and does not."""
    if forwarded:
        permissions.require_broker("a forwarded request")

"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from ledgermq.client.admin.access import Access as AsyncAccess
from ledgermq.client.admin.access import AccessDecision, AccessRule, NewToken, TokenDescription
from ledgermq.sync.background import Background


class Access:
    """The methods of `client.access`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncAccess) -> None:
        self._background = background
        self._inner = inner

    def grant(self, principal: str, operations: str | Iterable[str], name: str = "", *, deny: bool = False) -> str:
        """Store an access rule, and return its id. A rule that exists stays as it is.

        `principal`: user:NAME, group:NAME, cert:NAME, jwt:SUBJECT, or * for every one. See `AccessRule`
        for the other parts. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.grant(principal, operations, name, deny=deny))

    def revoke(self, *rule_ids: str) -> Sequence[str]:
        """Remove access rules, and return the ids of those that this call has removed. The others did not exist.
        Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.revoke(*rule_ids))

    def list(self) -> Sequence[AccessRule]:
        """Return all access rules. Raises Unauthorized, Unavailable."""
        return self._background.run(self._inner.list())

    def test(
        self, operation: str, name: str = "", *, principal: str = "", groups: Iterable[str] = ()
    ) -> AccessDecision:
        """Return whether a principal may do something, and which rule decides. Without a principal: the
        caller, which needs no right for that. `groups`: of the principal.

        Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.test(operation, name, principal=principal, groups=groups))

    def create_token(self, user: str, *, groups: Iterable[str] = (), expires_in: timedelta | None = None) -> NewToken:
        """Make a token for the principal user:NAME and its groups. `expires_in`: None for a token that
        never expires.

        Raises InvalidRequest, Unauthorized, Unavailable; after Unavailable such a token may exist, but
        no program has it.
        """
        return self._background.run(self._inner.create_token(user, groups=groups, expires_in=expires_in))

    def revoke_token(self, token_id: str) -> bool:
        """Remove a token; calls that begin afterwards are refused everywhere. Return False if there is no
        such token. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.revoke_token(token_id))

    def list_tokens(self) -> Sequence[TokenDescription]:
        """Return all tokens, without what they are. Raises Unauthorized, Unavailable."""
        return self._background.run(self._inner.list_tokens())

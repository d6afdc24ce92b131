"""Administration of access rules and tokens without asyncio."""

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
        """See `ledgermq.Access.grant`."""
        return self._background.run(self._inner.grant(principal, operations, name, deny=deny))

    def revoke(self, *rule_ids: str) -> Sequence[str]:
        """See `ledgermq.Access.revoke`."""
        return self._background.run(self._inner.revoke(*rule_ids))

    def list(self) -> Sequence[AccessRule]:
        """See `ledgermq.Access.list`."""
        return self._background.run(self._inner.list())

    def test(
        self, operation: str, name: str = "", *, principal: str = "", groups: Iterable[str] = ()
    ) -> AccessDecision:
        """See `ledgermq.Access.test`."""
        return self._background.run(self._inner.test(operation, name, principal=principal, groups=groups))

    def create_token(self, user: str, *, groups: Iterable[str] = (), expires_in: timedelta | None = None) -> NewToken:
        """See `ledgermq.Access.create_token`."""
        return self._background.run(self._inner.create_token(user, groups=groups, expires_in=expires_in))

    def revoke_token(self, token_id: str) -> bool:
        """See `ledgermq.Access.revoke_token`."""
        return self._background.run(self._inner.revoke_token(token_id))

    def list_tokens(self) -> Sequence[TokenDescription]:
        """See `ledgermq.Access.list_tokens`."""
        return self._background.run(self._inner.list_tokens())

"""Remember the nonces of partitions of queue groups that were deleted, so that a repeated deletion is known.

The memory is bounded. Above the bound the oldest entry of the principal that has the most entries goes, so one that
deletes many groups pushes out its own nonces and not those of others.
"""

from __future__ import annotations

from ledgermq_broker.queues.state.records import ShareKey

Nonces = tuple[bytes, ...]


class ForgottenShares:
    """`kept_max`: the bound of entries."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._principals: dict[ShareKey, int] = {}
        self._nonces: dict[int, dict[ShareKey, Nonces]] = {}
        """By principal, its oldest entry first."""

    def __len__(self) -> int:
        return len(self._principals)

    def get(self, key: ShareKey) -> Nonces:
        """Return the nonces of deletions, and of resets before them; none if the partition is not remembered."""
        principal = self._principals.get(key)
        return () if principal is None else self._nonces[principal][key]

    def pop(self, key: ShareKey) -> Nonces:
        """Return the nonces, and forget them."""
        if key not in self._principals:
            return ()
        principal = self._principals.pop(key)
        found = self._nonces[principal].pop(key)
        if not self._nonces[principal]:
            del self._nonces[principal]
        return found

    def put(self, key: ShareKey, nonces: Nonces, principal: int) -> None:
        """Remember the nonces as of `principal`, a hash of the name of the caller that deleted the partition."""
        self.pop(key)
        self._principals[key] = principal
        self._nonces.setdefault(principal, {})[key] = nonces
        if len(self) > self._kept_max:
            most = max(self._nonces.values(), key=len)
            self.pop(next(iter(most)))

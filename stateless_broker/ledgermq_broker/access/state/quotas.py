"""Quotas as values: how much a principal, or one client of it, may use at each broker.

    principal     client id     whose quota
    user:alice    (none)        all calls of alice together
    user:alice    batch         the calls of alice with the client id batch
    user:alice    *             each client id of alice without its own quota
    *             (none)        each principal without its own quota
    *             batch, *      the same for client ids of any principal
    anonymous     …             callers of brokers that do not enforce rules

A call is bound by two quotas at most: that of its principal, and that of its client id. A client
chooses its id, so a quota of a client id is a matter of order, and only one of a principal is a limit
that no program can evade. A quota of a principal's own replaces the default as a whole.
`dollars_month` is a limit of principals alone, because a request to the store is made for principals.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from ledgermq.errors import InvalidRequest
from ledgermq.hints import did_you_mean
from ledgermq.protocol.naming.client_ids import check_client_id
from ledgermq_broker.access.state.rules import PRINCIPAL_CHARS_MAX
from ledgermq_ledger.object_store.prices import HOURS_A_MONTH, PICO

ANONYMOUS = "anonymous"
EACH = "*"
QUOTAS_MAX = 10_000
LIMIT_MAX = 10**15

_PRINCIPAL = re.compile(r"(?:user|cert|jwt):[^\s\x00-\x1f\x7f]+\Z")


class Limit(Enum):
    """What a quota bounds. The value is its name in commands, errors, metrics and records."""

    BYTES_IN = "bytes_in"
    """Bytes a second that callers send in batches."""
    BYTES_OUT = "bytes_out"
    """Bytes a second of batches that callers receive."""
    REQUESTS = "requests"
    """Calls a second; in streams, frames."""
    CONNECTIONS = "connections"
    """Connections that have calls under way."""
    OPEN_TRANSACTIONS = "open_transactions"
    """Transactions that have records staged, and are not completed."""
    CALLS = "calls"
    """Calls and streams under way, long polls included."""
    DOLLARS_MONTH = "microdollars_month"
    """Millionths of a dollar a month for requests to the store. Commands, errors and metrics show dollars."""

    @property
    def title(self) -> str:
        """Return its name where people read it."""
        return DOLLARS_TITLE if self is Limit.DOLLARS_MONTH else self.value

    def shown(self, bound: int) -> str:
        """Return a bound where people read it."""
        return f"{bound / MICRO:.6f}".rstrip("0").rstrip(".") if self is Limit.DOLLARS_MONTH else str(bound)

    def flow(self, bound: int) -> tuple[float, float]:
        """Return what flows into a bucket in a second, and what it holds at most: bytes, calls, or picodollars."""
        if self is Limit.DOLLARS_MONTH:
            an_hour = bound * (PICO // MICRO) / HOURS_A_MONTH
            return an_hour / BUDGET_BURST_S, an_hour
        return bound, bound * BURST_S


DOLLARS_TITLE = "dollars_month"
MICRO = 10**6
BURST_S = 1.0
"""A bucket holds at most the limit of this time."""
BUDGET_BURST_S = 3600.0
"""The same for money: a request costs some millionths of a dollar, which is seconds of a small budget."""
RATES = (Limit.BYTES_IN, Limit.BYTES_OUT, Limit.REQUESTS)
FLOWS = (*RATES, Limit.DOLLARS_MONTH)
"""Those that a bucket measures."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one subject at each broker; 0: no limit."""

    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    connections: int = 0
    open_transactions: int = 0
    calls: int = 0
    microdollars_month: int = 0

    def of(self, limit: Limit) -> int:
        found: int = getattr(self, limit.value)
        return found

    def changed(self, given: Mapping[str, int], dropped: frozenset[str]) -> Quota:
        """Return the quota with these limits set, and those dropped. Raises InvalidRequest."""
        return replace(self, **dict.fromkeys(dropped, 0), **given)


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Whose quota. `client_id`: "" for all calls of the principal together, * for each client id."""

    principal: str
    client_id: str = ""

    def __str__(self) -> str:
        return f"{self.principal} {self.client_id}" if self.client_id else self.principal


@dataclass(frozen=True, slots=True)
class StoredQuota:
    quota: Quota
    created_ms: int = 0
    created_by: str = ""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """All quotas at one moment. `unreadable`: why, by the subject's text; such a quota does not count.
    `offsets`: of the records that it was made of.
    """

    quotas: Mapping[Subject, StoredQuota] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[bytes, int] = field(default_factory=dict)

    def of_principal(self, principal: str) -> Quota:
        return self._first(Subject(principal), Subject(EACH))

    def of_client(self, principal: str, client_id: str) -> Quota:
        """Return the quota of one client id; "" is the id of clients that give none."""
        named = (Subject(principal, client_id),) if client_id else ()
        any_principal = (Subject(EACH, client_id),) if client_id else ()
        return self._first(*named, Subject(principal, EACH), *any_principal, Subject(EACH, EACH))

    def _first(self, *subjects: Subject) -> Quota:
        found = (self.quotas.get(subject) for subject in subjects)
        return next((stored.quota for stored in found if stored is not None), NO_QUOTA)


def checked_subject(principal: str, client_id: str) -> Subject:
    """Return the subject of a quota. Raises InvalidRequest."""
    known = principal in (ANONYMOUS, EACH) or (
        len(principal) <= PRINCIPAL_CHARS_MAX and _PRINCIPAL.match(principal) is not None
    )
    if not known:
        raise InvalidRequest(
            f"principal {principal[:100]!r}: a quota is for user:NAME, cert:NAME, jwt:SUBJECT, anonymous (callers of"
            " brokers without rules), or * for each principal without its own quota"
        )
    if client_id not in ("", EACH):
        check_client_id(client_id)
    return Subject(principal, client_id)


def checked_limits(given: Mapping[str, int]) -> dict[str, int]:
    """Return limits by their names. Raises InvalidRequest, with the nearest name or the bounds."""
    for name, value in given.items():
        limit_named(name)
        if not 0 < value <= LIMIT_MAX:
            raise InvalidRequest(f"{name} must be 1 to {LIMIT_MAX}, not {value}; access rules refuse everything")
    return dict(given)


def check_budget(subject: Subject, given: Collection[str]) -> None:
    """Raise InvalidRequest if these limits have one in dollars, and the subject is a client id."""
    if Limit.DOLLARS_MONTH.value in given and subject.client_id:
        raise InvalidRequest(
            f"{DOLLARS_TITLE} is a limit of a principal as a whole, not of one client id: what a request to the store"
            f" costs is divided among principals; set it for {subject.principal} without a client id"
        )


def limit_named(name: str) -> Limit:
    """Return the limit. Raises InvalidRequest, with the nearest name."""
    try:
        return Limit(name)
    except ValueError:
        known = [limit.value for limit in Limit]
        raise InvalidRequest(f"unknown limit {name[:100]!r}; {did_you_mean(name[:100], known)}") from None


assert [limit.value for limit in Limit] == [each.name for each in fields(Quota)], "a field for each limit"

"""Whose quota binds a call, what quotas and their records may be, and what is counted together."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq.protocol.naming.client_ids import CLIENT_ID_CHARS_MAX
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.quotas import (
    LIMIT_MAX,
    Limit,
    Quota,
    QuotaSet,
    StoredQuota,
    Subject,
    checked_limits,
    checked_subject,
)
from ledgermq_broker.access.state.records import decode_quota, encode_quota, quota_key, quota_set_of
from ledgermq_broker.access.state.usage import Account, Usages
from ledgermq_ledger.format.versioned import Unreadable

GOLDEN = Path(__file__).parents[2] / "golden"


def quotas(**by_subject: int) -> QuotaSet:
    """Quotas of requests, by subjects with _ for a space and e for *."""
    return QuotaSet(
        {
            Subject(*name.replace("user_", "user:").replace("each", "*").split("_")): StoredQuota(Quota(requests=value))
            for name, value in by_subject.items()
        }
    )


def test_a_quota_of_its_own_replaces_that_for_each() -> None:
    found = quotas(each=1, user_alice=2)
    assert found.of_principal("user:bob").requests == 1
    assert found.of_principal("user:alice").requests == 2
    assert found.of_client("user:alice", "batch") == Quota(), "that of the principal binds all of its clients together"


def test_the_nearest_quota_of_a_client_id_counts() -> None:
    found = quotas(each_each=1, each_batch=2, user_alice_each=3, user_alice_batch=4)
    assert found.of_client("user:alice", "batch").requests == 4
    assert found.of_client("user:alice", "other").requests == 3
    assert found.of_client("user:bob", "batch").requests == 2
    assert found.of_client("user:bob", "other").requests == 1
    assert found.of_client("user:bob", "").requests == 1, "clients that give no id are one client"
    assert found.of_client("user:alice", "").requests == 3


def test_all_clients_of_a_principal_share_its_quota_and_each_has_its_own() -> None:
    usages = Usages()
    usages.take(quotas(user_alice=10, user_alice_each=6))
    one, other = Account(usages, "user:alice", "one"), Account(usages, "user:alice", "other")
    one.take(Limit.REQUESTS, 6, 0.0)
    excess = one.excess((Limit.REQUESTS,), 0.0)
    assert excess is not None
    assert (excess.whose, excess.bound) == ("user:alice with the client id 'one'", 6)
    assert other.excess((Limit.REQUESTS,), 0.0) is None
    other.take(Limit.REQUESTS, 4, 0.0)
    excess = other.excess((Limit.REQUESTS,), 0.0)
    assert excess is not None
    assert (excess.whose, excess.bound) == ("user:alice", 10)
    again = Account(usages, "user:alice", "one")
    assert again.excess((Limit.REQUESTS,), 0.0) is not None, "another connection of the same client"


def test_a_changed_quota_binds_at_once_and_a_removed_one_no_longer() -> None:
    usages = Usages()
    account = Account(usages, "user:alice", "")
    account.take(Limit.BYTES_OUT, 10**9, 0.0)
    assert account.excess((Limit.BYTES_OUT,), 0.0) is None
    usages.take(QuotaSet({Subject("user:alice"): StoredQuota(Quota(bytes_out=100))}))
    account.take(Limit.BYTES_OUT, 300, 1.0)
    excess = account.excess((Limit.BYTES_OUT, Limit.BYTES_IN), 1.0)
    assert excess is not None
    assert excess.limit is Limit.BYTES_OUT
    assert excess.wait_s == pytest.approx(2.0)
    usages.take(QuotaSet())
    assert account.excess((Limit.BYTES_OUT,), 1.0) is None


def test_connections_count_while_they_have_calls() -> None:
    usages = Usages()
    usages.take(QuotaSet({Subject("*"): StoredQuota(Quota(connections=2))}))
    account, other = Account(usages, "user:alice", "a"), Account(usages, "user:alice", "b")
    for connection in ("1", "1", "2"):
        assert account.full(connection, 0.0) is None
        account.begin_call(connection)
    assert other.full("3", 0.0) is not None, "all clients of the principal together"
    assert other.full("1", 0.0) is None, "the connection is there already"
    account.end_call("1")
    assert other.full("3", 0.0) is not None
    account.end_call("1")
    assert other.full("3", 0.0) is None


def test_calls_are_counted_over_all_connections_and_clients() -> None:
    usages = Usages()
    usages.take(QuotaSet({Subject("user:alice"): StoredQuota(Quota(calls=2))}))
    account, other = Account(usages, "user:alice", "a"), Account(usages, "user:alice", "b")
    account.begin_call("1")
    assert other.full("2", 0.0) is None
    other.begin_call("2")
    excess = account.full("1", 0.0)
    assert excess is not None
    assert (excess.limit, excess.bound) == (Limit.CALLS, 2)
    assert account.full("1", 0.0, is_urgent=True) is None
    assert Account(usages, "user:bob", "a").full("3", 0.0) is None, "another principal"
    other.end_call("2")
    assert account.full("1", 0.0) is None


def test_a_budget_is_shared_kept_while_something_is_owed_and_bounded_in_memory() -> None:
    usages = Usages()
    an_hour = Limit.DOLLARS_MONTH.flow(730)[1]
    assert an_hour == 10**6
    usages.take(QuotaSet({Subject("*"): StoredQuota(Quota(microdollars_month=730))}))
    budget = (Limit.DOLLARS_MONTH,)
    usages.spend("user:alice", 3 * 10**6, 0.0)
    account = Account(usages, "user:alice", "a")
    excess = account.excess(budget, 0.0)
    assert excess is not None
    assert (excess.whose, excess.wait_s) == ("user:alice", pytest.approx(2 * 3600))
    del account, excess
    assert Account(usages, "user:alice", "b").excess(budget, 7100.0) is not None, "no connection was left meanwhile"
    assert Account(usages, "user:alice", "b").excess(budget, 7300.0) is None
    for number in range(1000):
        usages.spend(f"user:{number}", 10**6, 8000.0 + number)
    assert len(usages._spending) > 900, "all of these owe something"
    usages.spend("", 1, 8000.0)
    assert usages.used_by("anonymous", 8000.0)[Limit.DOLLARS_MONTH] == 0
    for number in range(2000):
        usages.spend("user:late", 1, 20_000.0 + number)
        usages.spend(f"user:{number + 1000}", 0, 20_000.0 + number)
    assert len(usages._spending) < 2100, "those that owe nothing any longer were let go"
    usages.take(QuotaSet())
    usages.spend("user:alice", 10**9, 30_000.0)
    assert Account(usages, "user:alice", "a").excess(budget, 30_000.0) is None


def test_limits_have_names_and_bounds_for_people() -> None:
    assert [(limit.title, limit.shown(bound)) for limit, bound in ((Limit.CALLS, 7), (Limit.DOLLARS_MONTH, 1))] == [
        ("calls", "7"), ("dollars_month", "0.000001"),
    ]  # fmt: skip
    assert Limit.DOLLARS_MONTH.shown(LIMIT_MAX) == "1000000000"
    assert Limit.DOLLARS_MONTH.shown(12_250_000) == "12.25"


@pytest.mark.parametrize(
    ("principal", "client_id"),
    [
        ("group:staff", ""),
        ("alice", ""),
        ("user:", ""),
        ("user:a b", ""),
        ("", ""),
        ("user:" + "x" * 300, ""),
        ("user:alice", "two words"),
        ("user:alice", "ü"),
        ("user:alice", "x" * (CLIENT_ID_CHARS_MAX + 1)),
    ],
)
def test_what_no_quota_can_be_for(principal: str, client_id: str) -> None:
    with pytest.raises(InvalidRequest):
        checked_subject(principal, client_id)


@pytest.mark.parametrize("given", [{"bytes": 1}, {"requests": 0}, {"requests": -1}, {"requests": LIMIT_MAX + 1}])
def test_limits_are_checked(given: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        checked_limits(given)
    assert checked_limits({"requests": 1, "bytes_in": LIMIT_MAX})


def test_golden_records_are_read() -> None:
    """Written by the first release with quotas; what is stored must be read forever."""
    value = (GOLDEN / "security-quota-v1.bin").read_bytes()
    subject = Subject("user:alice", "batch")
    stored = StoredQuota(Quota(5_000_000, 50_000_000, 200, 8, 3), 1_764_547_200_000, "user:root")
    assert quota_key(subject) == b"quota/user:alice batch"
    assert decode_quota(quota_key(subject), value) == (subject, stored)
    assert encode_quota(stored) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"quota/user:alice", b"\xff\xff"),
        (b"quota/user:alice", b""),
        (b"quota/user:alice", fmt.QuotaRecord(version=2).SerializeToString()),
        (b"quota/user:alice", fmt.QuotaRecord(version=1, requests=-1).SerializeToString()),
        (b"quota/user:alice", fmt.QuotaRecord(version=1, microdollars_month=-1).SerializeToString()),
        (b"quota/group:staff", fmt.QuotaRecord(version=1).SerializeToString()),
        (b"quota/\xff", fmt.QuotaRecord(version=1).SerializeToString()),
    ],
)
def test_a_quota_that_cannot_be_read_bounds_nothing_and_is_shown(key: bytes, value: bytes) -> None:
    assert isinstance(decode_quota(key, value), Unreadable)
    good = quota_key(Subject("*")), encode_quota(StoredQuota(Quota(requests=3)))
    found = quota_set_of({key: (7, value), good[0]: (8, good[1]), b"acl/x": (9, b"")})
    assert found.of_principal("user:alice").requests == 3
    assert len(found.unreadable) == 1


def test_the_same_records_give_the_same_set() -> None:
    records = {quota_key(Subject("*")): (8, encode_quota(StoredQuota(Quota(requests=3))))}
    first = quota_set_of(records)
    assert quota_set_of({**records, b"topic/x": (9, b"")}, first) is first
    assert quota_set_of({}, first).of_principal("x") == Quota()

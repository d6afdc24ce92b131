"""Buckets over random times and amounts: never more than the quota, never less for the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq_broker.access.state.quotas import Limit, Quota, QuotaSet, StoredQuota, Subject
from ledgermq_broker.access.state.usage import BURST_S, Account, Usages

STEPS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000)), min_size=1, max_size=60)
PER_S = st.integers(1, 2000)


def _about(amount: float) -> float:
    return amount * (1 + 1e-9) + 1e-6


@given(PER_S, STEPS)
def test_over_any_time_no_more_passes_than_the_quota_a_burst_and_one_amount(
    per_s: int, steps: list[tuple[float, int]]
) -> None:
    bucket, now_s, passed = TokenBucket(per_s, 0.0), 0.0, []
    for pause_s, amount in steps:
        now_s += pause_s
        if not bucket.wait_s(now_s):
            bucket.take(amount, now_s)
            passed.append((now_s, amount))
    for first in range(len(passed)):
        total = 0
        for at_s, amount in passed[first:]:
            assert total <= _about(per_s * (at_s - passed[first][0] + BURST_S))
            total += amount


@given(PER_S, STEPS)
def test_a_caller_that_waits_as_long_as_it_is_told_gets_its_whole_quota(
    per_s: int, steps: list[tuple[float, int]]
) -> None:
    """Waiting is neither too short, so that it is refused again and again, nor a millisecond too long."""
    bucket, now_s, total = TokenBucket(per_s, 0.0), 0.0, 0
    for _, amount in steps:
        waits = 0
        while wait_s := bucket.wait_s(now_s):
            now_s += wait_s
            waits += 1
            assert waits <= 2, "one wait, and one more where floats are rounded"
        bucket.take(amount, now_s)
        total += amount
    assert now_s <= total / per_s + 0.002 * len(steps)


@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.floats(0, 4000), st.integers(1, 10**8)), min_size=1, max_size=60),
)
def test_what_is_charged_later_is_never_more_than_the_budget_an_hour_and_what_was_on_its_way(
    microdollars: int, steps: list[tuple[float, int]]
) -> None:
    """Each call that is let through is charged for when the next one comes."""
    usages = Usages()
    usages.take(QuotaSet({Subject("*"): StoredQuota(Quota(microdollars_month=microdollars))}))
    per_s, burst = Limit.DOLLARS_MONTH.flow(microdollars)
    account = Account(usages, "user:calm", "")
    now_s, spent, on_its_way = 0.0, 0, 0
    for pause_s, price in steps:
        now_s += pause_s
        if account.excess((Limit.DOLLARS_MONTH,), now_s) is None:
            assert spent <= _about(burst + per_s * now_s)
            usages.spend("user:calm", on_its_way, now_s)
            spent, on_its_way = spent + on_its_way, price
    assert spent + on_its_way <= _about(burst + per_s * now_s) + 2 * 10**8


@given(PER_S, PER_S, STEPS)
def test_another_limit_neither_forgives_nor_gives(before: int, after: int, steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(before, 0.0)
    now_s = 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        bucket.take(amount, now_s)
    level = bucket.level(now_s)
    bucket.change(after, now_s)
    assert bucket.level(now_s) == min(level, after * BURST_S)


@given(PER_S, STEPS, st.lists(st.floats(0, 3), max_size=40))
def test_one_principal_takes_nothing_from_another(
    per_s: int, flood: list[tuple[float, int]], calls: list[float]
) -> None:
    """What a principal is answered is the same with and without another one that floods."""
    quotas = QuotaSet({Subject("*"): StoredQuota(Quota(bytes_in=per_s, requests=5))})

    def answers(*, with_flood: bool) -> list[bool]:
        usages = Usages()
        usages.take(quotas)
        calm, wild = Account(usages, "user:calm", ""), Account(usages, "user:wild", "")
        events = [(sum(calls[: index + 1]), 0, per_s // 2 + 1) for index in range(len(calls))]
        at_s = 0.0
        for pause_s, amount in flood if with_flood else ():
            at_s += pause_s
            events.append((at_s, 1, amount))
        found = []
        for now_s, is_flood, amount in sorted(events):
            account = wild if is_flood else calm
            is_allowed = account.excess((Limit.BYTES_IN, Limit.REQUESTS), now_s) is None
            if is_allowed:
                account.take(Limit.REQUESTS, 1, now_s)
                account.take(Limit.BYTES_IN, amount, now_s)
            if not is_flood:
                found.append(is_allowed)
        return found

    assert answers(with_flood=True) == answers(with_flood=False)

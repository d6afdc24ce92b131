"""Shares of a table, and the ids of messages that are one."""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidRecord, QuotaExceeded, ResourceExhausted
from ledgermq.protocol.naming.message_ids import hash_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.message_ids import MessageIds
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares

MOST = 120


def taken(shares: Shares, principal: int, total: int) -> int:
    """Take as many entries as this principal may have, of a table in which `total` are taken."""
    for number in range(MOST):
        free = MOST - total - number
        if principal and number + 1 > free:
            with pytest.raises(QuotaExceeded, match=f"has {number} things in here") as refused:
                shares.check(principal, 1, free, where="here", retry_after_ms=7)
            assert (refused.value.limit, refused.value.retry_after_ms) == ("things", 7)
            return number
        shares.check(principal, 1, free, where="here", retry_after_ms=7)
        shares.add(principal)
    return MOST


def test_each_principal_may_have_as_many_as_are_free() -> None:
    shares, total, found = Shares("things", "things"), 0, []
    for principal in range(1, 7):
        found.append(taken(shares, principal, total))
        total += found[-1]
    assert found == [60, 30, 15, 8, 4, 2]
    shares.add(1, -60)
    assert shares.of(1) == 0
    assert taken(shares, 7, total - 60) == 31, "what one leaves is there for others"


def test_without_a_principal_the_table_is_the_bound() -> None:
    assert taken(Shares("things", "things"), NO_PRINCIPAL, 0) == MOST


def test_a_copy_counts_for_itself() -> None:
    shares = Shares("things", "things")
    shares.add(1, 3)
    twin = shares.copy()
    twin.add_all((1, 0, 2))
    assert (shares.of(1), shares.of(2), twin.of(1), twin.of(2)) == (3, 0, 4, 1)


def entry(ids: list[bytes], principal: int, until_us: int = 100, base_offset: int = 0) -> fmt.BatchEntry:
    return fmt.BatchEntry(
        topic_id=1,
        base_offset=base_offset,
        record_count=len(ids),
        message_ids=b"".join(ids),
        ids_until_us=until_us,
        principal=principal,
    )


def test_ids_count_to_the_principal_that_sent_them_until_they_are_over() -> None:
    ids, key = MessageIds(10), PartitionId(1, 0)
    names = [hash_of(str(n).encode()) for n in range(20)]
    ids.add(entry(names[:4], principal=7), 1)
    ids.add(entry(names[4:5], principal=7, until_us=200, base_offset=4), 2)
    with pytest.raises(QuotaExceeded, match="this principal has 5 ids of messages"):
        ids.judge(key, names[5], 50, 7)
    assert ids.judge(key, names[5], 50, 8) is None
    assert ids.judge(key, names[5], 50) is None
    with pytest.raises(InvalidRecord, match="remembers 5 of one principal at most"):
        ids.judge(key, b"".join(names[5:11]), 50, 8)

    loaded = MessageIds(10)
    loaded.load(ids.encode())
    moved = MessageIds(10)
    moved.take_in(ids.ids_of(key), 9)
    for same in (ids, ids.copy(), loaded, moved):
        assert (same.count, same.shares.of(7)) == (5, 5)
        assert same.judge(key, names[5], 100, 7) is None
        assert (same.count, same.shares.of(7)) == (1, 1), "the first four are over"
        same.drop_topic(1)
        assert (same.count, same.shares.of(7)) == (0, 0)


def test_a_table_that_is_full_refuses_every_caller_alike() -> None:
    """As before: what an earlier release has stored counts to no principal."""
    ids, key = MessageIds(4), PartitionId(1, 0)
    names = [hash_of(str(n).encode()) for n in range(5)]
    ids.add(entry(names[:4], principal=0), 1)
    for principal in (0, 7):
        with pytest.raises(ResourceExhausted, match="4 at most") as refused:
            ids.judge(key, names[4], 50, principal)
        assert type(refused.value) is ResourceExhausted

"""How calls are shared out, and which connections flood."""

from __future__ import annotations

from ledgermq.errors import ResourceExhausted
from ledgermq_broker.admission.calls import (
    BROKER_CALLS,
    CONNECTION_BURST,
    CONNECTION_PER_S,
    KEPT_MAX,
    POOR_CONNECTION_MAX,
    SOURCE_BURST,
    CallShares,
    Floods,
    host_of,
)


def taken(shares: CallShares, sharer: str, *, is_broker: bool = False) -> int:
    """How many calls a sharer gets."""
    for count in range(100_000):
        try:
            shares.begin(sharer, is_broker=is_broker)
        except ResourceExhausted:
            return count
    raise AssertionError("no bound")


def test_one_sharer_gets_half_and_leaves_room_for_all_others() -> None:
    shares = CallShares(2000)
    assert taken(shares, "a") == 1000
    assert taken(shares, "b") == 500
    for number in range(100):
        assert taken(shares, f"c{number}") >= 1 or number > 7, "further floods leave less and less"


def test_a_bound_is_free_again_when_calls_end() -> None:
    shares = CallShares(10)
    assert taken(shares, "a") == 5
    for _ in range(5):
        shares.end("a")
    assert shares.total == 0
    assert taken(shares, "a") == 5


def test_brokers_get_more_than_all_others_together() -> None:
    shares = CallShares(100)
    for number in range(50):
        taken(shares, f"user:{number}")
    assert shares.total <= 100
    assert taken(shares, "broker:b", is_broker=True) >= BROKER_CALLS


def test_a_connection_that_floods_is_broken_and_a_slow_one_is_not() -> None:
    floods = Floods()
    assert not any(floods.note("a", "host", 0.0) for _ in range(CONNECTION_BURST))
    assert floods.note("a", "host", 0.0)
    assert not floods.note("b", "host", 0.0)
    slow = [floods.note("c", "other", number / CONNECTION_PER_S) for number in range(10_000)]
    assert not any(slow)


def test_many_connections_of_one_source_get_less() -> None:
    floods, connections = Floods(), 0
    for number in range(100):
        calls = 0
        while not floods.note(f"connection {number}", "host", 0.0):
            calls += 1
        connections += calls > POOR_CONNECTION_MAX
    assert connections <= SOURCE_BURST // CONNECTION_BURST + 1
    assert not floods.note("of another host", "other", 0.0)


def test_what_is_kept_is_bounded() -> None:
    floods = Floods()
    for number in range(3 * KEPT_MAX):
        floods.note(str(number), str(number), 0.0)
    assert len(floods._connections) == len(floods._sources) == KEPT_MAX


def test_the_host_of_a_peer() -> None:
    assert host_of("ipv4:10.0.0.7:51000") == "10.0.0.7"
    assert host_of("ipv6:%5B::ffff:10.0.0.7%5D:51000") == "10.0.0.7"
    assert host_of("ipv6:%5B2001:db8::1%5D:51000") == host_of("ipv6:%5B2001:db8::2%5D:4"), "one machine may have all"
    assert host_of("ipv6:%5B2001:db8:0:1::1%5D:51000") != host_of("ipv6:%5B2001:db8::2%5D:4")
    assert host_of("unix:") == "unix"

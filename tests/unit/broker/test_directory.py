"""Which claims are a fight, by what the brokers that are present say."""

from __future__ import annotations

from collections.abc import Collection

from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import Heartbeat


def beat(broker: str, epoch: int | None = None, *, releasing: bool = False, leaving: bool = False) -> Heartbeat:
    bundles = {} if epoch is None else {1: epoch}
    return Heartbeat(
        broker, f"{broker}:1", 1, broker, bundles=bundles, releasing=(1,) if releasing else (), leaving=leaving
    )


def update(directory: Directory, now: float, *heartbeats: Heartbeat, ended: Collection[str] = ()) -> None:
    directory.update({heartbeat.broker: heartbeat for heartbeat in heartbeats}, now, lambda broker: broker in ended)


def recent(directory: Directory) -> int:
    return directory.claims[1].recent(now=9.0)


def test_a_bundle_whose_owners_end_one_after_the_other_is_no_fight() -> None:
    directory = Directory(2)
    for epoch, owner in enumerate("abcdefgh", start=1):
        update(directory, float(epoch), beat(owner, epoch), beat("me"), ended="abcdefgh"[: epoch - 1])
        assert directory.owners[1].epoch == epoch
    assert recent(directory) == 0


def test_one_whose_owners_fall_silent_may_be() -> None:
    """In a storm at the store no broker's heartbeat comes through, and all live."""
    directory = Directory(2)
    for epoch, owner in enumerate("abababab", start=1):
        update(directory, float(epoch), beat(owner, epoch))
    assert recent(directory) == 7


def test_one_that_is_handed_over_is_none() -> None:
    directory = Directory(2)
    update(directory, 0.0, beat("a", 1))
    update(directory, 1.0, beat("a", 1, releasing=True), beat("b"))
    update(directory, 2.0, beat("a"), beat("b", 2))
    update(directory, 3.0, beat("b", 2, leaving=True))
    update(directory, 4.0, beat("c", 3))
    assert recent(directory) == 0


def test_nor_one_that_had_been_handed_over_between_two_looks() -> None:
    """A hand-over is over within one interval: a broker that looks but once in that time has
    not seen it announced.
    """
    directory = Directory(2)
    update(directory, 0.0, beat("a", 1), beat("b"))
    update(directory, 1.0, beat("a", releasing=True), beat("b"))
    assert not directory.owners
    update(directory, 2.0, beat("a", releasing=True), beat("b", 2))
    assert directory.owners[1].broker == "b"
    assert recent(directory) == 0
    update(directory, 3.0, beat("a", 3), beat("b", 2))
    assert recent(directory) == 1, "what it has handed over is another's"


def test_heartbeats_that_dead_brokers_left_say_nothing_of_a_fight_to_one_that_starts() -> None:
    """Until it has found that they are dead, they are present to it."""
    directory = Directory(2)
    update(directory, 0.0, *(beat(owner, epoch) for epoch, owner in enumerate("abcdefgh", start=1)))
    assert directory.owners[1].broker == "h"
    assert recent(directory) == 0


def test_a_broker_that_takes_a_bundle_from_a_living_owner_fights() -> None:
    directory = Directory(2)
    update(directory, 0.0, beat("a", 1), beat("b"))
    update(directory, 1.0, beat("a", 1), beat("b", 2))
    update(directory, 2.0, beat("a", 3), beat("b", 2))
    assert recent(directory) == 2


def test_so_do_two_brokers_that_claim_a_free_bundle_at_the_same_time() -> None:
    for order in ("ab", "ba"):
        directory = Directory(2)
        update(directory, 0.0, beat("dead", 1))
        claimed = {"a": beat("a", 2), "b": beat("b", 3)}
        update(directory, 1.0, *(claimed[name] for name in order), ended=["dead"])
        assert directory.owners[1].broker == "b"
        assert recent(directory) == 1, order

"""Which claims are a fight, by what the brokers that are present say."""

from __future__ import annotations

from stateless_broker.directory import Directory
from stateless_broker.heartbeat import Heartbeat


def beats(*heartbeats: Heartbeat) -> dict[str, Heartbeat]:
    return {heartbeat.broker: heartbeat for heartbeat in heartbeats}


def beat(broker: str, epoch: int | None = None, *, releasing: bool = False, leaving: bool = False) -> Heartbeat:
    bundles = {} if epoch is None else {1: epoch}
    return Heartbeat(broker, f"{broker}:1", 1, broker, bundles=bundles, releasing=(1,) if releasing else (), leaving=leaving)


def recent(directory: Directory) -> int:
    return directory.claims[1].recent(now=9.0)


def test_a_bundle_whose_owners_die_one_after_the_other_is_no_fight() -> None:
    directory = Directory(2)
    for epoch, owner in enumerate("abcdefgh", start=1):
        directory.update(beats(beat(owner, epoch), beat("me")), now=float(epoch))
        assert directory.owners[1].epoch == epoch
    assert recent(directory) == 0


def test_nor_is_one_that_is_handed_over() -> None:
    directory = Directory(2)
    directory.update(beats(beat("a", 1)), now=0.0)
    directory.update(beats(beat("a", 1, releasing=True), beat("b")), now=1.0)
    directory.update(beats(beat("a"), beat("b", 2)), now=2.0)
    directory.update(beats(beat("b", 2, leaving=True)), now=3.0)
    directory.update(beats(beat("c", 3)), now=4.0)
    assert recent(directory) == 0


def test_heartbeats_that_dead_brokers_left_say_nothing_of_a_fight_to_one_that_starts() -> None:
    """Until it has found that they are dead, they are present to it."""
    directory = Directory(2)
    directory.update(beats(*(beat(owner, epoch) for epoch, owner in enumerate("abcdefgh", start=1))), now=0.0)
    assert directory.owners[1].broker == "h"
    assert recent(directory) == 0


def test_who_takes_it_from_a_living_owner_fights() -> None:
    directory = Directory(2)
    directory.update(beats(beat("a", 1), beat("b")), now=0.0)
    directory.update(beats(beat("a", 1), beat("b", 2)), now=1.0)
    directory.update(beats(beat("a", 3), beat("b", 2)), now=2.0)
    assert recent(directory) == 2


def test_so_do_those_who_take_at_the_same_time_what_nobody_has() -> None:
    for order in ("ab", "ba"):
        directory = Directory(2)
        directory.update(beats(beat("dead", 1)), now=0.0)
        claimed = {"a": beat("a", 2), "b": beat("b", 3)}
        directory.update(beats(*(claimed[name] for name in order)), now=1.0)
        assert directory.owners[1].broker == "b"
        assert recent(directory) == 1, order

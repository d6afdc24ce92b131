"""Choose which broker should own which bundle: pure functions of the live brokers, the current owners
and the loads that brokers announce.

*By count* (`place`): rendezvous hashing with a bounded count. Each broker gets floor or ceiling of
bundles / brokers, and a bundle that has to move goes to the broker with room whose hash with it is
highest. Hysteresis: a bundle never leaves a live owner that is within its share, so the same view
twice gives the same answer, and one broker more or less moves no more bundles than the balance
needs. Where loads differ, bundles that are all owned stay if placement by count would make the most
loaded brokers busier, and the counts are within `bounds`.

*By load* (`relief`): at most one bundle at a time leaves the broker with the largest load. With the
same loads no sequence of answers returns to an earlier one, because the loads of the brokers, in
descending order, never grow, and each relief makes them smaller.

The result is only a wish: two brokers with different views may both want a bundle, and the ledger's
chain decides (design O1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from ledgermq.evenness import EXCESS_MIN, GAIN_MIN
from ledgermq_ledger import keys

SCORES_REMEMBERED = 4096
"""Every decision about placement asks for those of all bundles again."""


@dataclass(frozen=True, slots=True)
class Relief:
    """Bundle `bundle` is to move from its owner, the broker with the largest load, to `broker`."""

    bundle: int
    broker: str


@lru_cache(SCORES_REMEMBERED)
def score(broker: str, bundle: int) -> int:
    """Return a score that is the same in every process and version."""
    return int.from_bytes(blake2b(f"{bundle}/{broker}".encode(), digest_size=8).digest(), "big")


def place(
    bundles: Collection[int],
    live: Collection[str],
    owners: Mapping[int, str],
    loads: Mapping[int, int] | None = None,
    *,
    by_rack: bool = False,
) -> dict[int, str]:
    """Return the wanted owner (a broker id) of each bundle; empty when no broker lives. `owners`:
    the known current owners. `loads`: of bundles, in any unit; a bundle without one is idle. `by_rack`: bundles
    follow their bytes (`nearness`), so they stay as long as the counts are within `bounds`.

    Bundle 0 is placed by itself: metadata is no load, and must not cost its owner a user bundle.
    """
    if not live:
        return {}
    users = [bundle for bundle in bundles if bundle != keys.METADATA_BUNDLE]
    wanted = _balance(users, live, owners)
    owned = {bundle: owners[bundle] for bundle in users if owners.get(bundle) in live}
    may_stay = _is_within_bounds if by_rack else _may_stay
    if loads and len(owned) == len(users) and may_stay(owned, wanted, live, loads):
        wanted = owned
    if keys.METADATA_BUNDLE in bundles:
        owner = owners.get(keys.METADATA_BUNDLE, "")
        wanted[keys.METADATA_BUNDLE] = (
            owner if owner in live else max(live, key=lambda b: (score(b, keys.METADATA_BUNDLE), b))
        )
    return wanted


def relief(live: Collection[str], owners: Mapping[int, str], loads: Mapping[int, int]) -> Relief | None:
    """Return the move that relieves the broker with the largest load, or None if none is worth a
    takeover. `owners`: of all bundles, each a live broker.
    """
    if len(live) < 2:
        return None
    owners = {bundle: owner for bundle, owner in owners.items() if bundle != keys.METADATA_BUNDLE}
    held, load = held_by(owners, live), load_by(owners, live, loads)
    least, most = bounds(len(owners), len(held))
    source = max(held, key=lambda broker: (load[broker], broker))
    mean = sum(load.values()) / len(load)
    excess = load[source] - mean
    targets = [broker for broker in held if broker != source and len(held[broker]) < most]
    if excess <= EXCESS_MIN * mean or len(held[source]) <= least or not targets:
        return None
    target = min(targets, key=lambda broker: (load[broker], broker))

    def larger_after(bundle: int) -> int:
        moved = loads.get(bundle, 0)
        return max(load[source] - moved, load[target] + moved)

    bundle = min(held[source], key=lambda bundle: (larger_after(bundle), bundle))
    gain = load[source] - larger_after(bundle)
    return Relief(bundle, target) if gain >= GAIN_MIN * excess else None


def _may_stay(
    owned: Mapping[int, str], by_count: Mapping[int, str], live: Collection[str], loads: Mapping[int, int]
) -> bool:
    """Return whether placement by count would only make the most loaded brokers busier."""
    if len({loads.get(bundle, 0) for bundle in owned}) < 2 or not _is_within_bounds(owned, by_count, live, loads):
        return False
    return _descending(load_by(owned, live, loads)) < _descending(load_by(by_count, live, loads))


def _is_within_bounds(
    owned: Mapping[int, str], by_count: Mapping[int, str], live: Collection[str], loads: Mapping[int, int]
) -> bool:
    """Return whether each broker has about as many bundles as it should, and some are busy."""
    least, most = bounds(len(owned), len(live))
    return any(loads.values()) and all(least <= len(each) <= most for each in held_by(owned, live).values())


def bounds(bundles: int, brokers: int) -> tuple[int, int]:
    """Return the least and the most bundles of a broker where loads differ: half of its share, but one where there
    are as many bundles as brokers, and half more than its share.

    An idle bundle costs work when it is taken over, so one broker's end must not cost all of it.
    """
    share, rest = divmod(bundles, brokers)
    most = share + (rest > 0)
    return max(share // 2, min(share, 1)), most + (most + 1) // 2


def held_by(owners: Mapping[int, str], live: Collection[str]) -> dict[str, list[int]]:
    held: dict[str, list[int]] = {broker: [] for broker in live}
    for bundle, owner in owners.items():
        held[owner].append(bundle)
    return held


def load_by(owners: Mapping[int, str], live: Collection[str], loads: Mapping[int, int]) -> dict[str, int]:
    return {
        broker: sum(loads.get(bundle, 0) for bundle in bundles) for broker, bundles in held_by(owners, live).items()
    }


def _descending(load: Mapping[str, int]) -> list[int]:
    return sorted(load.values(), reverse=True)


def _balance(bundles: Collection[int], live: Collection[str], owners: Mapping[int, str]) -> dict[int, str]:
    held: dict[str, list[int]] = {broker: [] for broker in live}
    for bundle in bundles:
        if owners.get(bundle) in held:
            held[owners[bundle]].append(bundle)
    least, surplus = divmod(len(bundles), len(held))
    room: dict[str, int] = {}
    wanted: dict[int, str] = {}
    for rank, broker in enumerate(sorted(held, key=lambda b: (-len(held[b]), b))):
        share = least + (rank < surplus)  # brokers that hold most keep one more, so that the fewest bundles move
        kept = sorted(held[broker], key=lambda bundle: (-score(broker, bundle), bundle))[:share]
        wanted |= dict.fromkeys(kept, broker)
        room[broker] = share - len(kept)
    for bundle in sorted(set(bundles) - wanted.keys()):
        broker = max((b for b in room if room[b]), key=lambda b: (score(b, bundle), b))
        wanted[bundle] = broker
        room[broker] -= 1
    return wanted

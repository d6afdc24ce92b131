"""Choose which broker should own which bundle: a pure function of the live brokers and the current
owners.

Rendezvous hashing with a bounded load: each broker gets floor or ceiling of bundles / brokers, and
a bundle that has to move goes to the broker with room whose hash with it is highest. Hysteresis: a
bundle never leaves a live owner that is within its share, so the same view twice gives the same
answer, and one broker more or less moves no more bundles than the balance needs. The result is only
a wish: two brokers with different views may both want a bundle, and the ledger's chain decides
(design O1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b

from ledger import keys


def score(broker: str, bundle: int) -> int:
    """Return a score that is the same in every process and version."""
    return int.from_bytes(blake2b(f"{bundle}/{broker}".encode(), digest_size=8).digest(), "big")


def place(bundles: Collection[int], live: Collection[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Return the wanted owner (a broker id) of each bundle; empty when no broker lives. `owners`:
    the known current owners.

    Bundle 0 is placed by itself: metadata is no load, and must not cost its owner a user bundle.
    """
    if not live:
        return {}
    users = [bundle for bundle in bundles if bundle != keys.METADATA_BUNDLE]
    wanted = _balance(users, live, owners)
    if keys.METADATA_BUNDLE in bundles:
        owner = owners.get(keys.METADATA_BUNDLE, "")
        wanted[keys.METADATA_BUNDLE] = (
            owner if owner in live else max(live, key=lambda b: (score(b, keys.METADATA_BUNDLE), b))
        )
    return wanted


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

"""Decide which bundle goes to the rack that most of its bytes come from and go to. Pure: times are passed in.

The owner of a bundle decides, by what it has measured, and promises the bundle as for load (`load_moves`). So no
other broker needs to know the bytes. A bundle moves only by a clear margin (`GAIN_OF_BYTES_MIN`), to a broker that
stays clearly below what counts as too much load (`FILLED_MAX`). With steady loads and bytes it comes to rest, because
a move to a rack never makes a broker one that has to be relieved, and each one lets fewer bytes cross.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.evenness import EXCESS_MIN
from ledgermq_broker.cluster.placement.bundles import Relief, bounds, held_by, load_by
from ledgermq_ledger import keys

GAIN_OF_BYTES_MIN = 0.25
"""A move must keep this share of the bundle's bytes from crossing racks. To move back takes as much the other way."""
FILLED_MAX = 1 + 0.75 * EXCESS_MIN
"""The broker that takes a bundle has at most this many times the mean load with it."""


def nearer(
    me: str,
    racks: Mapping[str, str],
    owners: Mapping[int, str],
    loads: Mapping[int, int],
    bytes_by_rack: Mapping[int, Mapping[str, int]],
    bytes_min: int,
) -> Relief | None:
    """Return the move of a bundle of broker `me` that keeps most bytes from crossing racks; None if none is worth a
    takeover.

    `racks`: of the live brokers, "" if one has said none. `owners`: of all bundles, each a live broker. `loads`: of
    bundles, without idle ones, which stay. `bytes_by_rack`: of bundles of `me`, in bytes a second, those of callers
    that have said no rack under "". `bytes_min`: a move gains at least so much.
    """
    owners = {bundle: owner for bundle, owner in owners.items() if bundle != keys.METADATA_BUNDLE}
    if not racks.get(me) or not owners:
        return None
    held, load = held_by(owners, racks), load_by(owners, racks, loads)
    least, most = bounds(len(owners), len(racks))
    room = FILLED_MAX * sum(load.values()) / len(racks)
    found: dict[Relief, int] = {}
    for bundle in sorted(held[me]) if len(held[me]) > least else ():
        by_rack = bytes_by_rack.get(bundle, {})
        gain_min = max(bytes_min, GAIN_OF_BYTES_MIN * sum(by_rack.values()), 1)
        for rack in sorted(by_rack.keys() - {""}):
            gain = by_rack[rack] - by_rack.get(racks[me], 0)
            there = [broker for broker in racks if racks[broker] == rack and len(held[broker]) < most]
            target = min(there, key=lambda broker: (load[broker], broker), default="")
            if target and loads.get(bundle) and gain >= gain_min and load[target] + loads[bundle] <= room:
                found[Relief(bundle, target)] = gain
    return max(found, key=lambda move: found[move], default=None)


class Patience:
    """Waits until nothing has moved for a while, and one broker after the other may begin."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._owners: Mapping[int, str] = {}
        self._since: float | None = None

    def is_over(self, wish: Relief | None, owners: Mapping[int, str], now: float, wait_s: float, turn_s: float) -> bool:
        """Return whether this broker has had a wish for `wait_s`, while no owner changed. Brokers that wait equally
        long have turns of `turn_s`, by the order of their names, so that the first one changes an owner. Which bundle
        is wished for may change with each measurement.
        """
        if wish is None:
            self._since = None
            return False
        if self._since is None or owners != self._owners:
            self._owners, self._since = dict(owners), now
        turn = sum(owner < self._me for owner in {*owners.values()})
        return now - self._since >= wait_s + turn * turn_s

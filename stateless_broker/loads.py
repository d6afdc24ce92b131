"""Measure the load of each bundle that this broker owns, as it is announced in the heartbeat. Pure:
times are passed in.

The load is in bytes a second: bytes produced and fetched, and `REQUEST_BYTES` for each request. It
is smoothed by an exponential mean. It is announced seldom and coarsely, because the others read a
heartbeat again whenever its content has changed (`heartbeat`): a steady load is announced once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.buffers import KIB, MIB

REQUEST_BYTES = 64 * KIB
"""A request costs a broker as much CPU as this many bytes: 0.16 to 0.32 ms (the part of a gRPC call
that does not grow with its size, by stream and unary), at 4.4 ms a MB (docs/performance.md, P11).
"""
CHANGE_MIN = 0.25
"""A load is announced again when it differs by this share from what was announced."""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """`half_life_s`: of the mean. `sample_s`: the least time between two samples.

    `quiet`: a bundle with a smaller load counts as idle. The default is 0.4 % of a core. `wait_s`: how
    long an imbalance must last before a bundle moves for it, and how long the bundle must have been
    where it is.
    """

    half_life_s: float = 60.0
    sample_s: float = 15.0
    quiet: int = MIB
    wait_s: float = 60.0


@dataclass(slots=True)
class Traffic:
    """What a term has served: requests, and bytes of batches in both directions."""

    requests: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.requests += 1
        self.size_bytes += size_bytes

    @property
    def cost_bytes(self) -> int:
        return self.size_bytes + REQUEST_BYTES * self.requests


@dataclass(slots=True)
class _Bundle:
    counted: int
    mean: float
    announced: int


class Loads:
    def __init__(self, times: LoadTimes) -> None:
        self._times = times
        self._bundles: dict[int, _Bundle] = {}
        self._sampled_at: float | None = None

    def announced(self, counted: Mapping[int, int], known: Mapping[int, int], now: float) -> dict[int, int]:
        """Return the loads to announce, without those of idle bundles.

        `counted`: the bytes that each bundle has cost since this broker took it. `known`: what the
        owners before announced last; a bundle begins with that, so that it does not look idle.
        """
        for bundle in self._bundles.keys() - counted.keys():
            del self._bundles[bundle]
        for bundle in counted.keys() - self._bundles.keys():
            seed = known.get(bundle, 0)
            self._bundles[bundle] = _Bundle(counted[bundle], seed, seed)
        if self._sampled_at is None:
            self._sampled_at = now
        elapsed_s = now - self._sampled_at
        if elapsed_s >= self._times.sample_s:
            self._sampled_at = now
            for bundle, size in counted.items():
                self._sample(self._bundles[bundle], size, elapsed_s)
        return {bundle: each.announced for bundle, each in sorted(self._bundles.items()) if each.announced}

    def _sample(self, bundle: _Bundle, counted: int, elapsed_s: float) -> None:
        more = counted - bundle.counted if counted >= bundle.counted else counted  # a new term counts from 0
        bundle.counted = counted
        kept = 0.5 ** (elapsed_s / self._times.half_life_s)
        bundle.mean = kept * bundle.mean + (1 - kept) * more / elapsed_s
        if abs(bundle.mean - bundle.announced) > CHANGE_MIN * bundle.announced:
            bundle.announced = round(bundle.mean) if bundle.mean >= self._times.quiet else 0

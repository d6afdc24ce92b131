"""Measure the load of each bundle that this broker owns, as it is announced in the heartbeat, and of
each partition in it, as callers ask for it, and of each rack, for placement. Pure: times are passed in.

The load is in bytes a second: bytes produced and fetched, and `REQUEST_BYTES` for each request. It
is smoothed by an exponential mean. That of a bundle is announced seldom and coarsely, because the
others read a heartbeat again whenever its content has changed (`heartbeat`): a steady load is
announced once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import exp2
from typing import Generic, TypeVar

from ledgermq.buffers import KIB
from ledgermq.evenness import QUIET_BYTES
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch

REQUEST_BYTES = 64 * KIB
"""A request costs a broker as much CPU as this many bytes: 0.16 to 0.32 ms (the part of a gRPC call
that does not grow with its size, by stream and unary), at 4.4 ms a MB (docs/performance.md, P11).
"""
CHANGE_MIN = 0.25
"""A load is announced again when it differs by this share from what was announced."""
PARTITION_SHARE = 1 / 1024
"""A partition with a smaller load than this share of `LoadTimes.quiet` counts as idle, so that a thousand of them do
not make a busy bundle.
"""

_rack: ContextVar[str] = ContextVar("ledgermq_rack", default="")
RACKS_MAX = 100
"""Racks that are counted in a bundle between two samples. What further ones send counts as that of an unknown one."""


def set_rack(rack: str) -> None:
    """Set the rack of the program that this task, and each task that it begins, serves from now on; "": it has said
    none.
    """
    _rack.set(rack)


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """`half_life_s`: of the mean. `sample_s`: the least time between two samples.

    `quiet`: a bundle with a smaller load counts as idle. The default is 0.4 % of a core. `wait_s`: how
    long an imbalance must last before a bundle moves for it, and how long the bundle must have been
    where it is.
    """

    half_life_s: float = 60.0
    sample_s: float = 15.0
    quiet: int = QUIET_BYTES
    wait_s: float = 60.0
    near_s: float = 600.0
    """How long the bytes of a bundle must have been measured where it is, before it moves to the rack of most of them.
    Their mean has half of that as its half-life.
    """
    near_bytes: int = 64 * KIB
    """Bytes a second that such a move must keep from crossing racks."""

    def kept(self, elapsed_s: float) -> float:
        """Return the part that a mean keeps of what it was so long ago."""
        return exp2(-elapsed_s / self.half_life_s)

    def mean(self, before: float, more_bytes: int, elapsed_s: float) -> float:
        """Return the mean, in bytes a second, after so many bytes in the time since it was `before`."""
        kept = self.kept(elapsed_s)
        return kept * before + (1 - kept) * more_bytes / elapsed_s


@dataclass(slots=True)
class Traffic:
    """What a term has served, in bytes: those of batches in both directions, and `REQUEST_BYTES` for each
    request.

    `cost_bytes`: since the term began. `by_partition`: since the last `take`. `by_rack`: since the last `take_racks`,
    bytes of batches by the rack of the program, "" if it has said none.
    """

    cost_bytes: int = 0
    by_partition: dict[PartitionId, int] = field(default_factory=dict)
    by_rack: dict[str, int] = field(default_factory=dict)

    def produced(self, batches: Sequence[Batch]) -> None:
        """Count a request that brought batches: each has an equal part of what the request itself costs."""
        each = REQUEST_BYTES // max(1, len(batches))
        self.cost_bytes += REQUEST_BYTES
        for batch in batches:
            size = len(batch.data)
            self.cost_bytes += size
            self.by_partition[batch.key] = self.by_partition.get(batch.key, 0) + size + each
            self._of_rack(size)

    def fetched(self, key: PartitionId, size_bytes: int) -> None:
        """Count a request that took bytes of a partition."""
        self.cost_bytes += size_bytes + REQUEST_BYTES
        self.by_partition[key] = self.by_partition.get(key, 0) + size_bytes + REQUEST_BYTES
        self._of_rack(size_bytes)

    def _of_rack(self, size_bytes: int) -> None:
        rack = _rack.get()
        if rack not in self.by_rack and len(self.by_rack) >= RACKS_MAX:
            rack = ""
        self.by_rack[rack] = self.by_rack.get(rack, 0) + size_bytes

    def take(self) -> Mapping[PartitionId, int]:
        """Return what the partitions have cost since the last call."""
        taken, self.by_partition = self.by_partition, {}
        return taken

    def take_racks(self) -> Mapping[str, int]:
        """Return the bytes of racks since the last call."""
        taken, self.by_rack = self.by_rack, {}
        return taken


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
        bundle.mean = self._times.mean(bundle.mean, more, elapsed_s)
        if abs(bundle.mean - bundle.announced) > CHANGE_MIN * bundle.announced:
            bundle.announced = round(bundle.mean) if bundle.mean >= self._times.quiet else 0


K = TypeVar("K")


@dataclass(slots=True)
class _Term(Generic[K]):
    traffic: Traffic
    began_at: float
    sampled_at: float
    means: dict[K, float] = field(default_factory=dict)


class _Means(Generic[K]):
    """Means of what is counted in the bundles that are served here; idle keys take no memory.

    `take` returns what a term has counted since its last call. `least`: a smaller mean is idle.

    A mean begins at 0 with its term, and an answer makes up for that by the age of the term.
    """

    def __init__(self, times: LoadTimes, take: Callable[[Traffic], Mapping[K, int]], least: float) -> None:
        self._times = times
        self._take = take
        self._least = least
        self._terms: dict[int, _Term[K]] = {}

    def sample(self, served: Mapping[int, Traffic], now: float) -> None:
        """Take in what the bundles have served; it costs something only every `sample_s`."""
        for bundle in self._terms.keys() - served.keys():
            del self._terms[bundle]
        for bundle, traffic in served.items():
            term = self._terms.get(bundle)
            if term is None or term.traffic is not traffic:
                self._terms[bundle] = _Term(traffic, now, now)
            elif now - term.sampled_at >= self._times.sample_s:
                self._sample(term, now)

    def _measured(self, bundle: int) -> tuple[float, dict[K, int]] | None:
        """Return for how many seconds a bundle has been measured, 0 before the first sample, and what is not idle;
        None if it is not served here.
        """
        term = self._terms.get(bundle)
        if term is None:
            return None
        measured_s = term.sampled_at - term.began_at
        known = 1 - self._times.kept(measured_s)
        return measured_s, {key: round(mean / known) for key, mean in term.means.items()}

    def _sample(self, term: _Term[K], now: float) -> None:
        elapsed_s, term.sampled_at = now - term.sampled_at, now
        taken = self._take(term.traffic)
        for key in term.means.keys() | taken.keys():
            mean = self._times.mean(term.means.get(key, 0.0), taken.get(key, 0), elapsed_s)
            if mean >= self._least:
                term.means[key] = mean
            else:
                term.means.pop(key, None)


@dataclass(frozen=True, slots=True)
class MeasuredLoads:
    """Loads of the partitions of one bundle, without those that are idle. `measured_s`: how long the term has been
    measured; 0 before the first sample.
    """

    measured_s: float
    by_partition: Mapping[PartitionId, int]


class PartitionLoads(_Means[PartitionId]):
    """Loads of partitions. While a partition moves to another bundle, what its mean loses in the one it gains in the
    other: their sum is the load.
    """

    def __init__(self, times: LoadTimes) -> None:
        super().__init__(times, Traffic.take, times.quiet * PARTITION_SHARE)

    def of(self, bundle: int) -> MeasuredLoads | None:
        """Return the loads in a bundle; None if it is not served here."""
        found = self._measured(bundle)
        return None if found is None else MeasuredLoads(*found)


class RackLoads(_Means[str]):
    """Bytes a second by rack of the programs that send and receive them."""

    def __init__(self, times: LoadTimes) -> None:
        super().__init__(replace(times, half_life_s=times.near_s / 2), Traffic.take_racks, 1.0)

    def known(self) -> dict[int, Mapping[str, int]]:
        """Return those of the bundles that have been measured for `near_s`."""
        measured = {bundle: self._measured(bundle) for bundle in self._terms}
        near_s = self._times.near_s
        return {bundle: found[1] for bundle, found in measured.items() if found is not None and found[0] >= near_s}

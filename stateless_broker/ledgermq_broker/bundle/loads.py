"""Measure the load of each bundle that this broker owns, as it is announced in the heartbeat, and of
each partition in it, as callers ask for it. Pure: times are passed in.

The load is in bytes a second: bytes produced and fetched, and `REQUEST_BYTES` for each request. It
is smoothed by an exponential mean. That of a bundle is announced seldom and coarsely, because the
others read a heartbeat again whenever its content has changed (`heartbeat`): a steady load is
announced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp2

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

    `cost_bytes`: since the term began. `by_partition`: since the last `take`.
    """

    cost_bytes: int = 0
    by_partition: dict[PartitionId, int] = field(default_factory=dict)

    def produced(self, batches: Sequence[Batch]) -> None:
        """Count a request that brought batches: each has an equal part of what the request itself costs."""
        each = REQUEST_BYTES // max(1, len(batches))
        self.cost_bytes += REQUEST_BYTES
        for batch in batches:
            size = len(batch.data)
            self.cost_bytes += size
            self.by_partition[batch.key] = self.by_partition.get(batch.key, 0) + size + each

    def fetched(self, key: PartitionId, size_bytes: int) -> None:
        """Count a request that took bytes of a partition."""
        self.cost_bytes += size_bytes + REQUEST_BYTES
        self.by_partition[key] = self.by_partition.get(key, 0) + size_bytes + REQUEST_BYTES

    def take(self) -> Mapping[PartitionId, int]:
        """Return what the partitions have cost since the last call."""
        taken, self.by_partition = self.by_partition, {}
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


@dataclass(slots=True)
class _Term:
    traffic: Traffic
    began_at: float
    sampled_at: float
    means: dict[PartitionId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredLoads:
    """Loads of the partitions of one bundle, without those that are idle. `measured_s`: how long the term has been
    measured; 0 before the first sample.
    """

    measured_s: float
    by_partition: Mapping[PartitionId, int]


class PartitionLoads:
    """Means of the partitions of the bundles that are served here; idle ones take no memory.

    A mean begins at 0 with its term, and an answer makes up for that by the age of the term. So while a partition
    moves to another bundle, what its mean loses in the one it gains in the other: their sum is the load.
    """

    def __init__(self, times: LoadTimes) -> None:
        self._times = times
        self._terms: dict[int, _Term] = {}

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

    def of(self, bundle: int) -> MeasuredLoads | None:
        """Return the loads in a bundle; None if it is not served here."""
        term = self._terms.get(bundle)
        if term is None:
            return None
        measured_s = term.sampled_at - term.began_at
        known = 1 - self._times.kept(measured_s)
        return MeasuredLoads(measured_s, {key: round(mean / known) for key, mean in term.means.items()})

    def _sample(self, term: _Term, now: float) -> None:
        elapsed_s, term.sampled_at = now - term.sampled_at, now
        taken = term.traffic.take()
        for key in term.means.keys() | taken.keys():
            mean = self._times.mean(term.means.get(key, 0.0), taken.get(key, 0), elapsed_s)
            if mean >= self._times.quiet * PARTITION_SHARE:
                term.means[key] = mean
            else:
                term.means.pop(key, None)

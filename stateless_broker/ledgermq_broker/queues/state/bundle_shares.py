"""Decide about the queues of one bundle: the fold of its records, and each change of it.

How a broker uses it (one term, one bundle; no call waits):

    shares = BundleShares(limits)
    for record in snapshot + tail: shares.apply(record.key, record.value)
    shares.loaded()
    decision = shares.begin(key, start)                 # lease nothing before decision.records are durable
    grants = shares.partitions[key].acquire(…)          # send them after a fence check that follows
    decision = shares.answer(key, answers)              # answer when decision.records are durable
    decision = shares.expire(now)                       # decision.records may wait for others

The state is ahead of the log. The records of one decision go into one segment. They may be applied in any
order, and a snapshot with the newest value of each key gives the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from ledgermq.errors import DataDamaged, ResourceExhausted
from ledgermq.protocol.limits import with_nonce
from ledgermq_broker.queues.state.forgotten import ForgottenShares
from ledgermq_broker.queues.state.limits import FULL_RETRY_MS, ShareLimits
from ledgermq_broker.queues.state.records import ChunkEntry, Entry, ShareKey, decode, encode
from ledgermq_broker.queues.state.share_partition import SharePartition, Word
from ledgermq_broker.queues.state.spans import Span
from ledgermq_ledger.log.chains.snapshot import InternalRecord
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares

SPREAD_MAX = 1 << 20
"""Offsets between the start of a partition and its last chunk, whatever limits brokers have had."""

RESETS_KEPT = 16
"""Nonces of resets and deletions that one partition of a group remembers."""
FORGOTTEN_KEPT = 1000
"""Deleted partitions of groups whose nonces are remembered until they begin again."""

T = TypeVar("T")


class Answer(NamedTuple):
    """A member's word about messages of one lease; see `SharePartition.answer`."""

    number: int
    span: Span
    word: Word
    until_s: float


class BundleShares:
    """`partitions`: by group, topic and partition. Change them by the methods of this class, except for
    `acquire`, `gone` and `log_starts_at`, whose changes need not be stored: they are written with others.
    `away`: what is stored here of partitions that have left this bundle, or have not come yet; nothing changes it.
    """

    def __init__(self, limits: ShareLimits) -> None:
        self.limits = limits
        self.partitions: dict[ShareKey, SharePartition] = {}
        self.away: dict[ShareKey, SharePartition] = {}
        self.shares = Shares("queue_partitions", "partitions of queue groups")
        """Of `partitions`. Each counts to the principal that began the group there."""
        self._forgotten = ForgottenShares(FORGOTTEN_KEPT)
        """The nonces of a partition are stored when it begins again."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Raises DataDamaged, FormatNotSupported."""
        entry = decode(key, value)
        found = self.partitions.get(entry.key)
        if found is None:
            found = self.partitions[entry.key] = self._new(entry.key)
        if isinstance(entry, ChunkEntry):
            found.load_chunk(entry.chunk, entry.messages)
        else:
            found.load_start(entry)
        if found.spread > SPREAD_MAX:
            raise DataDamaged(
                f"record {key[:600]!r} of __shares: a queue's messages would span {found.spread} offsets, more than any"
                " broker leases"
            )

    def loaded(self) -> None:
        """Call it once, after the last record."""
        for key, found in list(self.partitions.items()):
            if not found.is_begun:
                del self.partitions[key]
            else:
                found.loaded()
                self.shares.add(found.principal)

    def begin(
        self, key: ShareKey, start: int, nonce: bytes = b"", principal: int = NO_PRINCIPAL, begun: bytes = b""
    ) -> Decision[None]:
        """Begin a partition of a group that is not known. `principal`: a hash of the caller's name; 0: not known.
        `begun`: what names the group here from now on, drawn by the caller.

        Raises ResourceExhausted; QuotaExceeded if the principal has its share of the partitions of groups.
        """
        assert key not in self.partitions, key
        self._check_room(principal)
        found = self.partitions[key] = self._new(key, principal)
        self.shares.add(principal)
        found.resets, found.begun = with_nonce(self._forgotten.pop(key), nonce, RESETS_KEPT), begun
        found.reset(start)
        return _decided(found.entries(), None)

    def _check_room(self, principal: int) -> None:
        free = self.limits.partitions_max - len(self.partitions)
        if free <= 0:
            raise ResourceExhausted(
                f"this bundle has {len(self.partitions)} partitions of queue groups, the most that it takes: delete"
                " groups that are no longer used",
                retry_after_ms=FULL_RETRY_MS,
            )
        self.shares.check(principal, 1, free, where="this bundle", retry_after_ms=FULL_RETRY_MS)

    def answer(self, key: ShareKey, answers: Iterable[Answer]) -> Decision[list[list[Span]]]:
        """Apply members' words. The answer has, for each of them, the messages for which it does not count."""
        found = self.partitions.get(key)
        if found is None:
            return Decision([], [[answer.span] for answer in answers])
        late = [found.answer(*answer) for answer in answers]
        return _decided(found.entries(), late)

    def expire(self, now_s: float) -> Decision[dict[ShareKey, int]]:
        """End leases and waits; the answer says how many messages lost their lease, where any did."""
        ended: dict[ShareKey, int] = {}
        entries: list[Entry] = []
        for key, found in self.partitions.items():
            if found.next_s is not None and found.next_s <= now_s and (messages := found.expire(now_s)):
                ended[key] = messages
                entries += found.entries()
        return _decided(entries, ended)

    def reset(
        self,
        key: ShareKey,
        start: int,
        nonce: bytes = b"",
        principal: int = NO_PRINCIPAL,
        meant: bytes = b"",
        begun: bytes = b"",
    ) -> Decision[None]:
        """Begin again at this offset, or for the first time; all leases end. `nonce`: of the call, the same in all its
        attempts; one that is remembered changes nothing, for other calls may have changed the group since. `meant`:
        by `begun`, the group that the call is about; nothing changes if it was deleted since, or has begun again.
        Empty: the one that is there. Raises as `begin`.
        """
        found = self.partitions.get(key)
        if self._is_settled(key, nonce, meant):
            return Decision([], None)
        if found is None:
            return self.begin(key, start, nonce, principal, begun)
        found.resets = with_nonce(found.resets, nonce, RESETS_KEPT)
        found.reset(start)
        return _decided(found.entries(), None)

    def forget(
        self, key: ShareKey, nonce: bytes = b"", meant: bytes = b"", principal: int = NO_PRINCIPAL
    ) -> Decision[None]:
        """Remove one partition of a group. `nonce`, `meant`: as in `reset`. `principal`: of the caller, among whose
        nonces this one is remembered. An owner that opens the bundle between the removal and the next begin does not
        know the nonce, but what begins then has another name.
        """
        nonces = self._resets(key)
        if self._is_settled(key, nonce, meant):
            return Decision([], None)
        removal = self.remove(lambda each: each == key)
        if nonce:
            self._forgotten.put(key, with_nonce(nonces, nonce, RESETS_KEPT), principal)
        return Decision(removal.records, None)

    def _is_settled(self, key: ShareKey, nonce: bytes, meant: bytes) -> bool:
        """Return whether a call was carried out by an earlier attempt, or is about a group that is there no longer.
        What an earlier release has written has no name, and is taken to be meant.
        """
        found = self.partitions.get(key)
        if meant and (found is None or found.begun not in (b"", meant)):
            return True
        return bool(nonce) and nonce in self._resets(key)

    def _resets(self, key: ShareKey) -> tuple[bytes, ...]:
        found = self.partitions.get(key)
        return self._forgotten.get(key) if found is None else found.resets

    def remove(self, is_gone: Callable[[ShareKey], bool]) -> Decision[list[ShareKey]]:
        """Remove partitions of groups: of topics that were removed, or of a group that is deleted."""
        entries: list[Entry] = []
        gone = [key for key in (*self.partitions, *self.away) if is_gone(key)]
        for key in gone:
            entries += self._pop(key).removal()
        return _decided(entries, gone)

    def part(self, is_here: Callable[[ShareKey], bool]) -> list[ShareKey]:
        """Put `away` what is not here, and take back what is; return what went. What comes back was brought, so it has
        no leases.
        """
        for key in [key for key in self.away if is_here(key)]:
            found = self.partitions[key] = self.away.pop(key)
            self.shares.add(found.principal)
        left = [key for key in self.partitions if not is_here(key)]
        for key in left:
            self.away[key] = self._pop(key)
        return left

    def bring(
        self, records: Iterable[InternalRecord], places: Collection[tuple[int, int]]
    ) -> Iterable[Decision[ShareKey]]:
        """Put what another bundle has stored of these partitions (topic id and number) `away`, in place of what is
        stored of them here: a decision for each key, which has to be taken before the next one. `records`: in
        order, also of other partitions. Raises DataDamaged, FormatNotSupported.
        """
        there = BundleShares(self.limits)
        newest: dict[ShareKey, dict[bytes, InternalRecord]] = {}
        for record in records:
            key = decode(record.key, record.value).key
            if key[1:] in places:
                there.apply(record.key, record.value)
                newest.setdefault(key, {})[record.key] = record
        there.loaded()
        for key in sorted({*there.partitions, *(key for key in (*self.partitions, *self.away) if key[1:] in places)}):
            wanted = {name: LogRecord(name, r.value) for name, r in newest.get(key, {}).items() if r.value is not None}
            known = self._pop(key) if key in self.partitions or key in self.away else None
            removed = {} if known is None else {record.key: record for record in map(encode, known.removal())}
            if key in there.partitions:
                self.away[key] = there.partitions[key]
                removed |= wanted
            yield Decision([*removed.values()], key)

    def _pop(self, key: ShareKey) -> SharePartition:
        if key not in self.partitions:
            return self.away.pop(key)
        found = self.partitions.pop(key)
        self.shares.add(found.principal, -1)
        return found

    @property
    def next_s(self) -> float | None:
        """Return when the next lease or wait ends, at the earliest."""
        return min((found.next_s for found in self.partitions.values() if found.next_s is not None), default=None)

    def _new(self, key: ShareKey, principal: int = NO_PRINCIPAL) -> SharePartition:
        return SharePartition(key, self.limits.window_max, principal)


def _decided(entries: Sequence[Entry], answer: T) -> Decision[T]:
    return Decision([encode(entry) for entry in entries], answer)

"""Random lives of tables that principals share: none has more than its share, and none is refused below it.

Two principals, and callers without one, use every way at once: they begin, reset, delete, move away and back, and the
owner changes. What each has is counted here by itself. The planted mistakes at the end show that the lives see them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from ledgermq.errors import LedgerMQError, QuotaExceeded, ResourceExhausted
from ledgermq_broker.queues.state.bundle_shares import BundleShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey, StartEntry
from ledgermq_broker.queues.state.share_partition import SharePartition
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.shares import Shares
from ledgermq_offsets.state.groups import GroupBytes
from tests.unit.offsets.test_sizes import MOST as BYTES
from tests.unit.offsets.test_sizes import WAYS, World

MALLORY, VICTIM, NOT_KNOWN = 5, 6, 0
CALLERS = (MALLORY, VICTIM, NOT_KNOWN)
MOST = 6
LIVES, STEPS = 40, 60
STEP_BYTES = 15_000
"""What one step of a life may take, and leave less free, at most."""
ONE_BYTES = 6_000
"""The same of one call."""


class QueueLife:
    """Pairs of queue group and partition. `began`: who has each pair that is here; `away`: that is not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shares = BundleShares(ShareLimits(partitions_max=MOST))
        self.log: dict[bytes, LogRecord] = {}
        self.began: dict[ShareKey, int] = {}
        self.away: dict[ShareKey, int] = {}

    def step(self) -> None:
        key = ShareKey(f"g{self.random.randrange(8)}", 1, self.random.randrange(3))
        caller = self.random.choice(CALLERS)
        way = self.random.choice([self.begin, self.reset, self.begin, self.reset, self.forget, self.part, self.load])
        way(key, caller)
        for each in (MALLORY, VICTIM):
            counted, has = self.shares.shares.of(each), Counter(self.began.values())[each]
            assert counted == has, f"{each} has {has} pairs, and counts {counted}"

    def begin(self, key: ShareKey, caller: int) -> None:
        if key not in self.began and key not in self.away:
            self._judged(key, caller, lambda: self.shares.begin(key, 0, principal=caller))

    def reset(self, key: ShareKey, caller: int) -> None:
        if key in self.began:
            self._write(self.shares.reset(key, 300, b"", caller).records)
        elif key not in self.away:
            self._judged(key, caller, lambda: self.shares.reset(key, 300, b"", caller))

    def forget(self, key: ShareKey, caller: int) -> None:
        if key not in self.away:
            self.began.pop(key, None)
            self._write(self.shares.forget(key, self.random.randbytes(16)).records)

    def part(self, key: ShareKey, caller: int) -> None:
        gone = self.random.randrange(4)
        known = self.began | self.away
        self.shares.part(lambda each: each.partition != gone)
        self.began = {each: by for each, by in known.items() if each.partition != gone}
        self.away = {each: by for each, by in known.items() if each.partition == gone}

    def load(self, key: ShareKey, caller: int) -> None:
        self.shares = BundleShares(ShareLimits(partitions_max=MOST))
        for record in self.log.values():
            self.shares.apply(record.key, record.value)
        self.shares.loaded()
        self.began, self.away = self.began | self.away, {}

    def _judged(self, key: ShareKey, caller: int, call: Callable[[], object]) -> None:
        own, free = Counter(self.began.values())[caller], MOST - len(self.began)
        may = free > 0 and (caller == NOT_KNOWN or own + 1 <= free)
        try:
            made = call()
        except QuotaExceeded:
            assert caller != NOT_KNOWN, "a caller without a principal has no share"
            assert free > 0, "the table is full"
            assert not may, f"{caller} has {own} pairs, {free} are free, and it was refused"
        except ResourceExhausted:
            assert free <= 0, f"{caller} was refused, and {free} are free"
        else:
            assert may, f"{caller} has {own} pairs, {free} are free, and it was let in"
            self.began[key] = caller
            self._write(made.records)  # type: ignore[attr-defined]

    def _write(self, records: list[LogRecord]) -> None:
        for record in records:
            if record.value is None:
                self.log.pop(record.key, None)
            else:
                self.log[record.key] = record


class GroupLife:
    """The bytes of groups of both kinds, by all ways to make one larger."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()

    def step(self) -> None:
        caller, way = self.random.choice(CALLERS), self.random.choice([*WAYS, "delete", "load"])
        name = f"{caller}-{way}-{self.random.randrange(3)}"
        core = self.world.coordinator
        sizes = core.state.sizes
        own, free = sizes.shares.of(caller), BYTES - sizes.total
        if way == "delete":
            self._delete(caller)
        elif way == "load":
            if not core.classic.groups:  # members that have not got a generation yet are not stored
                self.world.coordinator = self.world.load()
        else:
            try:
                WAYS[way](self.world)(name, caller, self.random.randrange(20))
            except QuotaExceeded:
                assert caller != NOT_KNOWN, "a caller without a principal has no share"
                assert own + STEP_BYTES > free, f"{caller} has {own} bytes, {free} are free, and it was refused"
            except ResourceExhausted:
                assert free < STEP_BYTES, f"{caller} was refused, and {free} bytes are free"
            except LedgerMQError:
                pass  # the partition has a staged offset, or the group members of the other kind
        self._check()

    def _delete(self, caller: int) -> None:
        core = self.world.coordinator
        mine = [each for each in core.state.groups.values() if each.principal == caller]
        settled = [each.name for each in mine if not each.pending and not each.member_count]
        if settled:
            self.world.made(core.delete(self.random.choice(settled), 1))

    def _check(self) -> None:
        core, has = self.world.coordinator, Counter[int]()
        for group in core.state.groups.values():
            has[group.principal] += group.size_bytes
        for name, classic in core.classic.groups.items():
            group = core.state.groups.get(name)
            has[classic.principal if group is None else group.principal] += classic.size_bytes
        sizes = core.state.sizes
        assert sizes.total == has.total() <= BYTES + ONE_BYTES, "the groups have more bytes than the bound"
        for each in (MALLORY, VICTIM):
            assert sizes.shares.of(each) == has[each], f"{each} has {has[each]} bytes, and counts otherwise"
            assert has[each] <= BYTES // 2 + ONE_BYTES, f"{each} has {has[each]} bytes, which is above its share"


def live(kind: Callable[[int], QueueLife | GroupLife], lives: int = LIVES) -> None:
    for seed in range(lives):
        life = kind(seed)
        for _ in range(STEPS):
            life.step()


@pytest.mark.parametrize("kind", [QueueLife, GroupLife])
def test_in_random_lives_each_principal_has_its_share_and_no_more(kind: Callable[[int], QueueLife | GroupLife]) -> None:
    live(kind)


def _all_are_let_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "is_over", lambda self, principal, more, free: False)


def _all_principals_have_one_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Shares,
        "is_over",
        lambda self, principal, more, free: bool(principal) and sum(self._held.values()) + more > free,
    )


def _nothing_is_freed(patch: pytest.MonkeyPatch) -> None:
    real = Shares.add

    def add(self: Shares, principal: int, amount: int = 1) -> None:
        if amount > 0:
            real(self, principal, amount)

    patch.setattr(Shares, "add", add)


def _owners_forget_who_began(patch: pytest.MonkeyPatch) -> None:
    real = SharePartition.load_start

    def load_start(self: SharePartition, stored: StartEntry) -> None:
        real(self, stored)
        self.principal = NOT_KNOWN

    patch.setattr(SharePartition, "load_start", load_start)


def _a_reset_changes_who_began(patch: pytest.MonkeyPatch) -> None:
    real = BundleShares.reset

    def reset(self: BundleShares, key: ShareKey, start: int, nonce: bytes = b"", principal: int = 0) -> object:
        found = self.partitions.get(key)
        if found is not None:
            self.shares.add(found.principal, -1)
            found.principal = principal
            self.shares.add(principal)
        return real(self, key, start, nonce, principal)

    patch.setattr(BundleShares, "reset", reset)


def _bytes_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupBytes, "check", lambda self, name, principal, size_bytes, more, limits: None)


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        (QueueLife, _all_are_let_in),
        (QueueLife, _all_principals_have_one_share),
        (QueueLife, _nothing_is_freed),
        (QueueLife, _owners_forget_who_began),
        (QueueLife, _a_reset_changes_who_began),
        (GroupLife, _all_are_let_in),
        (GroupLife, _all_principals_have_one_share),
        (GroupLife, _nothing_is_freed),
        (GroupLife, _bytes_are_not_checked),
    ],
    ids=lambda each: str(each.__name__).strip("_"),
)
def test_the_lives_see_a_mistake(
    kind: Callable[[int], QueueLife | GroupLife],
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"pairs|bytes|entries|let in|refused"):
        live(kind)

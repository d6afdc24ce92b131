"""Judge that the quotas of principals hold at each broker, in some runs of level *access*.

    above a quota             a broker let something through that a quota surely refuses
    refused below a quota     a broker refused a principal that cannot have reached its quota, or has none
    no time to come back      a refusal does not say when

What requests to the store cost is noted by a meter of the judge, for whom they are made (`JudgedCosts`).
A quota counts surely from the answer to its change until the next change of it begins. For each limit of
each principal at each start of a broker, the judge keeps two token buckets. What surely passed is taken from
the first, so it is never emptier than the broker's. Everything that may have passed is taken from the second,
so it is never fuller. Both are filled when the run is over, because whether a batch passed is known from its
answer, and other batches came meanwhile.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq_broker.access.state.quotas import EACH, FLOWS, MICRO, NO_QUOTA, Limit, Quota, Subject
from ledgermq_broker.access.state.records import decode_quota, quota_key
from ledgermq_ledger.format.versioned import Unreadable
from ledgermq_ledger.object_store.prices import S3_PRICES
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from ledgermq_ledger.object_store.wrappers.payers import divided, payers
from tests.judges.violation import Violation
from tests.simulation.belief import Belief

SLACK = 1e-6
_REFUSAL = re.compile(r"has reached its quota at this broker: (\w+) ([\d.]+)")
_TITLES = {limit.title: limit for limit in Limit}
_ANSWER = (Limit.BYTES_OUT, Limit.DOLLARS_MONTH)


def is_limited(seed: int) -> bool:
    """Return whether quotas come and go in this run."""
    return random.Random(f"quotas {seed}").random() < 0.6


def drawn_quota(r: random.Random, subject: Subject) -> Quota:
    """The default is generous, because administrators are bound by it, too."""
    if subject.principal == EACH:
        return Quota(bytes_in=50_000, bytes_out=200_000, requests=400)
    return Quota(
        bytes_in=r.choice((500, 3000, 20_000)),
        bytes_out=r.choice((5000, 20_000, 100_000)),
        requests=r.choice((5, 20, 100)),
    )


@dataclass(slots=True)
class _Change:
    """`quota`: what counts from now on, None while it is not known."""

    subject: Subject
    quota: Quota | None
    at_s: float


@dataclass(slots=True)
class Came:
    """Something that a broker judges when it comes. `exempt`: it is counted and never refused."""

    place: Place
    at_s: float
    amounts: dict[Limit, int]
    exempt: bool = False
    passed: bool = False
    refusal: tuple[Limit, int] | None = None
    """The limit that was reached, and its bound."""

    def refused_by(self, error: pb.Error) -> bool:
        """Note a refusal; return whether it is one of a quota."""
        found = _REFUSAL.search(error.message)
        if found is None:
            return False
        limit = _TITLES[found[1]]
        self.refusal = limit, round(float(found[2]) * (MICRO if limit is Limit.DOLLARS_MONTH else 1))
        if not error.retry_after_ms:
            self.place.truth.violations.append(Violation("no time to come back", error.message))
        return True


@dataclass(slots=True)
class Answers:
    """A stream of answers, or a single one: each is let through when the quota is not reached, and may leave
    later. `since`: the turn of its room at which the answer before left.
    """

    place: Place
    since: int = 0

    def sent(self, size: int) -> None:
        self.place.truth.events.append(_Sent(self, self.place.truth.now_s(), size))


@dataclass(slots=True)
class _Opened:
    answers: Answers
    at_s: float


@dataclass(slots=True)
class _Sent:
    answers: Answers
    at_s: float
    size: int


@dataclass(slots=True)
class _Charged:
    place: Place
    at_s: float
    picodollars: int


class JudgedCosts(StoreMeter):
    """Notes what requests of one start of a broker cost its callers. `door`: of this start, None until it listens."""

    def __init__(self, truth: QuotaTruth, address: str) -> None:
        self.door: int | None = None
        self._truth = truth
        self._address = address

    def request_ended(self, operation: str, outcome: str, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        for payer, part in divided(S3_PRICES.picodollars(operation), payers()) if self.door is not None else ():
            place = Place(self._truth, self.door or 0, self._address, payer.principal)
            self._truth.events.append(_Charged(place, self._truth.now_s(), part))

    def object_damaged(self, key: str, outcome: str) -> None:
        """It costs nothing by itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """A principal at one start of a broker. `door`: a number for the start."""

    truth: QuotaTruth
    door: int
    address: str
    principal: str

    def came(self, amounts: Mapping[Limit, int], *, exempt: bool = False) -> Came:
        event = Came(self, self.truth.now_s(), dict(amounts), exempt)
        self.truth.events.append(event)
        return event

    def opened(self) -> Answers:
        answers = Answers(self)
        self.truth.events.append(_Opened(answers, self.truth.now_s()))
        return answers


class QuotaTruth:
    """`now_s`: the clock of the run."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.events: list[_Change | Came | _Opened | _Sent | _Charged] = []
        self.violations: list[Violation] = []
        self._beliefs: dict[bytes, tuple[Subject, Belief[Quota]]] = {}

    def begin(self, subject: Subject, wanted: Quota) -> None:
        """A change begins."""
        key = quota_key(subject)
        self._beliefs.setdefault(key, (subject, Belief(NO_QUOTA, NO_QUOTA)))
        with self._noting(key) as belief:
            belief.begin(wanted)

    def answered(self, subject: Subject) -> None:
        """The change that began last was answered."""
        with self._noting(quota_key(subject)) as belief:
            belief.answered()

    def stored(self, key: bytes, value: bytes | None) -> None:
        """A record of `__metadata` was put into the store."""
        if key not in self._beliefs:
            return
        found = NO_QUOTA
        if value is not None:
            decoded = decode_quota(key, value)
            assert not isinstance(decoded, Unreadable)
            found = decoded[1].quota
        with self._noting(key) as belief:
            belief.stored(found)

    @contextmanager
    def _noting(self, key: bytes) -> Iterator[Belief[Quota]]:
        """Note if what is known changes."""
        subject, belief = self._beliefs[key]
        before = belief.value
        yield belief
        if belief.value != before:
            self.events.append(_Change(subject, belief.value, self.now_s()))

    def judge(self) -> Iterator[Violation | str]:
        """Yield violations, and what was seen for the coverage, in the order of the events."""
        yield from self.violations
        yield from _Replay().run(self.events)


@dataclass(slots=True)
class _Buckets:
    """Of one limit of one principal at one start of a broker. `bound` 0: none counts surely."""

    limit: Limit
    bound: int = 0
    fuller: TokenBucket | None = None
    emptier: TokenBucket | None = None
    """Made by the first that comes: until then the broker fills its own by the quota before."""
    met: bool = False
    """Whether the broker may have had a bucket before."""
    attempted: float = 0.0
    """Everything that may have been taken so far."""

    def rule(self, bound: int, at_s: float) -> None:
        self.bound = bound
        self.fuller = self._full(at_s) if bound else None
        self.emptier = None

    def come(self, at_s: float) -> None:
        """Something comes that the quota counts."""
        if self.bound and self.emptier is None:
            self.emptier = self._full(at_s)
            if self.met:  # it is not filled by a change, and something may still be owed
                self.emptier.take(self.emptier.burst + self.attempted, at_s)
        self.met = True

    def _full(self, at_s: float) -> TokenBucket:
        per_s, burst = self.limit.flow(self.bound)
        return TokenBucket(per_s, at_s, burst)

    def is_open(self, at_s: float) -> bool:
        return self.fuller is None or self.fuller.level(at_s) > -SLACK * self.fuller.burst

    def may_be_empty(self, at_s: float) -> bool:
        return self.emptier is None or self.emptier.level(at_s) <= SLACK * self.emptier.burst

    def take(self, amount: int, at_s: float, *, surely: bool) -> None:
        self.attempted += amount
        if self.emptier is not None:
            self.emptier.take(amount, at_s)
        if surely and self.fuller is not None:
            self.fuller.take(amount, at_s)


@dataclass(slots=True)
class _Room:
    """A principal at one start of a broker. `quota`: what binds it surely, None while that is not known."""

    quota: Quota | None
    buckets: dict[Limit, _Buckets] = field(default_factory=lambda: {limit: _Buckets(limit) for limit in FLOWS})
    turn: int = 0
    open_turn: int = 0
    """The latest turn at which the fuller buckets of answers held something."""

    def look(self, at_s: float) -> None:
        self.turn += 1
        if all(self.buckets[limit].is_open(at_s) for limit in _ANSWER):
            self.open_turn = self.turn

    def rule(self, quota: Quota | None, at_s: float) -> None:
        self.quota = quota
        for limit, buckets in self.buckets.items():
            buckets.rule(0 if quota is None else quota.of(limit), at_s)


class _Replay:
    def __init__(self) -> None:
        self._known: dict[Subject, Quota | None] = defaultdict(lambda: NO_QUOTA)
        self._rooms: dict[tuple[int, str], _Room] = {}

    def run(self, events: Iterable[_Change | Came | _Opened | _Sent | _Charged]) -> Iterator[Violation | str]:
        for event in events:
            match event:
                case _Change():
                    self._known[event.subject] = event.quota
                    for (_, principal), room in self._rooms.items():
                        if (quota := self._quota_of(principal)) != room.quota:
                            room.rule(quota, event.at_s)
                            room.look(event.at_s)
                case Came():
                    yield from self._judge_call(event, self._room(event.place, event.at_s))
                case _Opened():
                    room = self._room(event.answers.place, event.at_s)
                    room.look(event.at_s)
                    event.answers.since = room.turn
                case _Charged():
                    self._charge(event, self._room(event.place, event.at_s))
                case _Sent():
                    yield from self._judge_answer(event, self._room(event.answers.place, event.at_s))

    def _quota_of(self, principal: str) -> Quota | None:
        own = self._known[Subject(principal)]
        return self._known[Subject(EACH)] if own == NO_QUOTA else own

    def _room(self, place: Place, at_s: float) -> _Room:
        found = self._rooms.get((place.door, place.principal))
        if found is None:
            found = self._rooms[place.door, place.principal] = _Room(NO_QUOTA)
            found.rule(self._quota_of(place.principal), at_s)
        return found

    def _charge(self, event: _Charged, room: _Room) -> None:
        room.look(event.at_s)
        buckets = room.buckets[Limit.DOLLARS_MONTH]
        buckets.come(event.at_s)
        buckets.take(event.picodollars, event.at_s, surely=True)
        room.look(event.at_s)

    def _judge_call(self, event: Came, room: _Room) -> Iterator[Violation | str]:
        for limit, amount in event.amounts.items():
            buckets = room.buckets[limit]
            buckets.come(event.at_s)
            if event.passed and not event.exempt and not buckets.is_open(event.at_s):
                yield _violation("above a quota", event.place, f"{limit.value} {buckets.bound}", event.at_s)
            if event.refusal is None or event.refusal[0] not in event.amounts:  # it came in, and had no room to answer
                buckets.take(amount, event.at_s, surely=event.passed)
        if event.refusal is None:
            return
        limit, bound = event.refusal
        yield f"a quota refused: {limit.title}"
        if limit not in event.amounts or room.quota is None:
            return  # a single answer waits for a while before it is refused
        buckets = room.buckets[limit]
        if buckets.bound != bound or not buckets.may_be_empty(event.at_s):
            yield _violation("refused below a quota", event.place, f"{limit.value} {bound}", event.at_s)

    def _judge_answer(self, event: _Sent, room: _Room) -> Iterator[Violation | str]:
        buckets, answers = room.buckets[Limit.BYTES_OUT], event.answers
        room.look(event.at_s)
        if event.size and room.open_turn < answers.since:
            bounds = [f"{limit.value} {room.buckets[limit].bound}" for limit in _ANSWER]
            yield _violation("above a quota", answers.place, " or ".join(bounds), event.at_s)
        buckets.take(event.size, event.at_s, surely=True)
        room.look(event.at_s)
        answers.since = room.turn
        if room.open_turn < room.turn:
            yield "an answer reached a quota"


def _violation(kind: str, place: Place, what: str, at_s: float) -> Violation:
    return Violation(kind, f"{place.principal} at {place.address}, start {place.door}: {what} at {at_s:.3f} s")

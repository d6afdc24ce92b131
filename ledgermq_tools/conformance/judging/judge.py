"""Judge what a client asks of brokers, call by call: pure, with the time given.

Each rule is one of docs/protocol.md. What a client did wrong is a text in `findings`, once for each kind and place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ledgermq.errors import NotOwner, StaleAssignment, TransactionAborted, TransactionFenced
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_tools.conformance.brokers.faults import UNARY_OF
from ledgermq_tools.conformance.judging.leases import Leases
from ledgermq_tools.conformance.judging.membership import Membership
from ledgermq_tools.conformance.judging.staging import Staging

IN_FLIGHT_MAX = 5
REDIRECTS_MAX = 5
"""Batches that were on their way when the first answer named the owner may meet the same answer."""
WAIT_SHARE = 0.9
"""A client's clock may run a little faster than ours."""
EXPECTED = frozenset({StaleAssignment.code, TransactionAborted.code, TransactionFenced.code})
"""Refusals that a client meets though it does nothing wrong: a partition, or an id, was taken from it meanwhile."""

GROUP = "group "
TRANSACTION = "transaction "
"""What stands before the name of a group, or an id, in the place of a topic; no topic has a space in its name."""

Place = tuple[str, int]
Slot = tuple[bytes, str, int, int]
"""A place in a session: its id, topic, partition and sequence."""


@dataclass(slots=True)
class Call:
    """A call, or a request of a stream. `broker`: the address that was called. `owned`: what only one broker serves:
    the places, or the group.
    """

    method: str
    broker: str
    request: Any
    places: tuple[Place, ...]
    owned: tuple[Place, ...]
    batches: tuple[pb.ProduceBatch, ...] = ()


@dataclass(slots=True)
class _Session:
    place: Place
    open: int = 0
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sequence: checksum and length of the batch that was sent with it."""


class Judge:
    def __init__(self, retriable: frozenset[str], *, needs_sessions: bool = False) -> None:
        self.findings: list[str] = []
        self.membership = Membership(self._find)
        self.leases = Leases(self._find)
        self._staging = Staging(self._find)
        self.gone: set[str] = set()
        """Addresses whose brokers a check has ended: calls to them come nowhere."""
        self.asked_for: Counter[str] = Counter()
        """How many calls of each method have come."""
        self._retriable = retriable
        self._needs_sessions = needs_sessions
        self._sessions: dict[bytes, _Session] = {}
        self._asked_for_slots: set[Place] = set()
        self._bytes: dict[tuple[Place, int, int], tuple[bytes, int]] = {}
        """By place, checksum and length: the session and sequence of a batch that is stored, or may be."""
        self._not_before: dict[Slot, tuple[float, int]] = {}
        self._redirects: dict[tuple[str, Place], tuple[str, int]] = {}

    def _find(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def asked(self, method: str, broker: str, request: Any, now_s: float) -> Call:
        """Judge a request that has come."""
        self.asked_for[UNARY_OF.get(method, method)] += 1
        call = Call(UNARY_OF.get(method, method), broker, request, *_named_in(request))
        for redirected in [key for key, (owner, _) in self._redirects.items() if owner == broker]:
            if redirected[1] in call.owned:
                del self._redirects[redirected]
        if call.method == "OpenProducer":
            self._asked_for_slots.update(call.places)
        if call.method == "ProduceOnce":
            for batch in call.batches:
                self._judge_batch(batch, now_s)
        self.membership.asked(call.method, request, call.places, now_s)
        self.leases.asked(call.method, request)
        self._staging.asked(call.method, request)
        return call

    def unreadable(self, method: str, error: str) -> None:
        """Note a request that cannot be decoded."""
        self._find(f"sent a request of {method} that cannot be read: {error}")

    def _judge_batch(self, batch: pb.ProduceBatch, now_s: float) -> None:
        place, producer = (batch.topic, batch.partition), batch.producer
        if not producer.id:
            if self._needs_sessions:
                self._find(f"{_text(place)}: sent a batch without a session: a repeated one would be stored twice")
            return
        session = self._sessions.get(producer.id)
        if session is None:
            session = self._sessions[producer.id] = _Session(place)
            if place not in self._asked_for_slots:
                self._find(f"{_text(place)}: sent the first batch of a session without asking OpenProducer before")
        if session.place != place:
            self._find(f"{_text(place)}: uses the session of {_text(session.place)}; each partition needs its own")
        sent = (batch.crc, batch.length)
        if session.sent.setdefault(producer.sequence, sent) != sent:
            self._find(f"{_text(place)}: repeated sequence {producer.sequence} with other bytes than before")
        earlier = self._bytes.setdefault((place, *sent), (producer.id, producer.sequence))
        if earlier != (producer.id, producer.sequence):
            self._find(
                f"{_text(place)}: sent the batch of sequence {earlier[1]} again under another session or sequence"
                f" ({producer.sequence}): it could be stored twice"
            )
        wait = self._not_before.pop((producer.id, *place, producer.sequence), None)
        if wait is not None and now_s < wait[0]:
            self._find(f"{_text(place)}: repeated a batch before the {wait[1]} ms that the answer asked for were over")
        if session.open >= IN_FLIGHT_MAX:
            self._find(f"{_text(place)}: more than {IN_FLIGHT_MAX} batches of a session are without an answer")
        session.open += 1

    def lost(self, call: Call) -> None:
        """Note that a call has ended without an answer: what it asked for may have been done."""
        self._closed(call)

    def failed(self, call: Call, error: pb.Error, now_s: float, *, planned: bool) -> None:
        """Note the error with which a call has ended. `planned`: by a check; otherwise it is the broker's own."""
        self._closed(call)
        self._staging.failed(call.method, call.request, error)
        for place in call.owned or (("", 0),):
            self._judge_error(call, place, error, now_s, planned=planned)

    def answered(self, call: Call, answer: Any, now_s: float, *, planned: bool = False) -> None:
        """Note an answer, which may have an error for each place."""
        self._closed(call)
        for place, error in _errors_of(call, answer):
            if error.code:
                self._judge_error(call, place, error, now_s, planned=planned)
        self.membership.answered(call.method, call.request, answer, now_s)
        self.leases.answered(call.method, call.request, answer)
        self._staging.answered(call.method, call.request, answer)

    def _closed(self, call: Call) -> None:
        for batch in call.batches if call.method == "ProduceOnce" else ():
            if (session := self._sessions.get(batch.producer.id)) is not None:
                session.open -= 1

    def _judge_error(self, call: Call, place: Place, error: pb.Error, now_s: float, *, planned: bool) -> None:
        code = error.exact_code or error.code
        if code == NotOwner.code and error.owner and error.owner != call.broker:
            if error.owner in self.gone:
                return
            owner, times = self._redirects.get((call.broker, place), (error.owner, 0))
            times = times + 1 if owner == error.owner else 1
            self._redirects[call.broker, place] = error.owner, times
            if times >= REDIRECTS_MAX:
                self._find(
                    f"{_text(place)}: went on asking {call.broker} ({call.method}), though it named"
                    f" {error.owner} as the owner {times} times"
                )
        elif code not in self._retriable and code not in EXPECTED and not planned:
            self._find(f"{_text(place)}: the broker refused {call.method} with {code}: {error.message}")
        for batch in call.batches if call.method == "ProduceOnce" else ():
            if (batch.topic, batch.partition) == place:
                self._note_refused(batch, error, now_s)

    def _note_refused(self, batch: pb.ProduceBatch, error: pb.Error, now_s: float) -> None:
        if not batch.producer.id:
            return
        slot = (batch.producer.id, batch.topic, batch.partition, batch.producer.sequence)
        if error.retry_after_ms:
            self._not_before[slot] = now_s + WAIT_SHARE * error.retry_after_ms / 1000, error.retry_after_ms


def _text(place: Place) -> str:
    return place[0] if place[0].startswith((GROUP, TRANSACTION)) else f"{place[0]}-{place[1]}"


def _batches_of(request: Any) -> tuple[pb.ProduceBatch, ...]:
    """Return the batches of a frame, without what Stage says of them."""
    return tuple(getattr(each, "batch", each) for each in getattr(getattr(request, "header", None), "batches", ()))


def _named_in(request: Any) -> tuple[tuple[Place, ...], tuple[Place, ...], tuple[pb.ProduceBatch, ...]]:
    """Return the partitions that a request names, what its broker must own, and its batches."""
    batches = _batches_of(request)
    lists = (getattr(request, name, ()) for name in ("partitions", "queries", "commits"))
    named = batches or next((found for found in lists if found), ())
    places = tuple((each.topic, each.partition) for each in named)
    return places, _owned_of(request, places), batches


def _owned_of(request: Any, places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return what a broker has to own to serve the request."""
    if isinstance(request, pb.ShareFetchRequest | pb.ShareAnswerRequest):
        return places  # queue groups have no coordinator
    if isinstance(request, pb.InitTransactionsRequest):
        return ((f"{TRANSACTION}{request.transactional_id}", 0),)
    if isinstance(request, pb.EndTransactionRequest):
        return ((f"{TRANSACTION}{request.transaction.transactional_id}", 0),)
    group = getattr(request, "group", "")
    return ((f"{GROUP}{group}", 0),) if group else places


def _errors_of(call: Call, answer: Any) -> list[tuple[Place, pb.Error]]:
    """Return the errors of an answer, each with its place."""
    holder = getattr(answer, "header", answer)
    found = next((found for name in ("results", "partitions") if (found := getattr(holder, name, ()))), ())
    if call.method == "ShareFetch":  # it names only some of the partitions that were asked for
        return [((each.topic, each.partition), each.error) for each in found]
    return [(place, each.error) for place, each in zip(call.places, found, strict=False)]

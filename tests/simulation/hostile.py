"""A hostile principal in a part of the seeds of a level: what is overheard of all others, and the judge at the door.

Rules are enforced in such a run, and all programs of the level are of one principal, STAFF, which may do everything.
MALLORY may read the topics and use groups and transactional ids that begin with its name; where the level says so, it
may also write. It learns every request of STAFF as it arrives, as if all identities had leaked. Whatever it does with
them, `nothing_in_anothers_name` judges each answer to it where the answer leaves the broker, so no lost answer hides
one. The answers that STAFF gets, and what is stored, are judged as in all other runs of the level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from ledgermq.errors import BY_CODE, LedgerMQError, NotOwner, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame, StageFrame
from ledgermq.protocol.methods import Method, UnaryCalls
from ledgermq_broker.access.door import Admitted, Door
from tests.judges.nothing_in_anothers_name import Attempt, judge_attempt
from tests.judges.violation import Violation
from tests.simulation.network import Network
from tests.simulation.world import World

MALLORY, STAFF = "mallory", "staff"
KEPT_MAX = 12
"""Requests of a method that are overheard, the newest."""
SECRETS_MAX = 200
OVERHEARD = frozenset(
    {
        "group_heartbeat",
        "commit_offsets",
        "fetch_committed",
        "reset_offsets",
        "stage_offsets",
        "share_fetch",
        "share_answer",
        "hold_partitions",
        "release_partitions",
        "open_producer",
        "produce",
    }
)
_HOSTILE = "a hostile call was denied"
HOSTILE = {
    "groups": (_HOSTILE, *(f"a hostile call did not count: {call}" for call in ("commit_offsets", "group_heartbeat"))),
    "queues": (_HOSTILE, *(f"a hostile call did not count: {call}" for call in ("share_answer", "list_shares"))),
    "exclusive": (
        _HOSTILE,
        *(f"a hostile call did not count: {call}" for call in ("hold_partitions", "release_partitions")),
        "a hostile batch was refused: UnknownProducer",
    ),
}
"""What has to be reached at least once over many seeds, by level."""
FORBIDDEN = frozenset({"delete_topic", "alter_topic", "delete_records"})
"""Mallory may never do these."""
REFUSALS = frozenset(code for code, kind in BY_CODE.items() if code != LedgerMQError.code)
DENIALS = frozenset({Unauthorized.code, NotOwner.code, *(code for code in REFUSALS if BY_CODE[code].retriable)})
"""Errors of calls that mallory may not make: it is told that, or that a broker cannot judge now."""


def is_hostile(seed: int) -> bool:
    """Return whether a run of this seed has a hostile principal. Seeds of records that are older have none."""
    return seed > 5 and seed % 5 == 3


@dataclass
class Overheard:
    """What mallory knows of STAFF. `groups`: of STAFF. `begun`: producer ids of STAFF, with topic and partition,
    under which mallory may have written first.
    """

    world: World
    requests: dict[str, deque[tuple[str, Any]]] = field(default_factory=dict)
    """By attribute of the method: addresses and requests."""
    groups: set[str] = field(default_factory=set)
    begun: set[tuple[bytes, str, int]] = field(default_factory=set)
    joined: set[tuple[str, str]] = field(default_factory=set)
    """Own groups that mallory has joined, with the member ids of STAFF under which it has."""
    credentials: dict[str, str] = field(default_factory=dict)
    """By credential: the principal."""
    _secrets: dict[bytes, None] = field(default_factory=dict)

    def note(self, address: str, attribute: str, request: Any) -> None:
        if attribute not in OVERHEARD:
            return
        self.requests.setdefault(attribute, deque(maxlen=KEPT_MAX)).append((address, request))
        header = request.header if isinstance(request, Frame) else request
        if group := getattr(header, "group", ""):
            self.groups.add(group)
        for secret in _secrets_of(header):
            self._secrets[secret] = None
            if len(self._secrets) > SECRETS_MAX:
                del self._secrets[next(iter(self._secrets))]

    def note_leases(self, address: str, request: pb.ShareFetchRequest, told: pb.ShareFetchHeader) -> None:
        """Note, for each lease that a member has got, what the member could say about its messages now."""
        for part in (part for part in told.partitions if part.ranges):
            about = pb.SharePartitionAnswer(topic=part.topic, topic_id=part.topic_id, partition=part.partition)
            for span in part.ranges:
                about.spans.add(first=span.first, last=span.last, epoch=part.epoch, lease=part.lease, word=pb.ACCEPT)
            says = pb.ShareAnswerRequest(group=request.group, member_id=request.member_id, partitions=[about])
            self.note(address, "share_answer", says)

    def judge(self, address: str, attribute: str, request: Any, answer: Any, error: Exception | None) -> None:
        """Judge the answer to a call of mallory, or the error that ended it."""
        header = request.header if isinstance(request, Frame) else request
        told = answer.header if isinstance(answer, Frame) else answer
        group = getattr(header, "group", "")
        denied = attribute in FORBIDDEN or not group.startswith(MALLORY if group else "")
        if not denied and isinstance(request, pb.GroupHeartbeatRequest) and request.step == pb.JOIN:
            self.joined.add((group, request.member_id))
        codes = [getattr(error, "code", "")] if error is not None else [*_codes(told)]
        counted = [] if error is not None else ["it was answered"] if denied else [*self._counted(header, told)]
        sent = header.SerializeToString()
        attempt = Attempt(
            f"{attribute} at {address}: {str(header)[:300]!r}",
            counted,
            codes,
            b"" if error is not None else _of_others(told).SerializeToString(),
        )
        secrets = [secret for secret in self._secrets if secret not in sent]
        for violation in judge_attempt(attempt, DENIALS if denied else REFUSALS, secrets):
            self.violate(violation)
        if not denied and not counted:
            self.world.coverage.saw(f"a hostile call did not count: {attribute}")
        elif Unauthorized.code in codes:
            self.world.coverage.saw(_HOSTILE)

    def violate(self, violation: Violation) -> None:
        self.world.note("judge", str(violation))
        text = f"{violation.text} at {self.world.loop.time():.3f} s"
        self.world.violations.append(Violation(violation.kind, text))

    def _counted(self, request: Any, told: Any) -> Iterator[str]:
        """Yield what an answer says was done under an identity of STAFF, with a name that mallory may use."""
        if isinstance(request, pb.ShareAnswerRequest):
            for wanted, result in zip(request.partitions, told.results, strict=True):
                late = {offset for span in result.late for offset in range(span.first, span.last + 1)}
                for span in wanted.spans:
                    if not result.error.code and not {*range(span.first, span.last + 1)} <= late:
                        yield f"a word about {span.first} to {span.last} of {wanted.partition}"
        elif isinstance(request, pb.HoldPartitionsRequest):
            yield from (f"it has {holder.name!r}" for holder in told.holders if holder.is_caller)
        elif isinstance(request, pb.ReleasePartitionsRequest):
            yield from ("a release" for part in told.partitions if part.released)
        elif isinstance(request, pb.CommitOffsetsRequest | pb.StageOffsetsRequest):
            if request.member_id and (request.group, request.member_id) not in self.joined:
                yield from ("a commit" for result in told.results if not result.error.code)
        elif isinstance(request, pb.GroupHeartbeatRequest):
            if request.step == pb.STAY and (request.group, request.member_id) not in self.joined:
                yield "membership"
        elif isinstance(request, pb.OpenProducerRequest):
            for asked, part in zip(request.partitions, told.partitions, strict=True):
                if part.next_sequence and (request.producer_id, asked.topic, asked.partition) not in self.begun:
                    yield f"the next sequence of {asked.partition}"
        elif isinstance(request, pb.ProduceHeader):
            for batch, result in zip(request.batches, told.results, strict=True):
                place = batch.producer.id, batch.topic, batch.partition
                if not result.error.code and place not in self.begun:
                    yield f"a batch in {batch.partition}"


def _secrets_of(request: Message) -> Iterator[bytes]:
    """Yield what others must not learn from an answer."""
    for name in ("producer_id", "member_id", "nonce"):
        if found := getattr(request, name, b""):
            yield found.encode() if isinstance(found, str) else found
    if isinstance(request, pb.ProduceHeader):
        yield from (batch.producer.id for batch in request.batches if batch.producer.id)


def _of_others(told: Any) -> Message:
    """Return an answer without mallory's own groups, which may have members under ids of STAFF."""
    for name in ("shares", "groups"):
        if name in told.DESCRIPTOR.fields_by_name:
            found = type(told)()
            getattr(found, name).extend(each for each in getattr(told, name) if not each.group.startswith(MALLORY))
            return found
    return told


def _codes(told: Message) -> Iterator[str]:
    """Yield the codes of all errors in an answer, of the entries of its lists."""
    for described, value in told.ListFields():
        for entry in value if described.is_repeated else ():
            if isinstance(entry, Message) and "error" in entry.DESCRIPTOR.fields_by_name and entry.HasField("error"):
                yield entry.error.code


class HostileNetwork(Network):
    """A network whose brokers admit callers by their doors, while mallory listens."""

    def __init__(self, world: World, overheard: Overheard) -> None:
        super().__init__(world)
        self._overheard = overheard

    def guarding(self, address: str, door: Door) -> _Door:
        return _Door(door, address, self._overheard)


class _Door:
    def __init__(self, door: Door, address: str, overheard: Overheard) -> None:
        self._door = door
        self._address = address
        self._overheard = overheard

    async def admit(self, credential: str) -> Admitted:
        found = await self._door.admit(credential)
        who = self._overheard.credentials.get(credential)
        kind = {MALLORY: _JudgedApi, STAFF: _OverheardApi}.get(who or "")
        return found if kind is None else replace(found, api=kind(found.api, self._address, self._overheard))


class _Api(UnaryCalls):
    """The API that a broker gives to a caller."""

    def __init__(self, api: BrokerApi, address: str, overheard: Overheard) -> None:
        self._api = api
        self._address = address
        self._overheard = overheard

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._api.produce(requests)

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        return self._api.fetch(request)

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._api.produce_delayed(requests)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._api.stage(requests)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._api.stage_delayed(requests)


class _OverheardApi(_Api):
    """Of STAFF, which is never refused for want of a right."""

    async def ask(self, method: Method, request: Any) -> Any:
        self._overheard.note(self._address, method.attribute, request)
        try:
            answer = await getattr(self._api, method.attribute)(request)
        except Unauthorized as error:
            self._refused(method.attribute, error.message)
            raise
        told = answer.header if isinstance(answer, Frame) else answer
        if Unauthorized.code in _codes(told):
            self._refused(method.attribute, str(told)[:300])
        if isinstance(request, pb.ShareFetchRequest):
            self._overheard.note_leases(self._address, request, told)
        return answer

    def _refused(self, attribute: str, text: str) -> None:
        self._overheard.violate(Violation("refused though granted", f"{attribute} at {self._address}: {text}"))

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async def heard() -> AsyncIterator[ProduceFrame]:
            async for frame in requests:
                if all(batch.HasField("producer") for batch in frame.header.batches):
                    self._overheard.note(self._address, "produce", frame)
                yield frame

        async with aclosing(self._api.produce(heard())) as answers:  # type: ignore[type-var]
            async for answer in answers:
                yield answer


class _JudgedApi(_Api):
    """Of mallory."""

    async def ask(self, method: Method, request: Any) -> Any:
        try:
            answer = await getattr(self._api, method.attribute)(request)
        except Exception as error:
            self._overheard.judge(self._address, method.attribute, request, None, error)
            raise
        self._overheard.judge(self._address, method.attribute, request, answer, None)
        return answer

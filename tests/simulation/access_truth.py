"""Judge that changes of access rules and tokens count from their answers on, at every broker.

A *lever* is one record of `__metadata` that grants or denies: a rule or a token (`belief` says when its verdict
is known).

    record after a revocation     a broker sent records, or a segment's location, to a caller without the right
    stored after a revocation     a frame that came when the right was surely gone was stored
    refused though granted        a broker refused what was surely granted
    stored under another's id     a batch counted under the producer id of another principal

Quotas of principals are judged by what is noted here of calls and answers; see `throttle_watch`.

Brokers judge a unary call and a frame of batches at the moment at which they take it in, a fetch that waits
and a stream of answers at each answer; so does this judge, in the same turn of the broker's process. That
is stricter than the promise, which is about calls that begin after the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.errors import LedgerMQError, Unauthorized, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame, StageFrame
from ledgermq.protocol.methods import Method, UnaryCalls
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.door import Admitted, Door
from ledgermq_broker.access.state.quotas import Limit
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.wrappers.throttled import NEVER_REFUSED
from ledgermq_broker.paths.received_batches import split_payload
from tests.judges.violation import Violation
from tests.simulation.belief import Belief
from tests.simulation.history import FinalLog, Partition
from tests.simulation.network import Network
from tests.simulation.stored_segments import StoredSegment, values_of
from tests.simulation.throttle_watch import Came, JudgedCosts, Place, QuotaTruth
from tests.simulation.world import World

Right = tuple[Operation, str]
"""(operation, topic)"""


@dataclass(frozen=True, slots=True)
class LeakedSession:
    """A producer's session in a partition, as another principal learns it. `following`: with the sequence that comes
    next, if the batch is stored.
    """

    principal: str
    topic: str
    partition: int
    following: pb.ProducerSession


class Lever(Belief[bool]):
    """Whether a record grants at present. `allows`: whether the record does; that of a rule that denies takes away."""

    def __init__(self, key: bytes, *, allows: bool, granted: bool | None = None, wanted: bool = False) -> None:
        super().__init__(granted, wanted)
        self.key = key
        self.allows = allows

    @property
    def granted(self) -> bool | None:
        """The verdict, None while it is not known."""
        return self.value


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with one of its tokens. `rights`: the levers on which each depends, besides the token."""

    name: str
    credential: str
    token_id: str
    token: Lever
    rights: Mapping[Right, Sequence[Lever]]

    def verdict(self, operation: Operation, topic: str) -> bool | None:
        """Return whether it surely may, or surely may not; None: neither is known."""
        states = [lever.granted for lever in self._levers(operation, topic)]
        return False if False in states else None if None in states else True

    def doubts(self, operation: Operation, topic: str) -> int:
        """Return a number that differs when the verdict may have been another one meanwhile."""
        return sum(lever.doubts for lever in self._levers(operation, topic))

    def _levers(self, operation: Operation, topic: str) -> Sequence[Lever]:
        return (self.token, *self.rights[operation, topic])


@dataclass(slots=True)
class AccessTruth:
    world: World
    levers: dict[bytes, Lever] = field(default_factory=dict)
    callers: dict[str, Caller] = field(default_factory=dict)
    """By credential."""
    tokens: dict[str, list[Caller]] = field(default_factory=dict)
    """By principal: with all its tokens, the newest last."""
    quotas: QuotaTruth = field(init=False)
    doors: int = 0
    costs: dict[str, JudgedCosts] = field(default_factory=dict)
    """Of the newest start of each broker, in runs with budgets."""
    sessions: deque[LeakedSession] = field(default_factory=lambda: deque(maxlen=20))
    """The newest producer sessions of judged callers."""
    places: dict[tuple[bytes, str, int], LeakedSession] = field(default_factory=dict)
    """All of them, as they were seen last, by id and partition."""
    _may_be_stored: set[str] = field(default_factory=set)
    _surely_refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.quotas = QuotaTruth(self.world.loop.time)

    def lever(self, key: bytes, *, allows: bool) -> Lever:
        return self.levers.setdefault(key, Lever(key, allows=allows))

    def add(self, caller: Caller) -> None:
        self.levers[caller.token.key] = caller.token
        self.callers[caller.credential] = caller
        self.tokens.setdefault(caller.name, []).append(caller)

    def on_metadata(self, segment: StoredSegment) -> None:
        for _, key, value in segment.records():
            if key in self.levers:
                lever = self.levers[key]
                lever.stored((value is not None) == lever.allows)
            self.quotas.stored(key, value)

    def violate(self, kind: str, text: str) -> None:
        self.world.note("judge", f"{kind}: {text}")
        self.world.violations.append(Violation(kind, f"{text} at {self.world.loop.time():.3f} s"))

    def leak(self, principal: str, frame: ProduceFrame) -> None:
        """A frame of a principal comes in, and others learn its producer ids."""
        for batch in frame.header.batches:
            if batch.HasField("producer"):
                following = pb.ProducerSession()
                following.CopyFrom(batch.producer)
                following.sequence += batch.record_count
                leaked = LeakedSession(principal, batch.topic, batch.partition, following)
                self.sessions.append(leaked)
                self.places[following.id, batch.topic, batch.partition] = leaked

    def take_batch(self, value: str, verdict: bool | None, where: str) -> None:
        """A broker takes in a record."""
        if verdict is False:
            self._surely_refused.setdefault(value, where)
        else:
            self._may_be_stored.add(value)

    def judge_logs(self, logs: Mapping[Partition, FinalLog]) -> list[Violation]:
        """Judge what is stored in the end."""
        return [
            Violation("stored after a revocation", f"{value!r} in {partition}: {self._surely_refused[value]}")
            for partition, log in sorted(logs.items())
            for value in log.records.values()
            if value in self._surely_refused and value not in self._may_be_stored
        ]


class AccessNetwork(Network):
    """A network whose brokers admit callers by their doors, under the eyes of the judge."""

    def __init__(self, world: World, truth: AccessTruth) -> None:
        super().__init__(world)
        self._truth = truth

    def guarding(self, address: str, door: Door) -> JudgedDoor:
        return JudgedDoor(door, address, self._truth)


class JudgedDoor:
    """Callers that `truth` does not know, brokers and administrators, are not judged."""

    def __init__(self, door: Door, address: str, truth: AccessTruth) -> None:
        self._door = door
        self._address = address
        self._truth = truth
        self._number = truth.doors = truth.doors + 1
        if address in truth.costs:
            truth.costs[address].door = self._number

    async def admit(self, credential: str) -> Admitted:
        caller = self._truth.callers.get(credential)
        if caller is None:
            return await self._door.admit(credential)
        judge = Judge(
            self._truth, caller, Place(self._truth.quotas, self._number, self._address, f"user:{caller.name}")
        )
        with judge.refusals():
            found = await self._door.admit(credential)
        return replace(found, api=JudgedApi(found.api, judge))


class Judge:
    """Of the calls of one caller to one broker."""

    def __init__(self, truth: AccessTruth, caller: Caller, place: Place) -> None:
        self.caller = caller
        self.place = place
        self._truth = truth
        self._saw = truth.world.coverage.saw

    def refusals(self) -> _Refusals:
        """Judge that the credential is not refused while the token surely counts."""
        return _Refusals(self)

    @contextmanager
    def call(self, *, exempt: bool = False) -> Iterator[Came]:
        """Note a call, for the quotas. `exempt`: they never refuse it. The caller notes whether it passed surely:
        what the rules refuse does not come to the quotas.
        """
        came = self.place.came({Limit.REQUESTS: 1}, exempt=exempt)
        try:
            yield came
        except LedgerMQError as error:
            came.refused_by(error_to_proto(error))
            raise

    def credential_refused(self, error: Unauthorized, *, counts: bool) -> None:
        """`counts`: the token surely counted all the time."""
        if counts:
            self._truth.violate("refused though granted", f"{self._what()}: {error.message}")
        self._saw("a token that was revoked was refused", self.caller.token.granted is False)

    def not_sure(self, error: Unavailable) -> None:
        self._saw("a broker refused to judge", "newest access rules" in error.message)

    def verdict(self, operation: Operation, topic: str) -> bool | None:
        return self.caller.verdict(operation, topic)

    def verdict_since(self, operation: Operation, topic: str, doubts: int) -> bool | None:
        """Return the verdict of now. A right that may have been missing since counts as unknown."""
        verdict = self.verdict(operation, topic)
        return None if verdict and self.caller.doubts(operation, topic) != doubts else verdict

    def take_frame(self, frame: Frame[Any]) -> TakenFrame:
        """A frame of batches comes in."""
        verdicts = [self.verdict(Operation.PRODUCE, batch.topic) for batch in frame.header.batches]
        for batch, piece, verdict in zip(
            frame.header.batches, split_payload(frame.header.batches, frame), verdicts, strict=True
        ):
            for value in values_of(bytes(piece)):
                assert value is not None
                where = f"{self._what()} sent it at {self._truth.world.loop.time():.3f} s, without the right"
                self._truth.take_batch(f"{value.decode()}", verdict, f"{where} for {batch.topic}")
        self._truth.leak(self.caller.name, frame)
        lengths = [batch.length for batch in frame.header.batches]
        amounts = {Limit.REQUESTS: 1, Limit.BYTES_IN: frame.payload_bytes, Limit.DOLLARS_MONTH: 0}
        return TakenFrame(verdicts, lengths, self.place.came(amounts))

    def produced(self, taken: TakenFrame, results: Sequence[pb.ProduceResult]) -> None:
        """A frame of batches was answered."""
        taken.answered(results)
        for verdict, result in zip(taken.verdicts, results, strict=True):
            code = result.error.code if result.HasField("error") else ""
            if not code and verdict is False:
                self._truth.violate("stored after a revocation", f"{self._what()} was told that it is stored")
            self._saw("a record of a principal was stored", not code and verdict is not False)
            self._judge_refusal(code, verdict, "produce")

    def fetched(self, part: pb.FetchedPartition, verdict: bool | None, how: str, came: Came) -> None:
        """An answer to a fetch leaves the broker. `came`: the call."""
        code = part.error.code if part.HasField("error") else ""
        came.passed = came.passed or code != Unauthorized.code
        if part.batches and verdict is False:
            self._truth.violate("record after a revocation", f"{self._what()} by {how}: {part.topic}-{part.partition}")
        if any(batch.object for batch in part.batches):
            self._truth.violate("record after a revocation", f"{self._what()} got the location of a segment")
        self._saw(f"records were sent to a principal by {how}", bool(part.batches) and verdict is not False)
        self._judge_refusal(code, verdict, how)

    def _judge_refusal(self, code: str, verdict: bool | None, how: str) -> None:
        if code != Unauthorized.code:
            return
        if verdict:
            self._truth.violate("refused though granted", f"{self._what()} by {how}")
        self._saw(f"a right that was revoked was refused: {how}", verdict is False)

    def _what(self) -> str:
        return f"{self.caller.name} with token {self.caller.token_id} at {self.place.address}"


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A frame of batches that came in: what is known of the right to send each batch, and its size."""

    verdicts: Sequence[bool | None]
    lengths: Sequence[int]
    came: Came

    def answered(self, results: Sequence[pb.ProduceResult]) -> None:
        """Note what of it the quotas let through; the rules refuse before they do."""
        sizes = dict(enumerate(self.lengths))
        for number, result in enumerate(results):
            if self.came.refused_by(result.error):
                return
            if result.error.code == Unauthorized.code:
                del sizes[number]
        self.came.amounts[Limit.BYTES_IN] = sum(sizes.values())
        self.came.passed = bool(sizes)


class _Refusals:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._granted = judge.caller.token.granted

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Unauthorized):
            self._judge.credential_refused(error, counts=bool(self._granted and self._judge.caller.token.granted))
        if isinstance(error, Unavailable):
            self._judge.not_sure(error)


class JudgedApi(UnaryCalls):
    """The API that a broker gives to a caller, as the judge sees it."""

    def __init__(self, api: BrokerApi, judge: Judge) -> None:
        self._api = api
        self._judge = judge

    async def ask(self, method: Method, request: Any) -> Any:
        call = getattr(self._api, method.attribute)
        if method.attribute == "produce_once":
            taken = self._judge.take_frame(request)
            with self._judge.refusals():
                answer = await call(request)
            self._judge.produced(taken, answer.results)
            return answer
        with self._judge.call(exempt=method.attribute in NEVER_REFUSED) as came, self._judge.refusals():
            if method.attribute != "fetch_once":
                return await call(request)
            by_topic = {
                part.topic: self._judge.caller.doubts(Operation.CONSUME, part.topic) for part in request.partitions
            }
            answers = self._judge.place.opened()
            answer = await call(request)
            answers.sent(answer.payload_bytes)
            for part in answer.header.partitions:
                verdict = self._judge.verdict_since(Operation.CONSUME, part.topic, by_topic[part.topic])
                self._judge.fetched(part, verdict, "a single fetch", came)
            return answer

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        taken: list[tuple[int, TakenFrame]] = []

        async def taking() -> AsyncIterator[ProduceFrame]:
            async for frame in requests:
                taken.append((frame.header.number, self._judge.take_frame(frame)))
                yield frame

        with self._judge.refusals():
            async with aclosing(self._api.produce(taking())) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    at = next(at for at, (number, _) in enumerate(taken) if answer.number in (0, number))
                    self._judge.produced(taken.pop(at)[1], answer.results)
                    yield answer

    async def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        with self._judge.call() as came, self._judge.refusals():
            answers = self._judge.place.opened()
            async with aclosing(self._api.fetch(request)) as frames:  # type: ignore[type-var]
                async for frame in frames:
                    answers.sent(frame.payload_bytes)
                    for part in frame.header.partitions:
                        verdict = self._judge.verdict(Operation.CONSUME, part.topic)
                        self._judge.fetched(part, verdict, "a stream", came)
                    yield frame

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._api.produce_delayed(requests)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._api.stage(requests)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._api.stage_delayed(requests)

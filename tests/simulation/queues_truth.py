"""What members of a queue group were given, said and were told, and the judgment of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.queues.queue import Queue
from ledgermq.client.queues.words import Word
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq_broker.queues.partition import LIFE_NUMBERS
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog

FINAL = (pb.ACCEPT, pb.REJECT)
ENDING = (*FINAL, pb.RELEASE_SHARE, pb.RETURN)


@dataclass(frozen=True, slots=True)
class Grant:
    """A message in an answer. It was leased after `asked_s`, and before `got_s`."""

    partition: int
    offset: int
    epoch: int
    lease: int
    deliveries: int
    asked_s: float
    got_s: float
    lease_s: float


@dataclass(slots=True)
class Said:
    """A word of a member. `counts`: as it was told at `told_s`; None: it was not."""

    partition: int
    offset: int
    epoch: int
    lease: int
    word: pb.ShareWord
    said_s: float
    told_s: float | None = None
    counts: bool | None = None


def write_down(
    queue: Queue, truth: QueuesTruth, now_s: Callable[[], float], saw: Callable[[str], None] = lambda what: None
) -> None:
    """Let a member write down what it is given and says, as it happens."""
    take_in, add = queue._polls.on_answer, queue._words.add

    def answered(frame: ShareFetchFrame, asked_s: float) -> None:
        got_s = now_s()
        for part in frame.header.partitions:
            for span in part.ranges:
                for offset in range(span.first, span.last + 1):
                    lease_s = part.lease_ms / 1000
                    truth.grants.append(
                        Grant(part.partition, offset, part.epoch, part.lease, span.deliveries, asked_s, got_s, lease_s)
                    )
                    saw("a message was leased")
                    if span.deliveries > 1:
                        saw("a message was leased again")
        take_in(frame, asked_s)

    def said(at: TopicPartition, word: Word) -> None:
        about = Said(at.partition, word.offset, word.lease.epoch, word.lease.number, word.word, now_s())
        truth.said.append(about)

        def told(done: Future[bool]) -> None:
            about.told_s, error = now_s(), done.exception()
            about.counts = error is None and done.result()
            saw(f"{pb.ShareWord.Name(about.word)} was answered: {'error' if error else about.counts}")

        word.reply._future.add_done_callback(told)
        add(at, word)

    queue._polls.on_answer = answered
    queue._words.add = said  # type: ignore[method-assign]


@dataclass
class QueuesTruth:
    grants: list[Grant] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    given: dict[tuple[int, int], str] = field(default_factory=dict)
    """Values that programs were given, by partition and offset."""
    renewed: set[tuple[int, int]] = field(default_factory=set)
    """Messages whose lease was renewed by a handle, which only precedes a dead letter, by partition and offset."""
    starts: dict[int, int] = field(default_factory=dict)
    """Below these offsets brokers say that everything is finished, by partition; where a run asked for it."""

    def figures(self) -> str:
        again = sum(grant.deliveries > 1 for grant in self.grants)
        late = sum(said.counts is False for said in self.said)
        return f"{len(self.grants)} messages leased, {again} of them again; {len(self.said)} words, {late} too late"

    def judge(self, offsets: Mapping[int, range]) -> Iterator[Violation]:
        """`offsets`: of the messages that the topic has at the end, by partition."""
        yield from self._acknowledged_again()
        yield from self._leased_twice()
        yield from self._finished_twice()
        yield from self._late_words()
        finished = {(said.partition, said.offset) for said in self.said if said.word in FINAL}
        for partition, there in offsets.items():
            lost = [offset for offset in there if (partition, offset) not in finished]
            if lost:
                yield Violation("queue lost messages", f"partition {partition}: no member has finished {lost[:10]}")

    def judge_filter(self, logs: Mapping[int, FinalLog], passes: Callable[[str], bool]) -> Iterator[Violation]:
        """Judge that programs were given exactly what passes, and in time: nothing of that was finished unseen."""
        for (partition, offset), value in self.given.items():
            if not passes(value):
                yield Violation("queue filter differs", f"partition {partition}, offset {offset}: {value!r} came")
        for partition, log in logs.items():
            missing = [
                offset
                for offset, value in log.records.items()
                if offset >= log.log_start and passes(value) and (partition, offset) not in self.given
            ]
            if missing:
                text = f"partition {partition}: offsets {missing[:10]} pass, and no program was given them"
                yield Violation("queue filter differs", text)

    def judge_dead(self, copies: Iterable[str], logs: Mapping[int, FinalLog]) -> Iterator[Violation]:
        """Judge that each dead letter, by its value, is of a message that its caller still held then."""
        places = {
            value: (partition, offset) for partition, log in logs.items() for offset, value in log.records.items()
        }
        for value in copies:
            if value in places and places[value] not in self.renewed:
                yield Violation("dead letter without a lease", f"{value!r}, of {places[value]}")

    def _late_words(self) -> Iterator[Violation]:
        """A word that gives a message back, or keeps it, does not count once another lease of the message was granted;
        only its repetition does.
        """
        first: dict[tuple[int, int, int, int, int], float] = {}
        leases: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        for grant in self.grants:
            leases.setdefault((grant.partition, grant.offset), []).append((grant.epoch, grant.lease, grant.got_s))
        for said in self.said:
            if said.word not in (pb.RELEASE_SHARE, pb.RETURN, pb.RENEW):
                continue
            named = said.partition, said.offset, said.epoch, said.lease, said.word
            since_s = said.said_s if said.word == pb.RENEW else first.setdefault(named, said.said_s)
            later = [
                lease
                for lease in leases.get((said.partition, said.offset), ())
                if lease[:2] > (said.epoch, said.lease) and lease[2] < since_s
            ]
            if said.counts and later:
                yield Violation(
                    "late word counts",
                    f"partition {said.partition}, offset {said.offset}: {pb.ShareWord.Name(said.word)} at"
                    f" {said.said_s:.3f} under lease {said.epoch}/{said.lease}, after {later[0]}",
                )

    def _acknowledged_again(self) -> Iterator[Violation]:
        told: dict[tuple[int, int], float] = {}
        for said in self.said:
            if said.word in FINAL and said.counts and said.told_s is not None:
                place = said.partition, said.offset
                told[place] = min(said.told_s, told.get(place, said.told_s))
        for grant in self.grants:
            at_s = told.get((grant.partition, grant.offset))
            if at_s is not None and grant.asked_s > at_s:
                yield Violation(
                    "acknowledged message came again",
                    f"partition {grant.partition}, offset {grant.offset}: acknowledged at {at_s:.3f}, leased between"
                    f" {grant.asked_s:.3f} and {grant.got_s:.3f}",
                )

    def _finished_twice(self) -> Iterator[Violation]:
        """Of the leases of a message one at most is told that it has finished the message."""
        by: dict[tuple[int, int], tuple[int, int]] = {}
        for said in self.said:
            if said.word in FINAL and said.counts:
                lease = said.epoch, said.lease
                first = by.setdefault((said.partition, said.offset), lease)
                if first != lease:
                    yield Violation(
                        "message finished twice",
                        f"partition {said.partition}, offset {said.offset}: leases {first} and {lease}",
                    )

    def _leased_twice(self) -> Iterator[Violation]:
        """In one life of the owner's state: a lease ends by its time, or by a word of its member."""
        ended: dict[tuple[int, int, int, int], float] = {}
        for said in self.said:
            if said.word in ENDING:
                ended.setdefault((said.partition, said.offset, said.epoch, said.lease), said.said_s)
        lives: dict[tuple[int, int, int, int], list[Grant]] = {}
        for grant in self.grants:
            life = grant.partition, grant.offset, grant.epoch, grant.lease // LIFE_NUMBERS
            lives.setdefault(life, []).append(grant)
        for grants in lives.values():
            for before, after in pairwise(sorted(grants, key=lambda grant: grant.lease)):
                place = before.partition, before.offset, before.epoch, before.lease
                if before.asked_s + before.lease_s <= after.got_s or ended.get(place, after.got_s + 1) <= after.got_s:
                    continue
                yield Violation(
                    "message leased twice",
                    f"partition {before.partition}, offset {before.offset}, epoch {before.epoch}: leases {before.lease}"
                    f" and {after.lease}, at {before.asked_s:.3f} to {after.got_s:.3f}",
                )

"""Judge how a client behaves as a member of a consumer group: pure, with the time given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb

LET_GO_S = 3.0
"""So long after an answer has taken a partition away, calls for it may still be on their way on a slow machine."""

Place = tuple[str, int]


@dataclass(slots=True)
class _Member:
    """`epoch`: of the last answer that the member got. `given`: by partition, the epoch under which it has it."""

    epoch: int = 0
    given: dict[Place, int] = field(default_factory=dict)
    were_given: dict[Place, set[int]] = field(default_factory=dict)
    taken_s: dict[Place, float] = field(default_factory=dict)
    commits: dict[tuple[Place, int], tuple[int, int]] = field(default_factory=dict)
    """By partition and epoch: counter and offset of the last commit that was asked for."""
    has_left: bool = False


class Membership:
    """`find`: takes what a client did wrong."""

    def __init__(self, find: Callable[[str], None]) -> None:
        self._find = find
        self._members: dict[str, _Member] = {}

    @property
    def joined(self) -> int:
        """Return how many members have asked to join."""
        return len(self._members)

    @property
    def have_left(self) -> bool:
        """Return whether all of them have said that they leave."""
        return all(member.has_left for member in self._members.values())

    def asked(self, method: str, request: Any, places: Sequence[Place], now_s: float) -> None:
        if method == "GroupHeartbeat":
            self._judge_heartbeat(request)
        elif method == "CommitOffsets" and request.member_id:
            self._judge_commits(request)
        elif method == "FetchOnce" and self._members:
            for place in places:
                self._judge_fetch(place, now_s)

    def answered(self, method: str, request: Any, answer: Any, now_s: float) -> None:
        if method != "GroupHeartbeat":
            return
        member = self._members.setdefault(request.member_id, _Member())
        given = {(each.topic, each.partition): each.epoch for each in answer.assigned}
        for place in member.given.keys() - given.keys():
            member.taken_s[place] = now_s
        for place, epoch in given.items():
            member.taken_s.pop(place, None)
            member.were_given.setdefault(place, set()).add(epoch)
        member.given, member.epoch = given, answer.group_epoch

    def _judge_heartbeat(self, request: pb.GroupHeartbeatRequest) -> None:
        member = self._members.get(request.member_id)
        if member is None:
            if request.step != pb.JOIN:
                self._find(f"group {request.group}: the first heartbeat of a member is JOIN, not {_name(request.step)}")
            member = self._members[request.member_id] = _Member()
        if not request.member_id:
            self._find(f"group {request.group}: a member draws an id for itself, and sends it with each heartbeat")
        if request.step == pb.STAY and request.seen_epoch != member.epoch:
            self._find(
                f"group {request.group}: seen_epoch is the group_epoch of the last answer, {member.epoch}, not"
                f" {request.seen_epoch}"
            )
        member.has_left = request.step in (pb.LEAVE, pb.LEAVE_FOR_A_WHILE)

    def _judge_commits(self, request: pb.CommitOffsetsRequest) -> None:
        member = self._members.get(request.member_id)
        if member is None:
            self._find(f"group {request.group}: commits as a member that never joined")
            return
        for commit in request.commits:
            place = commit.topic, commit.partition
            if commit.epoch not in member.were_given.get(place, ()):
                self._find(
                    f"{place[0]}-{place[1]}: committed under epoch {commit.epoch}; a member commits under the epoch"
                    " with which it was given the partition"
                )
            counter, offset = member.commits.get((place, commit.epoch), (0, -1))
            if commit.counter < counter or (commit.counter == counter and commit.offset != offset):
                self._find(
                    f"{place[0]}-{place[1]}: the counter of commits has to grow, else brokers pass them over; it was"
                    f" {counter} before, and is {commit.counter} now"
                )
            member.commits[place, commit.epoch] = commit.counter, commit.offset

    def _judge_fetch(self, place: Place, now_s: float) -> None:
        if any(place in member.given for member in self._members.values()):
            return
        taken = [member.taken_s[place] for member in self._members.values() if place in member.taken_s]
        if not taken or now_s > max(taken) + LET_GO_S:
            self._find(f"{place[0]}-{place[1]}: fetched from a partition that the group has not given to it")


def _name(step: int) -> str:
    return str(pb.GroupStep.Name(step))

"""The life of one classic group.

             first join              all have joined,            the leader has synced
                                     or time is over
    EMPTY ────────────────> PREPARING ────────────> COMPLETING ────────────> STABLE
      ^                      │     ^                    │                      │
      └──────────────────────┘     └────────────────────┴──────────────────────┘
          no member is left          a member joins, leaves, is silent, does not sync

A Join is held while PREPARING, a Sync while COMPLETING. Invariants:

* A generation is given out once. A group that is loaded from its log begins behind all that were given out, because
  at most one more than is durable ever is.
* All members of a generation have one protocol, and one of them is the leader.
* A member whose call is held is not silent. It waits for at most the longest rebalance time-out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ledgermq.errors import UnknownMember
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets.classic.values import (
    Answer,
    JoinAnswer,
    JoinRequest,
    Protocols,
    RebalanceInProgress,
    State,
    SyncAnswer,
    stated_bytes,
)
from ledgermq_offsets.limits import GROUP_BYTES, MEMBER_BYTES


@dataclass(slots=True)
class ClassicMember:
    """`joined`: for the next generation, while PREPARING. `synced`: it has asked for its assignment in the present one.
    `held`: a call of it waits. `heard_s`: of its last call, or of the answer to it.
    """

    id: str
    instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    heard_s: float
    assignment: bytes = b""
    joined: bool = False
    synced: bool = False
    held: bool = False

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def size_bytes(self) -> int:
        return stated_bytes(self.protocols, self.instance_id, self.client_id, self.client_host)

    @property
    def silent_at_s(self) -> float:
        return inf if self.held or self.joined else self.heard_s + self.session_timeout_ms / 1000


@dataclass(slots=True)
class ClassicGroup:
    """`durable`: the newest generation in the log. `given`: the newest that was given out. `pending`: ids of clients
    that have to join again with them, and until when that is expected.
    """

    name: str
    state: State = State.EMPTY
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    generation: int = 0
    durable: int = 0
    given: int = 0
    empty_since_ms: int = 0
    members: dict[str, ClassicMember] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    initial: bool = False
    """The first members of an empty group wait for others."""
    began_s: float = 0.0
    """When the rebalance, or the wait for syncs, began."""
    deadline_s: float = inf
    due_s: float | None = None
    principal: int = NO_PRINCIPAL
    dirty: bool = False
    """Its record has to be written."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """Of held calls that are to be answered now, by member id."""

    @property
    def size_bytes(self) -> int:
        """Return about how much memory its members take, with those that have got an id only."""
        members = sum(MEMBER_BYTES + each.size_bytes + len(each.assignment) for each in self.members.values())
        return GROUP_BYTES + members + MEMBER_BYTES * len(self.pending)

    @property
    def assigned_bytes(self) -> int:
        return sum(len(member.assignment) for member in self.members.values())

    def growth_by(self, request: JoinRequest) -> int:
        """Return by how many bytes the group grows if this member joins; below 0: it becomes smaller."""
        known = self.members.get(request.member_id) or self.instance(request.instance_id)
        if known is None:
            return MEMBER_BYTES + request.size_bytes
        return stated_bytes(request.protocols) - stated_bytes(known.protocols)

    @property
    def is_whole(self) -> bool:
        """Return whether its generation has assignments, or no member."""
        return self.state in (State.STABLE, State.EMPTY)

    @property
    def rebalance_timeout_s(self) -> float:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0) / 1000

    def instance(self, instance_id: str) -> ClassicMember | None:
        if not instance_id:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: Protocols, without: str = "") -> bool:
        """Return whether a member with these protocols can be in the group. `without`: a member that it replaces."""
        if not protocol_type or not protocols:
            return False
        others = [member for member in self.members.values() if member.id != without]
        if not others:
            return True
        common = set.intersection(*({name for name, _ in member.protocols} for member in others))
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def prepare(self, now_s: float, initial_delay_s: float | None = None) -> None:
        """Begin a rebalance; one that has begun goes on. `initial_delay_s`: how long the first members of an empty
        group wait for others; None: no member joins now.
        """
        if self.state is State.PREPARING:
            if self.initial and initial_delay_s is not None:
                self.deadline_s = min(now_s + initial_delay_s, self.began_s + self.rebalance_timeout_s)
            return
        for member in self.members.values():
            if member.held:
                self.answer(member, RebalanceInProgress("the group rebalances; join again"), now_s)
            member.synced = False
        self.initial = self.state is State.EMPTY
        self.state = State.PREPARING
        self.began_s = now_s
        wait_s = self.rebalance_timeout_s
        self.deadline_s = now_s + (min(initial_delay_s or 0.0, wait_s) if self.initial else wait_s)

    def complete_if_ready(self, now_s: float, now_ms: int) -> None:
        if self.state is not State.PREPARING:
            return
        if self.initial and self.members:
            return
        if not self.members or (not self.pending and all(member.joined for member in self.members.values())):
            self.complete(now_s, now_ms)

    def complete(self, now_s: float, now_ms: int) -> None:
        """Begin the next generation with those that have joined, and static members, which may come back."""
        for member in [m for m in self.members.values() if not m.joined and not m.instance_id]:
            del self.members[member.id]
        joined = [member for member in self.members.values() if member.joined]
        if self.members and not joined:
            self.began_s, self.deadline_s = now_s, now_s + self.rebalance_timeout_s
            return
        self.initial = False
        self.generation = max(self.given, self.generation) + 1
        if not joined:
            self.state, self.deadline_s, self.empty_since_ms = State.EMPTY, inf, now_ms
            self.protocol = self.leader = ""
            self.given, self.dirty = self.generation, True
            return
        # The last one was given out and is in no record, or this is the first: the log has to have it before answers.
        self.dirty = self.dirty or self.given > self.durable or not self.given
        self.given = self.generation
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._voted()
        self.state = State.COMPLETING
        self.began_s, self.deadline_s = now_s, now_s + self.rebalance_timeout_s
        for member in self.members.values():
            member.assignment, member.synced = b"", not member.joined
        for member in joined:
            member.joined = False
            self.answer(member, self.joined_answer(member), now_s)

    def _voted(self) -> str:
        """Return the protocol that all support and most prefer; of several, the one of the oldest member."""
        common = set.intersection(*({name for name, _ in member.protocols} for member in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            favourite = next(name for name, _ in member.protocols if name in common)
            votes[favourite] = votes.get(favourite, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def joined_answer(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinAnswer:
        leads = member.id == self.leader
        members = tuple((m.id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values())
        return JoinAnswer(
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            members if leads else (),
            skip_assignment and leads,
        )

    def assign(self, assignments: dict[str, bytes], now_s: float) -> None:
        """Make the generation complete with the leader's assignments. All that wait for theirs get it."""
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
        self.state = State.STABLE
        self.dirty = True
        for member in self.members.values():
            if member.held:
                self.answer(member, self.synced_answer(member), now_s)

    def synced_answer(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(self.protocol_type, self.protocol, member.assignment)

    def remove(self, member: ClassicMember, now_s: float, now_ms: int) -> None:
        if member.held:
            self.answer(member, UnknownMember(f"member {member.id!r} was removed; join again"), now_s)
        del self.members[member.id]
        self.prepare(now_s)
        self.complete_if_ready(now_s, now_ms)

    def replace(self, former: ClassicMember, member_id: str, request: JoinRequest, now_s: float) -> ClassicMember:
        """Let a new process of a static member take its place, with its assignment."""
        member = member_of(request, member_id, now_s)
        member.assignment, member.synced = former.assignment, former.synced
        self.members = {
            (member_id if id_ == former.id else id_): (member if id_ == former.id else other)
            for id_, other in self.members.items()
        }
        if self.leader == former.id:
            self.leader = member_id
        return member

    def answer(self, member: ClassicMember, answer: Answer, now_s: float) -> None:
        """Answer the held call of a member; its session begins again."""
        if member.held:
            self.answers[member.id] = answer
        member.held, member.heard_s = False, now_s

    def late(self) -> list[ClassicMember]:
        """Return members that have not synced; they count as late once the deadline is over."""
        return [member for member in self.members.values() if not member.synced]

    def next_due_s(self) -> float:
        due_s = [member.silent_at_s for member in self.members.values()]
        due_s += self.pending.values()
        if self.state is State.PREPARING or (self.state in (State.COMPLETING, State.STABLE) and self.late()):
            due_s.append(self.deadline_s)
        return min(due_s, default=inf)


def member_of(request: JoinRequest, member_id: str, now_s: float) -> ClassicMember:
    return ClassicMember(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        now_s,
    )

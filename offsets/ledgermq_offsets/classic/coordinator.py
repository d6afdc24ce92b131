"""Coordinate classic groups: those of one partition of `__consumer_offsets`, for one term.

How a broker uses it (no call waits):

    c = ClassicGroups(limits, new_id)
    for record in snapshot + tail: c.apply(record.key, record.value)
    c.start(now_s)                                   # sessions begin again, in full
    decision = c.join(request, now_s, now_ms)        # typed errors are raised before anything that counts has changed
    append decision.records; when they are durable:
        for each of decision.woken, answer its held call with held_answer(*woken)
        answer the caller with decision.answer, or hold its call if that is None

A later call of a member takes the place of one that is held: answer the earlier one with RebalanceInProgress. When a
connection closes, drop what it holds and call nothing: the member may come again by another one.

Source: the classic protocol of Kafka 4.1 (GroupMetadataManager), KIP-345 (static members), KIP-394 (member ids).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ledgermq.errors import GroupError, GroupNotEmpty, UnknownMember
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import Shares
from ledgermq_offsets.classic.group import ClassicGroup, ClassicMember, member_of
from ledgermq_offsets.classic.records import decode, encode, tombstone
from ledgermq_offsets.classic.values import (
    Answer,
    ClassicLimits,
    DescribedGroup,
    DescribedMember,
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    JoinAnswer,
    JoinRequest,
    MemberIdRequired,
    RebalanceInProgress,
    State,
    SyncAnswer,
)
from ledgermq_offsets.deadlines import Deadlines

T = TypeVar("T")


class ClassicGroups:
    """`new_id`: makes a new member id of a client id. `now_s`: monotonic seconds. `now_ms`: wall clock."""

    def __init__(self, limits: ClassicLimits, new_id: Callable[[str], str]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.shares = Shares("groups", "groups with members that use the Kafka protocol")
        self._limits = limits
        self._new_id = new_id
        self._deadlines = Deadlines()
        self._answers: dict[tuple[str, str], Answer] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        name, group = decode(key, value)
        self._drop(name)
        if group is not None:
            self._put(group)

    def start(self, now_s: float) -> None:
        """Start the clocks, once, after the last record was applied."""
        for group in self.groups.values():
            for member in group.members.values():
                member.heard_s = now_s
            group.began_s, group.deadline_s = now_s, now_s + group.rebalance_timeout_s
            self._deadlines.note(group, group.next_due_s())

    # Members

    def join(self, request: JoinRequest, now_s: float, now_ms: int) -> Decision[JoinAnswer | None]:
        """Let a member join, or join again.

        Raises UnknownMember, FencedInstance, InconsistentProtocol, InvalidSessionTimeout, GroupFull, MemberIdRequired.
        """
        self._check_times(request)
        group = self.groups.get(request.group) or ClassicGroup(request.group, principal=request.principal)
        former = group.instance(request.instance_id)
        if request.member_id:
            self._check_id(group, request)
        replaced = request.member_id or (former.id if former is not None else "")
        if not group.supports(request.protocol_type, request.protocols, replaced):
            raise InconsistentProtocol(
                f"group {group.name!r} has members with protocols of type {group.protocol_type!r}, none of which this"
                " member supports: use one assignor, or one client library, in all members"
            )
        self._check_room(group, request, replaced)
        self._put(group)
        if not request.member_id and former is None and request.id_required and not request.instance_id:
            member_id = self._new_id(request.client_id)
            group.pending[member_id] = now_s + request.session_timeout_ms / 1000
            self._deadlines.note(group, group.next_due_s())
            raise MemberIdRequired(member_id)
        known = group.members.get(request.member_id)
        if known is not None:
            return self._join_again(group, known, request, now_s, now_ms)
        if former is not None:
            return self._replace(group, former, request, now_s, now_ms)
        group.pending.pop(request.member_id, None)
        if not group.members:
            group.protocol_type = request.protocol_type
        member = member_of(request, request.member_id or self._new_id(request.client_id), now_s)
        group.members[member.id] = member
        return self._rebalance(group, member, now_s, now_ms)

    def _join_again(
        self, group: ClassicGroup, member: ClassicMember, request: JoinRequest, now_s: float, now_ms: int
    ) -> Decision[JoinAnswer | None]:
        member.held, member.heard_s = False, now_s
        same = member.protocols == request.protocols
        if same and (group.state is State.COMPLETING or (group.state is State.STABLE and member.id != group.leader)):
            return self._decided(group, group.joined_answer(member))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        return self._rebalance(group, member, now_s, now_ms)

    def _replace(
        self, group: ClassicGroup, former: ClassicMember, request: JoinRequest, now_s: float, now_ms: int
    ) -> Decision[JoinAnswer | None]:
        """A static member has come again without its id: it gets a new one, and the former process is fenced."""
        if former.held:
            group.answer(former, FencedInstance(_fenced(former.instance_id)), now_s)
        joined = former.joined
        member = group.replace(former, self._new_id(request.client_id), request, now_s)
        unchanged = former.metadata(group.protocol) == member.metadata(group.protocol)
        if group.state is State.STABLE and unchanged and group.protocol in dict(member.protocols):
            group.dirty = True
            return self._decided(group, group.joined_answer(member, skip_assignment=True))
        member.joined = joined
        return self._rebalance(group, member, now_s, now_ms)

    def _rebalance(
        self, group: ClassicGroup, member: ClassicMember, now_s: float, now_ms: int
    ) -> Decision[JoinAnswer | None]:
        """Hold the Join of a member until the next generation begins, which may be now."""
        group.prepare(now_s, self._limits.initial_delay_ms / 1000)
        member.joined = member.held = True
        group.complete_if_ready(now_s, now_ms)
        answer = group.answers.pop(member.id, None)
        assert answer is None or isinstance(answer, JoinAnswer)
        return self._decided(group, answer)

    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        now_s: float,
        *,
        instance_id: str = "",
        protocol_type: str = "",
        protocol: str = "",
        assignments: Mapping[str, bytes] | None = None,
    ) -> Decision[SyncAnswer | None]:
        """Give a member its assignment. `assignments`: those of the leader, by member id; other members' do not count.

        Raises UnknownMember, FencedInstance, IllegalGeneration, InconsistentProtocol, RebalanceInProgress, GroupFull.
        """
        group, member = self._member(name, member_id, instance_id, generation)
        if protocol_type not in ("", group.protocol_type) or protocol not in ("", group.protocol):
            raise InconsistentProtocol(f"group {name!r} uses protocol {group.protocol!r} of {group.protocol_type!r}")
        if group.state is State.PREPARING:
            raise RebalanceInProgress(f"group {name!r} rebalances; join again")
        given = dict(assignments or {})
        if sum(map(len, given.values())) > self._limits.group_bytes_max:
            raise GroupFull(f"the assignments of group {name!r} exceed {self._limits.group_bytes_max} bytes")
        member.heard_s, member.synced, member.held = now_s, True, False
        if group.state is State.COMPLETING:
            if member.id != group.leader:
                member.held = True
                return self._decided(group, None)
            group.assign(given, now_s)
        return self._decided(group, group.synced_answer(member))

    def heartbeat(
        self, name: str, member_id: str, generation: int, now_s: float, instance_id: str = ""
    ) -> Decision[None]:
        """Raises UnknownMember, FencedInstance, IllegalGeneration, RebalanceInProgress."""
        group, member = self._member(name, member_id, instance_id, generation)
        member.heard_s = now_s
        if group.state is State.PREPARING:
            raise RebalanceInProgress(f"group {name!r} rebalances; join again")
        return Decision([], None)

    def leave(
        self, name: str, leaving: Sequence[tuple[str, str]], now_s: float, now_ms: int
    ) -> Decision[tuple[GroupError | None, ...]]:
        """Remove members, each (member id, instance id); a static one may be named without its member id."""
        group = self.groups.get(name)
        results: list[GroupError | None] = []
        for member_id, instance_id in leaving:
            try:
                if group is None:
                    raise UnknownMember(f"there is no group {name!r}")
                if group.pending.pop(member_id, None) is None:
                    group.remove(self._leaving(group, member_id, instance_id), now_s, now_ms)
                else:
                    group.complete_if_ready(now_s, now_ms)
                results.append(None)
            except GroupError as error:
                results.append(error)
        return Decision([], tuple(results)) if group is None else self._decided(group, tuple(results))

    def _leaving(self, group: ClassicGroup, member_id: str, instance_id: str) -> ClassicMember:
        named = group.instance(instance_id)
        if named is not None and not member_id:
            return named
        return self._checked(group, member_id, instance_id)

    def check_commit(
        self, name: str, member_id: str, generation: int, now_s: float, *, instance_id: str = "", staged: bool = False
    ) -> None:
        """Check who commits. Commits of the old generation count until all have joined the next one. `staged`: in a
        transaction, where clients of old versions name no member.

        Raises UnknownMember, FencedInstance, IllegalGeneration, RebalanceInProgress.
        """
        group = self.groups.get(name)
        if generation < 0 and not member_id:
            if group is not None and group.members and not staged:
                raise UnknownMember(f"group {name!r} has members, so only they commit")
            return
        group, member = self._member(name, member_id, instance_id, generation)
        member.heard_s = now_s
        if group.state is State.COMPLETING:
            raise RebalanceInProgress(f"group {name!r} rebalances; join again")

    # Time

    def next_due_s(self) -> float:
        """Return when `tick` has to be called next."""
        return self._deadlines.next_s()

    def tick(self, now_s: float, now_ms: int) -> Decision[str] | None:
        """Do what is due for one group, and return its name; None: nothing is."""
        group = self._deadlines.pop(self.groups, now_s)
        if group is None:
            return None
        group.pending = {member_id: until_s for member_id, until_s in group.pending.items() if until_s > now_s}
        for member in [m for m in group.members.values() if m.silent_at_s <= now_s]:
            group.remove(member, now_s, now_ms)
        if group.state in (State.COMPLETING, State.STABLE) and group.deadline_s <= now_s:
            for member in group.late():
                if member.id in group.members and not member.joined:
                    group.remove(member, now_s, now_ms)
        group.complete_if_ready(now_s, now_ms)
        if group.state is State.PREPARING and group.deadline_s <= now_s:
            group.pending.clear()
            group.complete(now_s, now_ms)
        return self._decided(group, group.name)

    # Answers

    def has_answer(self, name: str, member_id: str) -> bool:
        """Return whether a decision has woken a call of this member, and its answer was not taken."""
        return (name, member_id) in self._answers

    def held_answer(self, name: str, member_id: str) -> JoinAnswer | SyncAnswer:
        """Return the answer for a held call that a decision has woken. Raises its GroupError."""
        answer = self._answers.pop((name, member_id))
        if isinstance(answer, GroupError):
            raise answer
        return answer

    def describe(self, name: str) -> DescribedGroup | None:
        """Return a group as tools show it; None: there is none. While it rebalances, it has no assignments."""
        group = self.groups.get(name)
        if group is None:
            return None
        members = tuple(
            DescribedMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if group.state is State.STABLE else b"",
                member.assignment if group.state is State.STABLE else b"",
            )
            for member in group.members.values()
        )
        protocol = group.protocol if group.state is State.STABLE else ""
        return DescribedGroup(group.state, group.protocol_type, protocol, members)

    def delete(self, name: str) -> Decision[None]:
        """Forget a group. Raises GroupNotEmpty."""
        group = self.groups.get(name)
        if group is None:
            return Decision([], None)
        if group.members or group.pending:
            raise GroupNotEmpty(f"group {name!r} has {len(group.members)} members")
        return Decision(self.forget(name), None)

    def forget(self, name: str) -> list[LogRecord]:
        """Forget a group without members, and return the records for that."""
        group = self._drop(name)
        return [tombstone(name)] if group is not None and group.given else []

    def _decided(self, group: ClassicGroup, answer: T) -> Decision[T]:
        records: list[LogRecord] = []
        if group.dirty:
            group.dirty = False
            if group.is_whole:
                group.durable = group.generation
            records.append(encode(group))
        woken = tuple((group.name, member_id) for member_id in group.answers)
        self._answers.update({(group.name, member_id): held for member_id, held in group.answers.items()})
        group.answers.clear()
        if not group.members and not group.pending and not group.given:
            self._drop(group.name)
        else:
            self._deadlines.note(group, group.next_due_s())
        return Decision(records, answer, woken)

    # Shares

    def count_to(self, group: ClassicGroup, principal: int) -> None:
        """Count a group to the principal (a hash of its name) that began it."""
        self.shares.add(group.principal, -1)
        group.principal = principal
        self.shares.add(principal)

    def _put(self, group: ClassicGroup) -> None:
        if group.name not in self.groups:
            self.groups[group.name] = group
            self.shares.add(group.principal)

    def _drop(self, name: str) -> ClassicGroup | None:
        group = self.groups.pop(name, None)
        if group is not None:
            self.shares.add(group.principal, -1)
        return group

    # Checks

    def _member(
        self, name: str, member_id: str, instance_id: str, generation: int
    ) -> tuple[ClassicGroup, ClassicMember]:
        group = self.groups.get(name)
        if group is None:
            raise UnknownMember(f"there is no group {name!r}; join")
        member = self._checked(group, member_id, instance_id)
        if generation != group.generation:
            raise IllegalGeneration(f"group {name!r} is in generation {group.generation}, not {generation}; join again")
        return group, member

    def _checked(self, group: ClassicGroup, member_id: str, instance_id: str) -> ClassicMember:
        named = group.instance(instance_id)
        if named is not None and named.id != member_id:
            raise FencedInstance(_fenced(instance_id))
        member = group.members.get(member_id)
        if member is None or (instance_id and named is None):
            raise UnknownMember(f"group {group.name!r} has no member {member_id!r}; join again under a new id")
        return member

    def _check_id(self, group: ClassicGroup, request: JoinRequest) -> None:
        if request.member_id not in group.pending or request.instance_id:
            self._checked(group, request.member_id, request.instance_id)

    def _check_times(self, request: JoinRequest) -> None:
        limits = self._limits
        if not limits.session_timeout_ms_min <= request.session_timeout_ms <= limits.session_timeout_ms_max:
            raise InvalidSessionTimeout(
                f"the session time-out is {request.session_timeout_ms} ms, allowed are"
                f" {limits.session_timeout_ms_min} to {limits.session_timeout_ms_max} (session.timeout.ms)"
            )
        if not 0 < request.rebalance_timeout_ms <= limits.rebalance_timeout_ms_max:
            raise InvalidSessionTimeout(
                f"the rebalance time-out is {request.rebalance_timeout_ms} ms, allowed are 1 to"
                f" {limits.rebalance_timeout_ms_max} (max.poll.interval.ms)"
            )

    def _check_room(self, group: ClassicGroup, request: JoinRequest, replaced: str) -> None:
        limits = self._limits
        others = [member for member in group.members.values() if member.id != replaced]
        waiting = len(group.pending) - (replaced in group.pending)
        if len(others) + waiting >= limits.members_max:
            raise GroupFull(f"group {group.name!r} has {limits.members_max} members, which is the limit")
        size = request.size_bytes
        total = size + sum(member.size_bytes for member in others)
        if size > limits.member_bytes_max or total > limits.group_bytes_max:
            raise GroupFull(
                f"the metadata and names of a member take at most {limits.member_bytes_max} bytes, and those of a group"
                f" {limits.group_bytes_max}; these would be {size} and {total}"
            )


def _fenced(instance_id: str) -> str:
    return f"another process uses instance id {instance_id!r} now; give each process its own (group.instance.id)"

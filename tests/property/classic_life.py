"""Random lives of classic groups: clients as Kafka's behave, coordinators that are replaced, time that passes.

The promises are checked against what clients have seen, not against the state of the coordinator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ledgermq.errors import GroupError, UnknownMember
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.classic.values import (
    ClassicLimits,
    FencedInstance,
    JoinAnswer,
    JoinRequest,
    MemberIdRequired,
    RebalanceInProgress,
    State,
    SyncAnswer,
)

NAME = "g"
SESSION_MS, REBALANCE_MS = 10_000, 30_000
LIMITS = ClassicLimits(members_max=100)
Record = tuple[bytes, bytes | None]


@dataclass
class Client:
    """`waits`: for the answer of a Join or a Sync. `generation`: that it works in; -1: none."""

    number: int
    instance_id: str = ""
    member_id: str = ""
    generation: int = -1
    joined: JoinAnswer | None = None
    waits: str = ""
    waits_since_s: float = 0.0
    protocols: tuple[tuple[str, bytes], ...] = ()
    alive: bool = True
    fenced: bool = False
    assignment: bytes | None = None


@dataclass
class Life:
    seed: int
    clients: list[Client] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    now_s: float = 100.0
    ids: int = 0
    leaders: dict[int, str] = field(default_factory=dict)
    """By generation, as clients were told."""
    given: dict[int, int] = field(default_factory=dict)
    """By generation: the term of the coordinator that gave it out."""
    assigned: dict[int, dict[str, bytes]] = field(default_factory=dict)
    term: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.groups = self._coordinator()

    def _coordinator(self) -> ClassicGroups:
        groups = ClassicGroups(LIMITS, self._new_id)
        for key, value in self.log:
            groups.apply(key, value)
        groups.start(self.now_s)
        return groups

    def _new_id(self, client_id: str) -> str:
        self.ids += 1
        return f"{client_id}-{self.ids}"

    @property
    def now_ms(self) -> int:
        return int(1000 * self.now_s)

    # What happens

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.settle()

    def step(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.12 and len(self.clients) < 8:
            static = self.rng.random() < 0.4
            self.clients.append(Client(len(self.clients), f"i{self.rng.randrange(3)}" if static else ""))
        elif drawn < 0.17 and self.seed % 2:
            self.take_over()
        elif drawn < 0.2 and self.clients:
            self._die(self.rng.choice(self.clients))
        elif drawn < 0.38:
            self.pass_time(self.rng.choice((0.5, 2.0, 4.0, 12.0)))
        elif self.clients:
            self.act(self.rng.choice(self.clients))

    def _die(self, client: Client) -> None:
        leaves = client.alive and not client.fenced and client.member_id and self.rng.random() < 0.5
        client.alive = False
        if leaves:
            self._called(self.groups.leave, NAME, [(client.member_id, client.instance_id)], self.now_s, self.now_ms)

    def take_over(self) -> None:
        """What is in the log stays. Calls that are held end, and their clients come again."""
        self.term += 1
        before = self.groups.groups.get(NAME)
        self.groups = self._coordinator()
        if before is not None and before.state is State.STABLE:
            after = self.groups.groups[NAME]
            assert (after.state, after.generation) == (State.STABLE, before.generation), "a takeover ends a generation"
            wanted = {member.id: member.assignment for member in before.members.values()}
            assert {member.id: member.assignment for member in after.members.values()} == wanted, "assignments are lost"
        for client in self.clients:
            client.waits = ""

    def pass_time(self, seconds: float) -> None:
        """Clients send heartbeats meanwhile, as long as they live."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s = min(until, self.now_s + 2.0)
            for client in self.clients:
                if client.alive and not client.waits and client.generation >= 0:
                    self.heartbeat(client)
            while (decision := self.groups.tick(self.now_s, self.now_ms)) is not None:
                self._made(decision)
            for client in self.clients:
                waited = self.now_s - client.waits_since_s
                assert not client.alive or not client.waits or waited <= 3 * REBALANCE_MS / 1000, (
                    "a call is held for ever"
                )

    def settle(self) -> None:
        """Without further trouble all living members come to one generation, in which each has its assignment."""
        for _ in range(60):
            self.pass_time(3.0)
            for client in self.clients:
                self.act(client, calm=True)
        living = [client for client in self.clients if client.alive and not client.fenced]
        group = self.groups.groups.get(NAME)
        assert not living or group is not None, "the group is gone"
        assert {client.generation for client in living} <= {group.generation if group else 0}, "members are apart"
        assert all(client.assignment is not None for client in living), "a member has no assignment"
        if group is not None:
            assert set(group.members) == {client.member_id for client in living}, "the dead are members"
            assert group.state is (State.STABLE if living else State.EMPTY)

    # What clients do

    def act(self, client: Client, *, calm: bool = False) -> None:
        if not client.alive or client.fenced:
            return
        if client.waits:
            if not calm and self.rng.random() < 0.03:
                client.waits = ""  # its connection closed: it comes again
            return
        if client.joined is None:
            self.join(client, calm=calm)
        elif client.assignment is None:
            self.sync(client)
        elif not calm and self.rng.random() < 0.3:
            self.join(client, calm=calm)
        elif not calm and self.rng.random() < 0.5:
            self.commit(client)

    def join(self, client: Client, *, calm: bool = False) -> None:
        if not client.protocols or (not calm and self.rng.random() < 0.2):
            data = b"%d-%d" % (client.number, self.rng.randrange(3))
            client.protocols = (("range", data), ("sticky", data)) if client.number % 2 else (("sticky", data),)
        request = JoinRequest(
            NAME,
            client.member_id,
            "consumer",
            client.protocols,
            client.instance_id,
            f"c{client.number}",
            "host",
            SESSION_MS,
            REBALANCE_MS,
            id_required=client.number % 3 != 0,
        )
        client.joined, client.assignment = None, None
        self._wait(client, "join")
        found = self._called(self.groups.join, request, self.now_s, self.now_ms)
        self._answered(client, found)

    def sync(self, client: Client) -> None:
        assert client.joined is not None
        members = [member_id for member_id, _, _ in client.joined.members]
        plan = {member_id: b"%s@%d" % (member_id.encode(), client.generation) for member_id in members}
        self._wait(client, "sync")
        found = self._called(
            self.groups.sync,
            NAME,
            client.member_id,
            client.generation,
            self.now_s,
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocol=client.joined.protocol,
            assignments=plan,
        )
        self._answered(client, found)

    def heartbeat(self, client: Client) -> None:
        found = self._called(
            self.groups.heartbeat, NAME, client.member_id, client.generation, self.now_s, client.instance_id
        )
        if isinstance(found, GroupError):
            self._answered(client, found)

    def commit(self, client: Client) -> None:
        group = self.groups.groups.get(NAME)
        try:
            self.groups.check_commit(
                NAME, client.member_id, client.generation, self.now_s, instance_id=client.instance_id
            )
        except RebalanceInProgress:
            assert group is not None
            assert group.state is State.COMPLETING, "commits of the old generation count until all have joined"
        except GroupError as error:
            self._answered(client, error)
        else:
            assert group is not None
            assert client.generation == group.generation, "a commit of another generation was accepted"

    def _wait(self, client: Client, what: str) -> None:
        client.waits, client.waits_since_s = what, self.now_s

    # What they get

    def _called(self, call, *args, **named):  # type: ignore[no-untyped-def]
        try:
            decision = call(*args, **named)
        except GroupError as error:
            return error
        self._made(decision)
        return decision.answer

    def _made(self, decision) -> None:  # type: ignore[no-untyped-def]
        for record in decision.records:
            self.log.append((record.key, None if record.value is None else bytes(record.value)))
        for name, member_id in decision.woken:
            try:
                answer: JoinAnswer | SyncAnswer | GroupError = self.groups.held_answer(name, member_id)
            except GroupError as error:
                answer = error
            for client in self.clients:
                if client.member_id == member_id or (
                    not client.member_id and member_id.startswith(f"c{client.number}-")
                ):
                    self._answered(client, answer, held=True)

    def _answered(self, client: Client, answer: object, *, held: bool = False) -> None:
        if answer is None or not client.alive:
            return
        if held and not client.waits:
            return  # its connection is closed
        assert not (held and isinstance(answer, UnknownMember)), "a member whose call is held was taken for dead"
        client.waits = ""
        if isinstance(answer, JoinAnswer):
            self._joined(client, answer)
        elif isinstance(answer, SyncAnswer):
            self._synced(client, answer)
        elif isinstance(answer, MemberIdRequired):
            client.member_id = answer.member_id
        elif isinstance(answer, FencedInstance):
            client.fenced = True
        elif isinstance(answer, GroupError):
            client.generation, client.joined, client.assignment = -1, None, None
            if isinstance(answer, UnknownMember):
                group = self.groups.groups.get(NAME)
                other = group.instance(client.instance_id) if group is not None else None
                assert other is None or other.id == client.member_id, "a former process of an instance is not fenced"
                client.member_id = ""

    def _joined(self, client: Client, answer: JoinAnswer) -> None:
        term = self.given.setdefault(answer.generation, self.term)
        assert term == self.term or answer.generation in self.assigned, "two coordinators gave out one generation"
        client.member_id, client.generation = answer.member_id, answer.generation
        client.joined, client.assignment = answer, None
        assert answer.protocol in dict(client.protocols), "a protocol that the member does not support"
        group = self.groups.groups[NAME]
        assert answer.leader in group.members, "the leader is no member"
        if answer.skip_assignment or answer.generation in self.assigned:
            return
        former = self.leaders.setdefault(answer.generation, answer.leader)
        assert former == answer.leader, "a generation has two leaders"
        if answer.leader == answer.member_id:
            assert answer.member_id in {member_id for member_id, _, _ in answer.members}, (
                "the leader does not see itself"
            )

    def _synced(self, client: Client, answer: SyncAnswer) -> None:
        made = self.assigned.setdefault(client.generation, {})
        former = made.setdefault(client.instance_id or client.member_id, answer.assignment)
        assert former == answer.assignment, "an assignment of a generation has changed"
        assert answer.assignment.endswith(b"@%d" % client.generation), "an assignment of another generation, or none"
        client.assignment = answer.assignment

"""Clients of level *access*: administrators that grant and revoke, and programs that try what they may
and what they may not, at every broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ledgermq.client.admin.access import Access
from ledgermq.client.client import Client
from ledgermq.errors import LedgerMQError, Unauthorized, UnknownProducer
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.naming.tokens import bearer
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.access.state.quotas import EACH, MICRO, NO_QUOTA, Quota, Subject
from ledgermq_broker.access.state.records import rule_key, token_key
from ledgermq_broker.access.state.rules import Operation, Rule
from tests.broker.cluster import fetch_of, frame_of
from tests.simulation.access_truth import AccessTruth, Caller, LeakedSession, Lever, Right
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import Outcome
from tests.simulation.network import Network
from tests.simulation.throttle_watch import QuotaTruth, drawn_quota
from tests.simulation.world import World

LASTING = "main"
TOPICS = (LASTING, "brief")
ALLOWED, DENIED, TOKENED = "ann", "bob", "cat"
"""Principals: rules that allow come and go for the first, rules that deny for the second, and tokens of
the third.
"""
PRINCIPALS = (ALLOWED, DENIED, TOKENED)
TEAM = "team"
RIGHTS: Sequence[Right] = tuple(
    (operation, topic) for operation in (Operation.PRODUCE, Operation.CONSUME) for topic in TOPICS
)
PROBE_WAITS_MS = (100, 3000)
"""Of single fetches: some wait long enough for a change of rules to come first."""
CHANGE_S = 10.0
THEFTS_S = 10.0
QUOTA_CHANGE_EVERY_S = 4.0


@dataclass(frozen=True, slots=True)
class AccessPlan:
    change_every_s: float
    probe_every_s: float
    isolates: bool
    """Now and then a broker reaches neither the others nor the store, and clients still reach it."""
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""
    named_brokers: bool
    """A restarted broker replaces the heartbeat of the one before it; else each change waits for that, too."""
    proves_slowly: bool
    """A broker is left alone just when the answer to a proof of its rules is on the way, for most of a lease."""
    hoards: bool
    """A thief keeps the producer ids that it has learned, and uses those that are idle, after takeovers too."""


def access_plan_of(seed: int) -> AccessPlan:
    r = random.Random(f"access plan {seed}")
    drawn = AccessPlan(
        change_every_s=r.choice((0.1, 0.5, 2.0)),
        probe_every_s=r.choice((0.05, 0.2, 1.0)),
        isolates=r.random() < 0.6,
        outlives=r.random() < 0.3,
        named_brokers=r.random() < 0.8,
        proves_slowly=seed > 5 and seed % 8 == 5,
        hoards=seed > 5 and seed % 8 == 6,
    )
    if drawn.proves_slowly:  # a right is soon taken away, and tried at once
        return replace(drawn, change_every_s=0.1, probe_every_s=0.05, isolates=True, outlives=False, named_brokers=True)
    return replace(drawn, outlives=True) if drawn.hoards else drawn


def rule_of(principal: str, operation: Operation, name: str, *, deny: bool = False) -> Rule:
    return Rule(deny, principal, frozenset({operation}), name.removesuffix("*"), name.endswith("*"))


@dataclass(frozen=True, slots=True)
class Switch:
    """A rule that is granted and revoked again."""

    rule: Rule
    lever: Lever

    async def turn(self, access: Access, wanted: bool) -> None:
        """Change it until it grants, or denies, as wanted. Raises the call's errors; then its verdict is unknown."""
        self.lever.begin(wanted)
        if wanted == self.lever.allows:
            await grant(access, self.rule)
        else:
            await access.revoke(self.rule.id)
        self.lever.answered()


async def grant(access: Access, rule: Rule) -> None:
    name = f"{rule.name}*" if rule.prefix else rule.name
    await access.grant(rule.principal, [operation.value for operation in rule.operations], name, deny=rule.deny)


def switches_of(truth: AccessTruth) -> dict[tuple[str, Right], Switch]:
    """The rules that come and go, by principal and right."""
    switches = {}
    for principal, deny in ((ALLOWED, False), (DENIED, True)):
        for right in RIGHTS:
            rule = rule_of(f"user:{principal}", *right, deny=deny)
            switches[principal, right] = Switch(rule, truth.lever(rule_key(rule.id), allows=not deny))
    return switches


def lasting_rules() -> list[Rule]:
    """Those that stay: everything that the others take away again, and that all may see the topics."""
    rules = [rule_of("*", Operation.DESCRIBE, topic) for topic in TOPICS]
    for operation in (Operation.PRODUCE, Operation.CONSUME):
        rules += [rule_of(f"group:{TEAM}", operation, topic) for topic in ("m*", "brief")]
        rules += [rule_of(f"user:{TOKENED}", operation, topic) for topic in TOPICS]
    return rules


async def new_token(access: Access, truth: AccessTruth, switches: dict[tuple[str, Right], Switch], name: str) -> None:
    """Make a token for a principal, which its programs use from now on. Raises the call's errors; then no program
    has it.
    """
    made = await access.create_token(name, groups=[TEAM] if name == DENIED else [])
    token = Lever(token_key(made.token_id), allows=True, granted=True, wanted=True)
    rights = {right: [switches[name, right].lever] if (name, right) in switches else [] for right in RIGHTS}
    truth.add(Caller(name, bearer(made.token), made.token_id, token, rights))


class Administrator(SimulatedClient):
    """Changes some of the rules, or tokens, one after the other. A change without an answer is repeated."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        own: AccessPlan,
        truth: AccessTruth,
        switches: dict[tuple[str, Right], Switch],
        name: str,
        principals: Sequence[str],
    ) -> None:
        super().__init__(world, network, patient(plan), name)
        self._own = own
        self._truth = truth
        self._switches = switches
        self._principals = principals

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(1 / self._own.change_every_s))
            principal = self.random.choice(self._principals)
            try:
                await (self._change_token() if principal == TOKENED else self._change_rule(principal))
            except LedgerMQError as error:
                self._world.coverage.saw("a change of rules was not answered")
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")

    async def _change_rule(self, principal: str) -> None:
        switch = self._switches[principal, self.random.choice(RIGHTS)]
        lever = switch.lever
        wanted = lever.wanted if lever.granted is None else not lever.wanted
        self._world.note(self.name, f"{'grants' if wanted else 'revokes'} {switch.rule}")
        await switch.turn(self.client.access, wanted)
        self._world.note(self.name, f"was answered: {switch.rule}")
        self._world.coverage.saw("a right was granted" if wanted else "a right was revoked")

    async def _change_token(self) -> None:
        newest = self._truth.tokens[TOKENED][-1]
        if newest.token.granted is not False:
            self._world.note(self.name, f"revokes token {newest.token_id}")
            newest.token.begin(False)
            await self.client.access.revoke_token(newest.token_id)
            newest.token.answered()
            self._world.note(self.name, f"was answered: token {newest.token_id}")
            self._world.coverage.saw("a token was revoked")
            await asyncio.sleep(self.random.expovariate(1 / self._own.change_every_s))
        await new_token(self.client.access, self._truth, self._switches, TOKENED)
        self._world.coverage.saw("a token was created")


class QuotaAdministrator(SimulatedClient):
    """Sets and drops quotas of principals, and the default. A change without an answer is repeated."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, truth: AccessTruth) -> None:
        super().__init__(world, network, patient(plan), "quotas")
        self._truth = truth.quotas

    async def work(self) -> None:
        subjects = [Subject(EACH), *(Subject(f"user:{name}") for name in PRINCIPALS)]
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(1 / QUOTA_CHANGE_EVERY_S))
            subject = self.random.choice(subjects)
            quota = drawn_quota(self.random, subject) if self.random.random() < 0.7 else NO_QUOTA
            self._world.note(self.name, f"wants {quota} for {subject}")
            try:
                await change_quota(self.client, self._truth, subject, quota)
                self._world.note(self.name, f"was answered: {subject}")
                self._world.coverage.saw("a quota was set" if quota != NO_QUOTA else "a quota was dropped")
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")


async def change_quota(client: Client, truth: QuotaTruth, subject: Subject, quota: Quota) -> None:
    """Set all three rates, and the budget if there is one, or drop the quota. Raises the call's errors; then it is
    unknown.
    """
    truth.begin(subject, quota)
    if quota == NO_QUOTA:
        await client.quotas.unset(subject.principal)
    else:
        await client.quotas.set(
            subject.principal,
            bytes_in=quota.bytes_in,
            bytes_out=quota.bytes_out,
            requests=quota.requests,
            dollars_month=quota.microdollars_month / MICRO if quota.microdollars_month else None,
        )
    truth.answered(subject)


def patient(plan: ClusterPlan) -> ClusterPlan:
    """A change may take a lease."""
    return replace(plan, request_timeout_s=max(plan.request_timeout_s, CHANGE_S))


class Thief(SimulatedClient):
    """Sends batches under producer ids of other principals, with the sequences that are next, as if the ids had
    leaked. None of them may be stored.
    """

    def __init__(self, world: World, network: Network, plan: ClusterPlan, truth: AccessTruth, principal: str) -> None:
        super().__init__(world, network, plan, f"{principal}.thief")
        self._principal = principal
        self._truth = truth

    async def work(self) -> None:
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        lines = [connector.connect(f"b{number}") for number in range(self._plan.brokers)]
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(THEFTS_S))
                found = self.targets()
                for line in self.at(lines) if found else ():
                    group.create_task(self._steal(line, self.random.choice(found)))

    def at(self, lines: list[Connection]) -> list[Connection]:
        """Return the brokers to try next."""
        return [self.random.choice(lines)]

    def targets(self) -> list[LeakedSession]:
        """Return the newest sessions of others."""
        return self.of_others(self._truth.sessions)[-4:]

    def of_others(self, sessions: Iterable[LeakedSession]) -> list[LeakedSession]:
        return [leaked for leaked in sessions if leaked.principal != self._principal]

    async def _steal(self, line: Connection, leaked: LeakedSession) -> None:
        value, history = self.next_value(), self._world.history
        at = leaked.topic, leaked.partition
        op = history.begin_produce(self.name, self.partition(*at), (value,), ordered=False)
        try:
            [result] = (await line.produce_once(frame_of(*at, value.encode(), session=leaked.following))).results
            if result.HasField("error"):
                raise error_from_proto(result.error)
        except LedgerMQError as error:
            self._world.coverage.saw("a thief was refused", isinstance(error, UnknownProducer))
            is_final = isinstance(error, UnknownProducer | Unauthorized)
            history.end_produce(op, Outcome.FAIL if is_final else Outcome.INFO, why=error.message)
        else:
            self._truth.violate("stored under another's id", f"{value} of {self._principal} as {leaked}")
            history.end_produce(op, Outcome.OK, result.base_offset)


class Prober(SimulatedClient):
    """Reads and writes by single calls, at any broker, whether it may or not."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, own: AccessPlan, name: str) -> None:
        super().__init__(world, network, plan, name)
        self._own = own

    async def work(self) -> None:
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        lines = [connector.connect(f"b{number}") for number in range(self._plan.brokers)]
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(1 / self._own.probe_every_s))
                topic, number = self.random.choice(TOPICS), self.random.randrange(PARTITIONS)
                line = self.random.choice(lines)
                work = self._write if self.random.random() < 0.4 else self._read
                group.create_task(work(line, topic, number))

    async def _read(self, line: object, topic: str, number: int) -> None:
        request = fetch_of(topic, number, max_bytes=1000, max_wait_ms=self.random.choice(PROBE_WAITS_MS))
        try:
            await line.fetch_once(request)  # type: ignore[attr-defined]
        except LedgerMQError as error:
            self._world.coverage.saw(f"a single fetch failed: {type(error).__name__}")

    async def _write(self, line: object, topic: str, number: int) -> None:
        value = self.next_value()
        history = self._world.history
        op = history.begin_produce(self.name, self.partition(topic, number), (value,), ordered=False)
        try:
            answer: pb.ProduceResponse = await line.produce_once(frame_of(topic, number, value.encode()))  # type: ignore[attr-defined]
            if answer.results[0].HasField("error"):
                raise error_from_proto(answer.results[0].error)
        except Unauthorized as error:
            history.end_produce(op, Outcome.FAIL, why=error.message)
        except LedgerMQError as error:
            history.end_produce(op, Outcome.INFO, why=error.message)
        else:
            history.end_produce(op, Outcome.OK, answer.results[0].base_offset)

"""Bugs in access rules: in when a change is answered, in what a broker judges by, and in what it does not judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_broker.access.door import Door
from ledgermq_broker.access.freshness import LEASE_S, Everywhere, RulesInForce
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.rule_set import Decision, RuleSet
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.wrappers import authorized, refused_batches
from ledgermq_broker.access.wrappers.refused_batches import Refusals
from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.partitions import producers
from ledgermq_ledger.log.partitions.producers import Producers
from tests.simulation.access_clients import access_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def isolates(seed: int) -> bool:
    return access_plan_of(seed).isolates


def hoards(seed: int) -> bool:
    return access_plan_of(seed).hoards


def proves_slowly(seed: int) -> bool:
    return access_plan_of(seed).proves_slowly


@mutant("access")
def rules_answered_before_brokers_confirm(patch: Patch) -> None:
    """A change is answered when it is durable, whatever other brokers know."""

    async def wait(self: Everywhere, offset: int) -> None:
        return None

    patch.setattr(Everywhere, "wait", wait)


@mutant("access", isolates)
def rules_wait_for_brokers_that_answer(patch: Patch) -> None:
    """A change does not wait for the lease of a broker that does not confirm it."""

    async def confirmed(self: Everywhere, name: str, heartbeat: Heartbeat | None, offset: int, until_s: float) -> None:
        if heartbeat is not None:
            with suppress(LedgerMQError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._broker(heartbeat.address).confirm_rules(pb.ConfirmRulesRequest(offset=offset))

    patch.setattr(Everywhere, "_confirmed", confirmed)


@mutant("access", isolates)
def old_rules_judge_after_the_lease(patch: Patch) -> None:
    """A broker that reaches nobody goes on to judge by the rules that it knows."""
    real = RulesInForce.check_fresh

    def check_fresh(self: RulesInForce) -> None:
        if self._proven_until_s == float("-inf"):
            real(self)

    patch.setattr(RulesInForce, "check_fresh", check_fresh)


@mutant("access", isolates)
def proofs_of_rules_read_nothing(patch: Patch) -> None:
    """A broker renews its lease without a look at the controller or the store."""
    real = RulesInForce.prove

    async def prove(self: RulesInForce) -> None:
        if self._proven_until_s == float("-inf"):
            await real(self)
        else:
            self._proven_until_s = asyncio.get_running_loop().time() + LEASE_S

    patch.setattr(RulesInForce, "prove", prove)


@mutant("access", proves_slowly)
def leases_of_rules_count_from_the_end_of_their_proof(patch: Patch) -> None:
    """A lease begins when a proof is complete, not when it began."""
    real = RulesInForce.prove

    async def prove(self: RulesInForce) -> None:
        before_s = self._proven_until_s
        await real(self)
        if self._proven_until_s > before_s:
            self._proven_until_s = asyncio.get_running_loop().time() + LEASE_S

    patch.setattr(RulesInForce, "prove", prove)


@mutant("access")
def new_brokers_judge_before_they_have_read_the_rules(patch: Patch) -> None:
    """A broker that has just started judges by the rules that it knows, which are none."""

    def check_fresh(self: RulesInForce) -> None:
        if self._proven_until_s != float("-inf"):
            real(self)

    real = RulesInForce.check_fresh
    patch.setattr(RulesInForce, "check_fresh", check_fresh)


@mutant("access")
def open_fetch_streams_not_judged(patch: Patch) -> None:
    """A fetch is judged when its stream begins, and never again."""

    async def fetch(may: Permissions, request: pb.FetchRequest, call: Callable[[Any], Any]) -> AsyncIterator[Any]:
        may.check_credential()
        refused, wanted = await authorized._split_partitions(may, request.partitions)
        if refused:
            yield authorized._refusals(refused)
        if not wanted:
            return
        passed = authorized.with_partitions(request, wanted)
        passed.direct = False
        async with aclosing(call(passed)) as frames:
            async for frame in frames:
                yield frame

    patch.setattr(authorized, "_fetch", fetch)


@mutant("access")
def calls_that_wait_not_judged_again(patch: Patch) -> None:
    """A long poll is judged when it comes only, and answered by the rules of then."""
    patch.setattr(authorized, "waits", lambda may, request: False)


@mutant("access")
def open_produce_streams_not_judged(patch: Patch) -> None:
    """What is sent in a stream is judged by the rules of the first frame."""

    def judged(may: Permissions, requests: Any, judge: Callable[..., Any], call: Callable[..., Any]) -> Any:
        first: dict[str, Any] = {}

        def refusals(frame: Any) -> Any:
            now = judge(may, frame)
            return [
                first.setdefault(batch.topic, refusal) for batch, refusal in zip(frame.header.batches, now, strict=True)
            ]

        may.check_credential()
        return refused_batches.judged(requests, refusals, call)

    patch.setattr(authorized, "_judged", judged)


@mutant("access")
def revoked_tokens_stay_admitted(patch: Patch) -> None:
    """A caller that was admitted once is not asked for its token again."""

    def check_credential(self: Permissions) -> None:
        if not self.principal.is_broker:
            self._in_force.check_fresh()

    patch.setattr(Door, "_is_over", lambda self, principal: False)
    patch.setattr(Permissions, "check_credential", check_credential)


@mutant("access")
def decisions_outlive_rules(patch: Patch) -> None:
    """What was allowed once is kept, whatever the rules say since."""

    def refusal(self: Permissions, operation: Operation, name: str, *, change: bool = False) -> str:
        found = self._kept.get((operation, name))
        if found is None or found:
            found = self._kept[(operation, name)] = self._decided(operation, name, change)
        return found

    patch.setattr(Permissions, "refusal", refusal)


@mutant("access")
def rules_that_deny_ignored(patch: Patch) -> None:
    """Of all rules that are for a call, the first that allows decides."""

    def decide(self: RuleSet, principal: Any, operation: Operation, name: str = "") -> Decision:
        allowing = next(
            (
                rule
                for rule in self._rules_of(principal)
                if not rule.deny and rule.is_for(operation) and rule.matches(name)
            ),
            None,
        )
        return Decision(allowing is not None, "", allowing)

    patch.setattr(RuleSet, "decide", decide)


@mutant("access")
def refused_batches_are_stored(patch: Patch) -> None:
    """What is refused is handed to the broker all the same; only the answer says that it is refused."""

    def whole(frame: Frame[Any], refusals: Refusals) -> Frame[Any]:
        return frame

    patch.setattr(authorized, "allowed_part", whole)
    patch.setattr(refused_batches, "allowed_part", whole)


@mutant("access")
def any_principal_continues_a_session(patch: Patch) -> None:
    """A producer's id is enough to write under it: the principal that used it first is not compared."""
    patch.setattr(producers, "_check_principal", lambda session, owner: None)


@mutant("access", hoards)
def principals_of_sessions_forgotten_by_checkpoints(patch: Patch) -> None:
    """A checkpoint keeps the producers of a bundle without their principals."""
    real = Producers.load

    def load(self: Producers, states: Iterable[fmt.ProducerState], forgotten_to: int) -> None:
        found = list(states)
        for state in found:
            state.ClearField("principal")
        real(self, found, forgotten_to)

    patch.setattr(Producers, "load", load)

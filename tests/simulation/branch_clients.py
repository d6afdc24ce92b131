"""Clients with branches of two phases in a simulated cluster: they prepare, share an xid, resolve what others left."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ledgermq.client.client import Client
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase
from ledgermq.client.transactions.two_phase.xid import transactional_id_of
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    TransactionAborted,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
)
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.transactions_clients import TransactionalClient
from tests.simulation.transactions_truth import Sent

PREPARED_MAX = 5
"""Branches that wait for their end, of all managers."""
REST_S = 4.0
"""So long some of them are left alone: their bundles ask about them meanwhile."""


class Manager(TransactionalClient):
    """Prepares branches of two-phase transactions, and leaves them to the resolver."""

    _xids = 0

    async def _session(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._plan.records_s))
            if len(self._shared.prepared) < PREPARED_MAX:
                async with self.client.transactions.two_phase(timeout=self._own.timeout_ms / 1000) as branch:
                    await self._prepare(branch)

    async def _prepare(self, branch: TwoPhase) -> None:
        self._xids += 1
        xid = branch.xid(1, f"{self.name}.{self._incarnation}", str(self._xids))
        sent = Sent(self.name, transactional_id_of(xid))
        self._shared.sent.append(sent)
        self._shared.prepared[sent.transactional_id] = sent
        await branch.tpc_begin(xid)
        try:
            for _ in range(self.random.choice((1, 3))):
                number = self.random.randrange(PARTITIONS)
                value = f"{self.name}/{self._incarnation}/{self.next_value()}"
                self._send(branch, sent, self.random.choice(self.outputs), number, value)
            await branch.tpc_prepare(self._own.deadline_s)
            sent.rests_until_s = asyncio.get_running_loop().time() + self.random.choice((0.0, 0.0, REST_S))
            sent.prepared = True
            self._world.coverage.saw("a branch was prepared")
        except TransactionOutcomeUnknown:
            sent.rollback_asked = True
            with suppress(LedgerMQError):
                await branch.tpc_rollback()
            raise


class Twins(TransactionalClient):
    """Two programs that use one xid at the same time. At most one of them may be told that its transaction is
    prepared or committed, and then the records of that one are visible.
    """

    _xids = 0

    async def _session(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))
            if len(self._shared.prepared) < PREPARED_MAX:
                self._xids += 1
                async with self._new_client() as second:
                    ends = [self._program(client, place) for place, client in enumerate((self.client, second))]
                    for ended in await asyncio.gather(*ends, return_exceptions=True):
                        if isinstance(ended, LedgerMQError):
                            self._world.judge_error(ended)
                        elif ended is not None:
                            raise ended

    async def _program(self, client: Client, place: int) -> None:
        async with client.transactions.two_phase(timeout=self._own.timeout_ms / 1000) as branch:
            xid = branch.xid(2, f"{self.name}.{self._incarnation}", str(self._xids))
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05)))
            try:
                await branch.tpc_begin(xid)
            except InvalidRequest:
                self._world.coverage.saw("a twin was refused")
                return
            sent = Sent(f"{self.name}.{place}", transactional_id_of(xid))
            self._shared.sent.append(sent)
            value = f"{self.name}/{self._incarnation}/{self._xids}/{place}"
            self._send(branch, sent, self.outputs[place], self.random.randrange(PARTITIONS), value)
            if self.random.random() < 0.5:
                await self._commit(branch, sent)
            else:
                await self._prepare(branch, sent)

    async def _commit(self, branch: TwoPhase, sent: Sent) -> None:
        try:
            await branch.tpc_commit(timeout_s=self._own.deadline_s)
        except (TransactionAborted, TransactionFenced):
            self._told(sent, committed=False)
        else:
            self._told(sent, committed=True)
            self._world.coverage.saw("a twin was committed")

    async def _prepare(self, branch: TwoPhase, sent: Sent) -> None:
        self._shared.prepared[sent.transactional_id] = sent
        try:
            await branch.tpc_prepare(self._own.deadline_s)
        except TransactionOutcomeUnknown:
            sent.rollback_asked = True
            raise
        sent.prepared = True
        self._world.coverage.saw("a twin was prepared")


class Resolver(TransactionalClient):
    """Ends branches that others have prepared, by their names; one that was not prepared is rolled back.

    Each time it is a program that has just started, and may first meet a former coordinator.
    """

    async def _session(self) -> None:
        async with self._new_client() as client, client.transactions.two_phase() as branch:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(self._plan.records_s))
                now_s = asyncio.get_running_loop().time()
                if due := sorted(name for name, sent in self._shared.prepared.items() if sent.rests_until_s <= now_s):
                    await self._resolve(branch, self.random.choice(due))
                    return
                if self._world.healed:
                    for xid in await branch.tpc_recover():
                        await self._recover(branch, transactional_id_of(xid))

    async def _resolve(self, branch: TwoPhase, name: str) -> None:
        sent = self._shared.prepared[name]
        was_promised = sent.promised
        try:
            if self.random.random() < 0.7:
                await branch.tpc_commit(name, timeout_s=self._own.deadline_s)
                self._told(sent, committed=True)
                self._world.coverage.saw("a prepared branch was committed")
            else:
                await self._roll_back(branch, name, sent)
                self._world.coverage.saw("a prepared branch was rolled back")
        except TransactionAborted:
            self._told(sent, committed=False)
        except TransactionOutcomeUnknown:
            return
        except (InvalidRequest, TransactionUnknown) as error:
            if was_promised and sent.promised:
                self._world.violations.append(Violation("broken promise", f"{name} is prepared; answered: {error!r}"))
            elif not await self._is_given_up(branch, name, sent, error):
                return
        self._shared.prepared.pop(name, None)

    async def _recover(self, branch: TwoPhase, name: str) -> None:
        """Roll back what was prepared after it was taken for unknown."""
        if name not in self._shared.prepared:
            sent = next(sent for sent in self._shared.sent if sent.transactional_id == name)
            await self._roll_back(branch, name, sent)

    async def _is_given_up(self, branch: TwoPhase, name: str, sent: Sent, refusal: LedgerMQError) -> bool:
        """Decide what to do with a branch that is not prepared, or not known, at least not yet."""
        if isinstance(refusal, TransactionUnknown):
            return self._world.healed  # until then it may still be begun
        if not self._world.healed and self.random.random() < 0.5:
            return False
        await self._roll_back(branch, name, sent)
        return True

    async def _roll_back(self, branch: TwoPhase, name: str, sent: Sent) -> None:
        sent.rollback_asked = True
        await branch.tpc_rollback(name, timeout_s=self._own.deadline_s)
        self._told(sent, committed=False)

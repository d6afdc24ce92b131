"""Money in PostgreSQL and events in LedgerMQ, both or neither: kill -9 of the program, of the broker
and of the database before and during every step of a transfer, and recovery by another process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from infra.ports import free_port
from infra.postgres import Postgres
from ledgermq.errors import RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.sync import Client, connect
from tests.e2e.processes import BrokerProcess, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.real.transfer_program import AMOUNT, LAST_UNDONE, STEPS, TOPIC, recover_names, recover_xids
from tests.waiting import wait_until

pytestmark = pytest.mark.real

BALANCE = 10_000
PROGRAM_S_MAX = 120.0
DURING_S = 0.003
DURABLE = ("prepare PostgreSQL", "prepare LedgerMQ", "commit LedgerMQ", "commit PostgreSQL")
"""Steps that leave something behind; others are only killed before."""


@dataclass
class World:
    postgres: Postgres
    brokers: BrokerProcesses
    broker: BrokerProcess
    port: int
    way: str
    client: Client
    """Of this process, which recovers what the programs leave."""

    @contextmanager
    def program(self, transfer: str) -> Iterator[subprocess.Popen[str]]:
        """A program that makes a transfer; it is killed at the end. pytest shows what it printed."""
        command = [sys.executable, "-m", "tests.real.transfer_program", self.way, self.broker.address]
        program = subprocess.Popen(
            [*command, self.postgres.address, transfer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            yield program
        finally:
            program.kill()
            with suppress(BrokenPipeError):
                program.communicate()

    def kill(self, victim: str, program: subprocess.Popen[str]) -> None:
        """As a crash; servers come up again at once, where they were."""
        if victim == "program":
            program.kill()
        elif victim == "postgres":
            self.postgres.kill()
            self.postgres.start()
        else:
            self.brokers.kill(self.broker)
            self.broker = self.brokers.start(port=self.port)

    def transfer(self, name: str, victim: str, moment: str, fatal_step: str) -> int:
        """Make a transfer, and kill the victim at a step of it; return the program's exit code."""
        with self.program(name) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            for step in STEPS[self.way]:
                shown = program.stdout.readline().strip()
                if shown != step:  # it has failed in the step before
                    assert shown == ""
                    break
                if step == fatal_step and moment == "before":
                    self.kill(victim, program)
                with suppress(BrokenPipeError):
                    print(file=program.stdin, flush=True)
                if step == fatal_step and moment == "during":
                    time.sleep(DURING_S)
                    self.kill(victim, program)
                if step == fatal_step and victim == "program":
                    break
            return program.wait(PROGRAM_S_MAX)

    def recover(self) -> None:
        with closing(psycopg.connect(self.postgres.address)) as database:
            (recover_names if self.way == "ordinary" else recover_xids)(self.client, database)

    def debited(self) -> list[str]:
        with closing(psycopg.connect(self.postgres.address)) as database:
            return sorted(name for (name,) in database.execute("select id from transfers"))

    def events(self) -> list[str]:
        with self.client.consumer(TOPIC, start="earliest", until_end=True) as consumer:
            return sorted((message.key or b"").decode() for message in consumer)

    def check(self) -> None:
        """Check that both sides have the same transfers, and that nothing is left prepared."""
        debited = self.debited()
        wait_until(lambda: self.events() == debited, what=f"events of {debited}")
        with closing(psycopg.connect(self.postgres.address)) as database:
            assert database.tpc_recover() == []
            [balance] = database.execute("select balance from accounts where name = 'ada'").fetchone() or [None]
        assert balance == BALANCE - AMOUNT * len(debited)
        with self.client.transactions.two_phase() as branch:
            assert branch.tpc_recover() == []


@contextmanager
def world_of(way: str, postgres: Postgres, folder: Path) -> Iterator[World]:
    with closing(psycopg.connect(postgres.address, autocommit=True)) as database:
        database.execute("create table accounts (name text primary key, balance int not null)")
        database.execute("insert into accounts values ('ada', %s)", [BALANCE])
        database.execute("create table transfers (id text primary key)")
    port = free_port()
    with BrokerProcesses(folder, (folder / "root").as_uri()) as brokers:
        broker = brokers.start(port=port)
        with connect(broker.address, timeout_s=60) as client:
            client.create_topic(TOPIC, 2)
            yield World(postgres, brokers, broker, port, way, client)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["program", "broker", "postgres"])
@pytest.mark.parametrize("way", list(STEPS))
def test_both_or_neither_whoever_is_killed_at_whatever_step(
    way: str, victim: str, postgres: Postgres, tmp_path: Path
) -> None:
    steps = STEPS[way]
    with world_of(way, postgres, tmp_path) as world:
        for number, step in enumerate(steps):
            for moment in ("before", "during") if step in DURABLE else ("before",):
                name = f"{number}-{moment}"
                code = world.transfer(name, victim, moment, step)
                world.recover()
                is_done = name in world.debited()
                if victim == "program" and moment == "before":
                    assert is_done == (number > steps.index(LAST_UNDONE[way])), name
                if code == 0:
                    assert is_done, f"{name}: a transfer that was reported is lost"
                world.check()
        assert world.debited(), "nothing was ever committed"
        wait_until(lambda: asyncio.run(listed(world.broker.address)) == ([], []), what="nothing is left staged")
        world.check()


async def listed(address: str) -> tuple[list[pb.TransactionInfo], list[pb.StagedInfo]]:
    """Everything that is open in LedgerMQ: transactions, and what bundles hold staged."""

    async def answer(partition: int) -> pb.ListTransactionsResponse:
        request = pb.ListTransactionsRequest(partition=partition, open_only=True)
        async with asyncio.timeout(PROGRAM_S_MAX):
            while True:
                with suppress(RetriableError):
                    return await client.line(address).list_transactions(request)
                await asyncio.sleep(0.05)

    async with RawClient(address) as client:
        answers = [await answer(0)]
        answers += [await answer(partition) for partition in range(1, answers[0].partitions)]
    infos = [info for answer in answers for info in answer.transactions]
    return infos, [staged for answer in answers for staged in answer.staged]

"""`ledgermq conformance` passes our SDK and the minimal client, and finds out a client with a planted fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq_tools.conformance.checks import CHECKS, Result, check_client, chosen
from ledgermq_tools.conformance.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
planted = pytest.mark.languages
"""They take minutes: a program is started many times for each fault."""

HERE = Path(__file__).parent
MINIMAL = HERE.parents[1] / "examples" / "protocol" / "minimal_client.py"
TASK_S_MAX = 120.0
GIVES_UP_S = 8.0
"""Time for a task of a client that would go on for ever."""

FAULTS = {
    "GivesUp": ("lost request", "produce ended with status 1"),
    "NewSession": ("lost answer", "stored more than once"),
    "NewSequence": ("lost answer", "stored more than once"),
    "NewBytes": ("lost answer", "repeated sequence 0 with other bytes"),
    "IgnoresOwners": ("another owner", "went on asking"),
    "HasNoSession": ("twice", "without a session"),
    "SkipsSlots": ("late answer", "without asking OpenProducer"),
    "IsImpatient": ("refused for a while", "before the 400 ms that the answer asked for"),
    "TakesDoubtForRefusal": ("lost status", "not stored"),
    "RepeatsAll": ("no broker", "times that was answered with UNIMPLEMENTED"),
    "TakesAllForDone": ("no broker", "ended with status 0, though"),
    "FollowsForEver": ("circle", "pause after three in a row"),
    "TrustsBytes": ("damaged batch", "printed a record that was damaged"),
    "TakesWholeBatches": ("fetch", "printed, though nobody asked for it"),
    "KeepsExpired": ("expired record", "printed, though nobody asked for it"),
}
"""By fault: the check that finds it, and what that says."""

FAULTS_OF_MEMBERS = {
    "StaysOn": ("member", "did not leave the group"),
    "ForgetsEpochs": ("two members", "seen_epoch is the group_epoch of the last answer"),
    "CommitsFirst": ("two members", "the counter of commits has to grow"),
    "CommitsNothing": ("member", "are not committed"),
    "BeginsAnew": ("committed", "printed, though nobody asked for it"),
    "KeepsAll": ("two members", "did not let partitions go"),
}

FAULTS_OF_QUEUES = {
    "SaysNothing": ("queue", "ended without a word about"),
    "TakesWholeBatches": ("leased batch", "printed, though nobody asked for it"),
    "FinishesWholeBatches": ("leased batch", "answered for a message that is not leased to it"),
    "ForgetsLeases": ("queue", "which no answer of ShareFetch has named"),
    "ChangesItsMind": ("queue", "after ACCEPT under the same lease"),
    "HasNoId": ("queue", "a member draws an id for itself"),
    "AnswersOnce": ("lost lease calls", "messages are not finished"),
}

FAULTS_OF_TRANSACTIONS = {
    "CommitsAnyway": ("abort", "visible, though nobody asked for it"),
    "CountsNothing": ("commit", "commits 0 batches of partition"),
    "BeginsAtOne": ("commit", "sequences count batches from 0"),
    "NewBytes": ("commit", "repeated sequence 0 with other bytes"),
    "GuessesItsEpoch": ("commit", "which InitTransactions has not answered to it"),
    "StartsAfresh": ("fenced", "began again after TRANSACTION_FENCED"),
    "DecidesOnce": ("lost transaction calls", "transaction ended with status 1"),
}
"""By fault: the check that finds it, and what that says."""


async def results_of(command: list[str], names: list[str], timeout_s: float = TASK_S_MAX) -> list[Result]:
    return await check_client(Program(command, timeout_s), chosen((), names), print)


async def test_our_sdk_passes_every_check() -> None:
    results = await results_of([sys.executable, str(HERE / "sdk_program.py")], [])
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(CHECKS)


async def test_the_minimal_client_passes_every_check_of_its_levels() -> None:
    command = [sys.executable, "-m", "examples.protocol.minimal_member"]
    results = await check_client(Program(command, TASK_S_MAX), chosen((1, 2, 3), ()), print)
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(("program", "level"), [("plain_queue", 4), ("plain_transaction", 5)])
async def test_a_plain_program_passes_every_check_of_its_level(program: str, level: int) -> None:
    command = [sys.executable, "-m", f"tests.conformance.{program}"]
    results = await check_client(Program(command, TASK_S_MAX), chosen([level], ()), print)
    assert [result for result in results if not result.passed] == []


@planted
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_found(fault: str) -> None:
    check, says = FAULTS[fault]
    timeout_s = GIVES_UP_S if fault in ("IgnoresOwners", "RepeatsAll") else TASK_S_MAX
    found = await results_of([sys.executable, "-m", "tests.conformance.faulty_client", fault], [check], timeout_s)
    assert [result.passed for result in found] == [False]
    assert any(says in finding for finding in found[0].findings), found


@planted
@pytest.mark.parametrize("fault", FAULTS_OF_MEMBERS)
async def test_a_planted_fault_of_a_member_is_found(fault: str) -> None:
    check, says = FAULTS_OF_MEMBERS[fault]
    found = await results_of([sys.executable, "-m", "tests.conformance.faulty_member", fault], [check])
    assert [result.passed for result in found] == [False]
    assert any(says in finding for finding in found[0].findings), found


@planted
@pytest.mark.parametrize("fault", FAULTS_OF_QUEUES)
async def test_a_planted_fault_of_a_queue_is_found(fault: str) -> None:
    check, says = FAULTS_OF_QUEUES[fault]
    timeout_s = GIVES_UP_S if fault == "ForgetsLeases" else TASK_S_MAX
    found = await results_of([sys.executable, "-m", "tests.conformance.faulty_queue", fault], [check], timeout_s)
    assert [result.passed for result in found] == [False]
    assert any(says in finding for finding in found[0].findings), found


@planted
@pytest.mark.parametrize("fault", FAULTS_OF_TRANSACTIONS)
async def test_a_planted_fault_of_a_transaction_is_found(fault: str) -> None:
    check, says = FAULTS_OF_TRANSACTIONS[fault]
    found = await results_of([sys.executable, "-m", "tests.conformance.faulty_transaction", fault], [check])
    assert [result.passed for result in found] == [False]
    assert any(says in finding for finding in found[0].findings), found


def conformance(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ledgermq.cli.main", "conformance", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_command_reports_each_check() -> None:
    done = conformance("--check", "produce", "--check", "fetch", "-o", "json", "--", sys.executable, str(MINIMAL))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["passed"], said["failed"]) == (2, 0)
    assert [row["check"] for row in said["checks"]] == ["produce", "fetch"]


def test_the_command_fails_with_its_client() -> None:
    done = conformance("--check", "produce", "--", sys.executable, "-c", "raise SystemExit('no such task')")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "produce ended with status 1: no such task" in " ".join(done.stdout.split())
    assert done.stderr == "level 1, produce: FAILED\n"  # and nothing that brokers log


def test_the_command_names_what_is_not_there() -> None:
    assert "there is no check 'prodduce': produce, fetch" in conformance("--check", "prodduce", "--", "true").stderr
    assert "the program 'no-such-program' cannot be started" in conformance("--", "no-such-program").stderr

"""What runs with programs of librdkafka add: producers of other processes in the history of a run, and programs that
begin again when a call stands still.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.children import PROJECT
from tests.chaos.groups import CASTS
from tests.chaos.librdkafka.program import RESTARTS
from tests.chaos.librdkafka.sends import TimedHistory, add_diaries, told_of
from tests.simulation.checker import check
from tests.simulation.history import FinalLog, Outcome, Partition, Poll, Produce, Produced

AT: Partition = ("main", 0)
PATIENCE_S = 60.0


def diary(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "member-10.diary"
    path.write_text("\n" + "".join(f"{line}\n" for line in lines) + "99 sending c main 0 half")
    return path


SENDS = ("10 sending c main 0 a", "11 sending c main 0 b", "20 stored a 0", "30 stored b 1")


def kinds(history: TimedHistory, stored: dict[int, str]) -> set[str]:
    return {violation.kind for violation in check(history, {AT: FinalLog(stored)})}


def test_sends_of_other_processes_stand_in_the_order_of_time(tmp_path: Path) -> None:
    history, sent_ms = TimedHistory(), dict[str, int]()
    history.add(Poll("reader", AT, ((0, "a"),)))
    history.moments[-1] = 15
    add_diaries(history, sent_ms, [diary(tmp_path, *SENDS)])
    assert [type(event) for event in history] == [Produce, Produce, Poll, Produced, Produced]
    assert history.moments == [10, 11, 15, 20, 30]
    assert sent_ms.keys() == {"a", "b"}
    assert kinds(history, {0: "a", 1: "b"}) == set()
    assert told_of([tmp_path / "member-10.diary"]) == "2 sending, 2 stored, 0 failed"


def test_what_is_lost_doubled_or_in_another_order_is_found(tmp_path: Path) -> None:
    def found(stored: dict[int, str], *lines: str) -> set[str]:
        history = TimedHistory()
        add_diaries(history, {}, [diary(tmp_path, *(lines or SENDS))])
        return kinds(history, stored)

    assert found({0: "a"}) == {"lost write"}
    assert found({0: "a", 1: "b", 2: "a"}) == {"duplicate"}
    assert found({0: "b", 1: "a"}, *SENDS[:2]) == {"reordered"}
    assert found({0: "b", 1: "a"}, *SENDS[:2], "30 failed a _MSG_TIMED_OUT") == set(), "what failed may come late"
    assert found({0: "a", 1: "b", 2: "a"}, *SENDS[:2], "30 failed a _MSG_TIMED_OUT") == {"duplicate"}
    assert found({0: "a", 1: "b", 2: "other"}) == {"phantom"}


def test_a_record_that_was_read_before_it_was_sent_is_found(tmp_path: Path) -> None:
    history = TimedHistory()
    history.add(Poll("reader", AT, ((0, "a"),)))
    history.moments[-1] = 5
    add_diaries(history, {}, [diary(tmp_path, *SENDS)])
    assert "phantom" in kinds(history, {0: "a", 1: "b"})
    assert [event.outcome for event in history if isinstance(event, Produced)] == [Outcome.OK, Outcome.OK]


def test_each_place_of_a_cast_has_a_role_that_can_run() -> None:
    for cast in CASTS.values():
        assert set(cast.groups) <= set(cast.members)


STANDS_STILL = """
import ctypes, sys
from tests.chaos.librdkafka import program

class Still(program.Program):
    def session(self):
        ctypes.CDLL(None).sleep(300)  # as a call of librdkafka: no signal handler of Python runs meanwhile

program.STILL_TICKS_MAX = 1
Still("127.0.0.1:1", "workers", "member-0", "0", sys.argv[1]).run()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sleep of the C library goes on after a signal elsewhere")
def test_a_program_that_stands_still_begins_again_and_ends_at_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "member-0.diary"
    child = subprocess.Popen([sys.executable, "-c", STANDS_STILL, str(path)], cwd=PROJECT)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not path.exists() or path.read_text().count(RESTARTS) < 2:
            assert child.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()

"""SIGTERM calls the blocks that run, once, and only where it had its default action."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ledgermq.runtime.process.stop_signals import StopSignals


@pytest.fixture(autouse=True)
def default_action() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_all_blocks_are_called_and_the_default_action_is_back_for_the_second_signal() -> None:
    signals, called = StopSignals(), []
    with signals.stopping(lambda: called.append(1)), signals.stopping(lambda: called.append(2)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == [1, 2]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with signals.stopping(lambda: called.append(3)):  # a block that begins after the signal takes no other one
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_default_action_is_back_after_the_last_block_whatever_their_order() -> None:
    signals = StopSignals()
    first, second = signals.stopping(int), signals.stopping(str)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_program_stays_whether_it_was_there_before_or_came_later() -> None:
    signals, called = StopSignals(), []

    def own(number: int, frame: object) -> None:
        called.append("own")

    signal.signal(signal.SIGTERM, own)
    with signals.stopping(lambda: called.append("block")):
        os.kill(os.getpid(), signal.SIGTERM)
    assert called == ["own"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with signals.stopping(lambda: called.append("block")):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with signals.stopping(lambda: called.append("block")):
        signal.signal(signal.SIGTERM, own)
    assert signal.getsignal(signal.SIGTERM) is own


def test_other_threads_do_not_touch_it() -> None:
    signals, found = StopSignals(), []

    def block() -> None:
        with signals.stopping(int):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_the_second_signal_ends_the_process() -> None:
    source = """
import os, signal
from ledgermq.runtime.process.stop_signals import stop_signals
with stop_signals.stopping(lambda: print("stopping", flush=True)):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "stopping\n")

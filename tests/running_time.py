"""Time out a test by the time in which this machine runs, and name those that belong to `make test-slow`.

A virtual machine can be stopped for minutes, with all its clocks going on. A test that takes
milliseconds would then have timed out. So a timer counts short ticks: however long the machine
stands still, that is one tick.
"""

from __future__ import annotations

import signal
from types import FrameType

import pytest
import pytest_timeout

TICKS = 30
SLOW_S = 10.0
"""Twice what the marker `slow` says, because tests run side by side."""


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    if settings.method != "signal":
        return None  # the plugin's own timer
    left = TICKS

    def tick(_number: int, _frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout / TICKS, settings.timeout / TICKS)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that take long and are not marked `slow`, so that `make test` stays short."""
    unmarked = [
        report
        for report in terminalreporter.getreports("passed")
        if report.when == "call" and report.duration > SLOW_S and not {"slow", "real"} & report.keywords.keys()
    ]
    if unmarked:
        terminalreporter.section(f"took more than {SLOW_S:g} s without the marker slow")
        for report in sorted(unmarked, key=lambda report: -report.duration):
            terminalreporter.write_line(f"{report.duration:.1f} s  {report.nodeid}")

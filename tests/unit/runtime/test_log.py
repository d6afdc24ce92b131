"""Lines that are logged have no consequences for those who log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from ledgermq.runtime.process.log import ask_levels, get_log


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no room for the line")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("ledgermq.test_log")
    raising = Raising()
    logger.addHandler(raising)
    yield logger
    logger.removeHandler(raising)


def test_what_a_handler_raises_is_printed(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log = get_log(logger.name)
    log.warning("to %s", "nowhere")
    assert "no room for the line" in capsys.readouterr().err
    try:
        raise ValueError("the program's")
    except ValueError:
        log.exception("it failed")
    assert "no room for the line" in capsys.readouterr().err


def test_a_line_names_the_place_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    get_log("ledgermq.test_log").warning("here", extra={"bundle": 3})
    [record] = caplog.records
    assert (record.funcName, record.filename) == ("test_a_line_names_the_place_that_logged_it", "test_log.py")
    assert record.__dict__["bundle"] == 3


def test_levels_that_were_asked_for_need_no_lock() -> None:
    log = get_log("ledgermq.test_log.deep")
    logging.getLogger("ledgermq.test_log").setLevel(logging.INFO)  # forgets what loggers remember
    ask_levels(["ledgermq"])
    answered = threading.Event()
    with logging._lock:  # type: ignore[attr-defined]  # as logging.config holds it
        thread = threading.Thread(target=lambda: (log.isEnabledFor(logging.DEBUG), answered.set()))
        thread.start()
        assert answered.wait(30)
    thread.join()

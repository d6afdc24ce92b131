"""Log lines for people and for programs, with the ids that follow one message."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
from collections.abc import Iterator

import pytest

import ledgermq
from ledgermq_broker import logs


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logs._process.clear()


class Out:
    """What was logged to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def getvalue(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str], restored: None) -> Out:
    return Out(capsys)


async def test_a_json_line_carries_the_ids_of_process_and_call(out: Out) -> None:
    logs.configure_logs("json", "info")
    logs.follow_process(broker="b-1")
    log = logs.get_logger("ledgermq-test")

    async def call(number: int) -> None:
        logs.follow_call(connection="ipv4:1.2.3.4:5", request=number, method="Produce")
        await asyncio.sleep(0)
        log.info("batch answered", bundle=3, request_wait_ms=1)
        logging.getLogger("ledgermq_ledger.log.writing.writer").warning("a line of %s", "the standard library")

    await asyncio.gather(*(call(number) for number in (1, 2)))
    log.info("outside of any call")
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("request") for line in found] == [1, 1, 2, 2, None]
    assert {line["broker"] for line in found} == {"b-1"}
    assert found[0]["connection"] == "ipv4:1.2.3.4:5"
    assert (found[0]["bundle"], found[0]["level"], found[0]["event"]) == (3, "info", "batch answered")
    assert found[1]["event"] == "a line of the standard library"
    assert all(line["timestamp"].endswith("Z") for line in found)


async def test_what_outlives_a_call_loses_its_ids(out: Out) -> None:
    logs.configure_logs("json", "info")
    log, ended = logs.get_logger("ledgermq-test"), asyncio.Event()

    async def background() -> None:
        log.info("started by a call")
        await ended.wait()
        log.info("still at work")

    async def call() -> asyncio.Task[None]:
        ids = logs.follow_call(request=1)
        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        ids.clear()
        return task

    task = await asyncio.create_task(call())
    ended.set()
    await task
    assert [json.loads(line).get("request") for line in out.getvalue().splitlines()] == [1, None]


def test_what_an_event_says_itself_goes_before_the_ids(out: Out) -> None:
    logs.configure_logs("json", "info")
    logs.follow_process(broker="me")
    logs.get_logger("ledgermq-test").info("line lost", broker="other")
    assert json.loads(out.getvalue())["broker"] == "other"


def test_a_level_may_change_while_loggers_are_in_use(out: Out) -> None:
    log = logs.get_logger("ledgermq-test")
    for level, shown in (("warning", False), ("info", True), ("error", False)):
        logs.configure_logs("console", level)  # type: ignore[arg-type]
        log.info("tried", at=level)
        assert (f"at={level}" in out.getvalue()) == shown
    assert not logs.logs_debug("ledgermq-test")


def test_libraries_do_not_print_signatures_at_debug(out: Out) -> None:
    logs.configure_logs("json", "debug")
    logging.getLogger("botocore.auth").debug("Authorization: signature")
    logging.getLogger("urllib3.connectionpool").debug("GET /?X-Amz-Signature=1")
    assert out.getvalue() == ""


class ExecuteBatchError(Exception):
    """Named as the error of gRPC."""


@pytest.mark.parametrize(("level", "lines"), [("info", 2), ("warning", 1)])
def test_an_answer_whose_line_is_gone_is_no_error(out: Out, level: logs.LogLevel, lines: int) -> None:
    logs.configure_logs("json", level)
    grpc_calls = logging.getLogger("grpc._cython.cygrpc")
    for error in (ExecuteBatchError("gone"), ValueError("a bug")):
        try:
            raise error
        except Exception:
            grpc_calls.exception("%s raised in core", type(error).__name__)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(found) == lines
    assert (found[-1]["level"], "ValueError: a bug" in found[-1]["exception"]) == ("error", True)
    assert all(line["level"] == "info" and "exception" not in line for line in found[:-1])


async def test_a_program_that_embeds_a_broker_sees_the_values_of_its_lines(
    capsys: pytest.CaptureFixture[str], restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.basicConfig(level=logging.INFO)
    async with ledgermq.connect("memory://values-of-lines") as client:
        await client.create_topic("t", partitions=1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "bundle opened" in line]
    assert lines
    assert all(re.search(r"INFO:ledgermq_broker\S*:bundle opened .*\bbundle=\d+", line) for line in lines), lines


def test_values_in_the_text_of_a_line_stay_on_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logs.get_logger("ledgermq-test")
    log.warning("100 % lost", path="a b", name_of="x\ny", empty="", count=3, none=None, exc_info=False)
    [record] = caplog.records
    assert record.getMessage() == "100 % lost path='a b' name_of='x\\ny' empty='' count=3 none=None"
    assert (record.msg, record.__dict__["count"]) == ("100 % lost", 3)
    copied = pickle.loads(pickle.dumps(record.msg))
    assert (copied, str(copied)) == (record.msg, record.getMessage())


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_formatters_that_add_the_values_do_not_repeat_them(out: Out, log_format: logs.LogFormat) -> None:
    logs.configure_logs(log_format, "info")
    logs.get_logger("ledgermq-test").info("bundle opened", bundle=3)
    text = out.getvalue()
    assert text.count("bundle") == 2, text
    if log_format == "json":
        assert {k: v for k, v in json.loads(text).items() if k != "timestamp"} == {
            "event": "bundle opened",
            "level": "info",
            "bundle": 3,
        }

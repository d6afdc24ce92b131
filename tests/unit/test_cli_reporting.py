"""Every error becomes one line on stderr, with a code, a hint where there is one, an exit code, and
no traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from ledgermq import errors
from ledgermq.cli.arguments.options import Debug, OutputFormat
from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode, exit_code
from ledgermq.cli.output.report import Finding, Report, Rows, show
from ledgermq.cli.output.reporting import command


def run(raised: Callable[[], BaseException], *arguments: str) -> Result:
    app = typer.Typer()

    @command(app, "fail")
    async def fail(debug: Debug = False) -> None:
        raise raised()

    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            errors.UnknownTopic("there is no topic 'x'"),
            4,
            "error [UNKNOWN_TOPIC] there is no topic 'x' (hint: `ledgermq topic list`",
        ),
        (errors.InvalidTopicName("topic name '[bold]'"), 2, "error [INVALID_TOPIC_NAME] topic name '[bold]'"),
        (errors.TopicExists("it exists"), 5, "error [TOPIC_EXISTS] it exists"),
        (
            errors.Unavailable("localhost:9650 refuses\nthe connection"),
            3,
            "error [UNAVAILABLE] localhost:9650 refuses the connection",
        ),
        (errors.DataDamaged("bad", object_key="ledgers/1"), 6, "error [DATA_DAMAGED] bad"),
        (errors.Unauthorized("no"), 7, "error [UNAUTHORIZED] no (hint: `ledgermq acl test"),
        (errors.Unauthorized("no", object_key="x"), 7, "error [UNAUTHORIZED] no (hint: check the credentials of the s"),
        (errors.Unauthenticated("who"), 7, "error [UNAUTHENTICATED] who (hint: `ledgermq token create`"),
        (errors.OutcomeUnknown("perhaps"), 8, "error [OUTCOME_UNKNOWN] perhaps"),
        (TimeoutError(), 3, "error [DEADLINE_EXCEEDED] TimeoutError"),
        (FileNotFoundError(2, "No such file", "x"), 1, "error [SYSTEM] [Errno 2] No such file: 'x'"),
        (ValueError("oops"), 1, "error [INTERNAL] ValueError: oops (hint: this is a bug; --debug shows the traceback)"),
        (ExceptionGroup("tasks", [ValueError("x"), errors.UnknownTopic("inner")]), 4, "error [UNKNOWN_TOPIC] inner"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line(error: BaseException, code: int, line: str) -> None:
    result = run(lambda: error)
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == bool(line)
    assert result.stdout == ""


def test_debug_shows_where() -> None:
    result = run(lambda: errors.UnknownTopic("x"), "--debug")
    assert result.exit_code == 4
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error [UNKNOWN_TOPIC]")


def test_every_error_of_the_tree_has_an_exit_code() -> None:
    for kind in errors.BY_CODE.values():
        code = exit_code(kind("x"))
        general = kind in (
            errors.LedgerMQError,
            errors.ProducerError,
            errors.UnknownProducer,
            errors.OutOfOrderSequence,
            errors.SequencePassed,
        )
        assert (code is ExitCode.ERROR) == general


def test_the_epilog_names_every_exit_code() -> None:
    for code in ExitCode:
        assert f"{code.value} " in EPILOG


def test_a_broken_pipe_is_no_error() -> None:
    assert run(BrokenPipeError).exit_code == 0


REPORT = Report(
    "cluster [x]",
    {"root": "file:///r", "topics": 2, "controller": "", "settings": {"a": "1"}},
    [Rows("brokers", ("broker", "alive"), [{"broker": "b[1]", "alive": True, "more": 7}])],
    [Finding("ledgers/0001", "DATA_DAMAGED", "its [checksum] does not fit")],
)


def test_a_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, OutputFormat.TABLE)
    out = capsys.readouterr().out
    for text in (
        "cluster [x]",
        "file:///r",
        "–",
        "a=1",
        "b[1]",
        "yes",
        "1 finding",
        "[DATA_DAMAGED]",
        "its [checksum] does not fit",
    ):
        assert text in out
    assert "more" not in out


def test_a_report_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {
        "root": "file:///r",
        "topics": 2,
        "controller": "",
        "settings": {"a": "1"},
        "brokers": [{"broker": "b[1]", "alive": True, "more": 7}],
        "findings": [{"object_key": "ledgers/0001", "code": "DATA_DAMAGED", "problem": "its [checksum] does not fit"}],
    }


NOT_TEXT = b"a\xff".decode(errors="surrogateescape")
GIVEN = {
    "topic create": ("NAME",),
    "topic alter": ("NAME", "--set", "NAME=1"),
    "topic delete": ("NAME", "--yes"),
    "topic list": ("--target", "NAME:1"),
    "produce": ("NAME",),
    "produce t": ("--tag", "NAME"),
    "produce t -f jsonl": ("--key", "NAME"),
    "consume": ("NAME",),
    "consume t": ("--filter", "NAME"),
    "message show": ("NAME:0:0",),
    "message trace": ("NAME:0:0",),
    "group describe": ("NAME",),
    "group reset g t": ("--to", "NAME"),
    "queue describe": ("NAME",),
    "dlq list": ("NAME", "--error", "NAME"),
    "dlq redrive g 0:1": ("--to", "NAME"),
    "transaction describe": ("NAME",),
    "delayed recall": ("NAME",),
    "acl list": ("--principal", "NAME"),
    "token create": ("NAME",),
    "quota unset": ("NAME",),
    "cluster move": ("NAME", "0", "1"),
    "drain": ("NAME",),
}


@pytest.mark.parametrize(("words", "arguments"), GIVEN.items())
def test_an_argument_that_is_no_text_is_refused(words: str, arguments: tuple[str, ...]) -> None:
    given = [*words.split(), *(each.replace("NAME", NOT_TEXT) for each in arguments)]
    result = CliRunner(env={"LEDGERMQ_TARGET": "127.0.0.1:1"}).invoke(build(), given, input="x")
    assert result.exit_code == ExitCode.USAGE, result.stderr
    assert "INTERNAL" not in result.stderr
    if result.stderr.startswith("error"):
        assert re.search(r"error \[INVALID_REQUEST\] \S+ b'a\\xff.*': it must be UTF-8 text", result.stderr)


def test_a_key_that_is_no_text_may_be_given_in_hexadecimal() -> None:
    result = CliRunner().invoke(build(), ["message", "find", "t", "--key", NOT_TEXT])
    assert result.exit_code == ExitCode.USAGE
    assert "--key b'a\\xff': it must be UTF-8 text; give its bytes with --key-hex" in result.stderr


def test_bytes_are_taken_where_bytes_are_meant() -> None:
    given = ["produce", "t", "--header", f"k={NOT_TEXT}", "--target", "127.0.0.1:1", "--timeout", "0.2"]
    assert CliRunner().invoke(build(), given, input="x\n").exit_code == ExitCode.UNAVAILABLE

"""What a command says and how long it takes when brokers do not answer: every command with
--timeout ends within it.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.session import parse_target
from ledgermq.client.messages.handles import handle_of
from ledgermq.errors import InvalidConfig
from ledgermq.protocol import ledgermq_pb2 as pb

TIMEOUT_S = 0.4
ENDS_S_MAX = 8.0
"""Far above --timeout, for a busy machine, and below what one attempt, one close of a group's
member or several calls would take.
"""

HANDLE = handle_of(pb.RecallDelayedRequest(topic="t", topic_id=1))

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "topic create": ("t",),
    "topic list": (),
    "topic describe": ("t",),
    "topic holders": ("t",),
    "schema put": ("t", "--compatibility", "full"),
    "schema check": ("t", "SCHEMA"),
    "schema list": (),
    "schema show": ("t",),
    "schema delete": ("t", "--yes"),
    "cut take": ("c",),
    "cut list": (),
    "cut show": ("c",),
    "cut keep": ("c", "2d"),
    "cut drop": ("c", "--yes"),
    "cut files": ("c", "t"),
    "table list": (),
    "table describe": ("t",),
    "table errors": ("t",),
    "table rebuild": ("t", "--yes"),
    "table drop": ("t", "--yes"),
    "topic alter": ("t", "--partitions", "2"),
    "topic delete": ("t", "--yes"),
    "topic apply": ("--file", "TOPICS"),
    "topic undelete": ("t",),
    "topic delete-records": ("t", "--before-offset", "1", "--yes"),
    "produce": ("t",),
    "consume": ("t", "--group", "g"),
    "delayed list": (),
    "delayed recall": (HANDLE,),
    "message find": ("t", "--key", "k"),
    "message show": ("t:0:0",),
    "message trace": ("t:0:0",),
    "group list": (),
    "group describe": ("g",),
    "group retries": ("g",),
    "group reset": ("g", "--to", "earliest", "--yes"),
    "group delete": ("g", "--yes"),
    "group export": ("g", "FILE"),
    "group import": ("g", "FILE"),
    "dlq list": (),
    "dlq show": ("g", "0:0"),
    "dlq redrive": ("g", "--all", "--yes"),
    "dlq drop": ("g", "--all", "--yes"),
    "transaction list": (),
    "transaction describe": ("t",),
    "transaction commit": ("t", "--yes"),
    "transaction abort": ("t", "--yes"),
    "transaction forget": ("t", "--yes"),
    "transaction give-up": ("t", "--bundle", "1", "--yes"),
    "transaction unresolved list": (),
    "transaction unresolved show": ("g", "h"),
    "transaction unresolved commit": ("g", "h", "--yes"),
    "transaction unresolved rollback": ("g", "--all", "--yes"),
    "queue list": (),
    "queue describe": ("g",),
    "queue reset": ("g", "--topic", "t", "--to", "earliest", "--yes"),
    "queue delete": ("g", "--topic", "t", "--yes"),
    "acl grant": ("user:u", "produce", "t"),
    "acl revoke": ("r", "--yes"),
    "acl list": (),
    "acl test": ("produce", "t"),
    "token create": ("u",),
    "token revoke": ("0123456789ab", "--yes"),
    "token list": (),
    "quota set": ("user:u", "--requests", "5"),
    "quota describe": ("user:u",),
    "quota unset": ("user:u",),
    "quota list": (),
    "cluster describe": (),
    "cluster add-bundles": ("2",),
    "cluster move": ("t", "0", "2"),
    "cluster rebalance": (),
    "drain": ("b:1",),
    "undrain": ("b:1",),
    "status": (),
    "connections": (),
    "cost": (),
}
OFFSETS = '{"offsets": [{"topic": "t", "topic_id": 1, "partition": 0, "offset": 5}]}'


def run(*arguments: str, stdin: str = "a line\n", **variables: str) -> Result:
    environment = {"LEDGERMQ_TARGET": None, "COLUMNS": "200", **variables}
    return CliRunner(env=environment).invoke(build(), arguments, input=stdin)


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Every command, with the names of its parameters."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*words, name))
    else:
        yield " ".join(words), {parameter.name or "" for parameter in command.params}


@pytest.fixture
def refused() -> Iterator[str]:
    """An address where nothing listens for as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_every_command_that_talks_to_brokers_has_a_time_limit_and_is_tried_here() -> None:
    found = dict(commands(typer.main.get_command(build())))
    talking = {words for words, parameters in found.items() if "target" in parameters} - {
        "gateway"
    }  # it waits for ever
    assert talking == {words for words, parameters in found.items() if "timeout_s" in parameters} - {
        "top",
        "conformance",  # it talks to brokers of its own
        "restore",  # with --into alone
    }
    assert talking == set(ARGUMENTS)


def test_the_page_names_the_commands_that_go_on_while_brokers_answer() -> None:
    """--timeout bounds all others as a whole. The help of the option says which it is."""
    app = typer.main.get_command(build())
    rule = (Path(__file__).parents[2] / "docs/cli.md").read_text().split("`--help` says so:")[1].split("\n\nFor")[0]
    named = set(re.findall(r"`([a-z -]+)`", rule)) - {"--help"}
    helps = {words: help_of(app, words, "timeout_s") for words in ARGUMENTS}
    assert named == {words for words, text in helps.items() if text.startswith("Longest wait for an answer")}
    assert {text for words, text in helps.items() if words not in named} == {"Time limit of the command."}
    assert {"cluster move", "cluster rebalance"} < named


def help_of(command: Any, words: str, parameter: str) -> str:
    for word in words.split():
        command = command.commands[word]
    return str(next(each.help for each in command.params if each.name == parameter))


@pytest.mark.parametrize("words", ARGUMENTS)
def test_a_command_ends_within_its_time_limit(words: str, silent: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(OFFSETS)
    topics = tmp_path / "topics.json"
    topics.write_text('{"topics": [{"name": "t"}]}')
    schema = tmp_path / "schema.avsc"
    schema.write_text('"int"')
    files = {"FILE": str(file), "TOPICS": str(topics), "SCHEMA": str(schema)}
    given = [files.get(each, each) for each in ARGUMENTS[words]]
    begun = time.monotonic()
    result = run(*words.split(), *given, "--target", silent, "--timeout", str(TIMEOUT_S))
    assert time.monotonic() - begun < ENDS_S_MAX
    assert result.exit_code == ExitCode.UNAVAILABLE, result.output
    assert silent in result.stderr


def test_top_ends_when_no_admin_port_answers(silent: str) -> None:
    begun = time.monotonic()
    result = run("top", silent, "--timeout", str(TIMEOUT_S), "--interval", "60")
    assert time.monotonic() - begun < ENDS_S_MAX
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert f"{silent}: no answer: timed out" in result.stdout
    assert "--admin-port" in result.stderr


@pytest.mark.parametrize("words", [("status",), ("consume", "t", "--group", "g"), ("produce", "t")], ids=" ".join)
def test_what_is_waited_for_is_said_while_it_is_waited_for(words: tuple[str, ...], refused: str) -> None:
    result = run(*words, "--target", refused, "--timeout", "4")
    first, *_, last = result.stderr.splitlines()
    assert re.fullmatch(rf"waiting for a broker at {refused}: connection refused; timeout in \d s", first)
    assert last.startswith("error [UNAVAILABLE]")
    assert "connection refused" in last
    assert "ipv4:" not in result.stderr, "gRPC's own words"


def test_a_mistyped_variable_is_refused_by_every_command(refused: str) -> None:
    for words in (("status", "--target", refused), ("inspect", "cluster", "/nowhere"), ("config", "show")):
        result = run(*words, LEDGERMQ_TARGE="elsewhere:9650")
        assert result.exit_code == ExitCode.USAGE
        assert "unknown variable LEDGERMQ_TARGE; did you mean LEDGERMQ_TARGET?" in result.stderr
    assert run("status", "--help", LEDGERMQ_TARGE="elsewhere:9650").exit_code == 0


def test_settings_of_brokers_are_no_mistyped_variables(refused: str) -> None:
    result = run("status", "--target", refused, "--timeout", "0.1", LEDGERMQ_FLUSH_BYTES="70000", LEDGERMQ_TAG="1.0")
    assert result.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("folder", ["ledgermq-data", "./ledgermq-data", "."])
def test_a_folder_is_a_target(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ledgermq-data").mkdir()
    assert parse_target(folder) == (tmp_path / folder).absolute().as_uri()
    assert parse_target(str(tmp_path / folder)) == (tmp_path / folder).as_uri()


@pytest.mark.parametrize("target", ["", "  ", "nosuchfolder", "no/such", "localhost:9650/"])
def test_a_target_that_is_none_makes_no_folder(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig):
        parse_target(target)
    assert run("topic", "create", "t", "--target", target).exit_code == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


def test_help_shows_defaults_and_ranges_of_a_brokers_settings() -> None:
    result = CliRunner(env={"COLUMNS": "400", "LEDGERMQ_TARGET": None}).invoke(build(), ["broker", "--help"])
    pages = re.split(r"\n  (?:-\w, )?(?=--)", result.stdout)
    lines = {page.split()[0]: " ".join(page.split()) for page in pages}
    assert "[default: 8388608; 65,536 to 67,108,864]" in lines["--flush-bytes"]
    assert "[default: info; debug, info, warning, error]" in lines["--log-level"]
    assert "[default: false]" in lines["--auto-create-topics"]
    assert "[default: not set; 0 to 65,535]" in lines["--admin-port"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("dev", ""), "the root is empty"),
        (("dev", "s3://bucket/x"), "local folder"),
        (("inspect", "cluster", ""), "the root is empty"),
    ],
)
def test_a_root_that_is_none_is_refused(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, text in result.stderr) == (ExitCode.USAGE, True)
    assert list(tmp_path.iterdir()) == []

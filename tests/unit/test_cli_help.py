"""Help pages at 80 columns, in a pipe: every option with its whole name; and what is said of a wrong value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ledgermq.cli.main import COMMANDS, build
from tests.docs.checking import check_command, commands
from tests.docs.pages import CLONE, Block

NARROW = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


def pages(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*words, name))


APP = build()
PAGES = dict(pages(typer.main.get_command(APP)))


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_no_name_of_an_option_is_cut(words: tuple[str, ...]) -> None:
    shown = CliRunner(env=NARROW).invoke(APP, [*words, "--help"]).stdout
    for param in PAGES[words].params:
        for name in (*param.opts, *param.secondary_opts):
            if not getattr(param, "hidden", False) and name.startswith("-"):
                assert name in shown
    assert "\\[" not in shown, "markup of another library"
    assert max(map(len, shown.splitlines())) <= 80 or not words


def test_commands_stand_in_panels() -> None:
    shown = CliRunner(env=NARROW).invoke(APP, ["--help"]).stdout
    at = [shown.index(f"\n{panel}:\n") for panel in dict.fromkeys(place.panel for place in COMMANDS.values())]
    assert at == sorted(at)
    for name, place in COMMANDS.items():
        assert f"  {name} " in shown[shown.index(f"\n{place.panel}:\n") :]


@pytest.mark.parametrize(
    "words", [("produce",), ("consume",), ("topic", "create"), ("message", "find"), ("group", "reset")]
)
def test_main_commands_have_examples_that_are_right(words: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [*words, "--help"]).stdout
    examples = shown.split("Examples:")[1]
    assert f"ledgermq {' '.join(words)}" in examples
    block = Block(CLONE / "help", 1, "bash", examples)
    for line in commands(examples):
        check_command(block, line)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["topic", "list", "-o", "xml"], "Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json'."),
        (["produce", "t", "-p", "x"], "Invalid value for '--partition' / '-p': give a whole number"),
        (["consume", "t", "--format", "xml"], "--format 'xml': give value, jsonl, csv or table"),
        (["produce", "t", "--format", "xml"], "--format 'xml': give lines, jsonl, csv, records"),
    ],
)
def test_a_wrong_value_is_named_in_plain_words(given: list[str], says: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, given)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Value error" not in result.stderr


def test_the_page_names_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    table = [re.split(r"(?<!\\)\|", line)[1] for line in page.splitlines() if line.startswith("| `")]
    named = {word for cell in table for word in cell.replace("`", " ").replace("\\|", " ").replace(",", " ").split()}
    for words in PAGES:
        assert set(words) <= named, f"docs/cli.md has no row for {' '.join(words)}"


@pytest.mark.parametrize(
    ("letter", "name"),
    [("-n", "--max"), ("-o", "--output"), ("-f", "--format"), ("-y", "--yes"), ("-k", "--key"), ("-s", "--set")],
)
def test_a_letter_means_the_same_in_every_command(letter: str, name: str) -> None:
    found = {opt for page in PAGES.values() for param in page.params if letter in param.opts for opt in param.opts}
    assert found == {letter, name}

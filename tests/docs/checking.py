"""Checks a block without running it: syntax, and that every command, option and make target in it
exists.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import typer.main
import yaml

from ledgermq.cli.main import build
from tests.docs.pages import CLONE, Block

TARGETS = set(re.findall(r"^([a-z-]+):", (CLONE / "Makefile").read_text(), re.MULTILINE))


def check(block: Block) -> None:
    """Raises AssertionError or SyntaxError, with the place."""
    match block.language:
        case "python":
            compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "bash":
            done = subprocess.run(
                ["bash", "-n", "-c", block.text], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{block.place}: {done.stderr}"
            for words in commands(block.text):
                check_command(block, words)
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command."""
    lexer = shlex.shlex(re.sub(r"\\\n", " ", text).replace("\n", "\n;\n"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            if words and ("<" in word or ">" in word):
                continue
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words


def check_command(block: Block, words: list[str]) -> None:
    if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS, f"{block.place}: {words}"
    elif words[:2] == ["python", "-m"]:
        path = words[2].replace(".", "/") + ".py"
        homes = (CLONE, *(CLONE / folder for folder in ("ledger", "offsets", "stateless_broker", "spark")))
        assert any((home / path).exists() for home in homes) or words[2] == "venv", f"{block.place}: {words}"
    elif words[0] == "ledgermq":
        check_ledgermq(block, words[1:])


def check_ledgermq(block: Block, words: list[str]) -> None:
    """Its commands and options by name; what is not an option is an argument."""
    command: Any = typer.main.get_command(build())
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        assert found is not None, f"{block.place}: there is no command {words[0]!r}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in known, f"{block.place}: `ledgermq {command.name}` has no option {word!r}"

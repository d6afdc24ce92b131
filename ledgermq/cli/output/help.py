"""Help pages: plain text that fits any width, with names of options never cut; commands in panels, options that most
commands have at the end, examples below. And errors about options in plain words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.terminal import forget_output

WIDTH_MAX = 100
_TLS = ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name")
COMMON = ("target", *_TLS, "timeout_s", "output", "debug", "help")
_PREFIX = "Value error, "
_PLAIN_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "give a whole number",
    "Input should be a valid number, unable to parse string as a number": "give a number",
}
"""What the library that reads options says of a wrong value."""

Context = Any
Formatter = Any
"""Types of Typer's own copy of click, which are not public."""


class Command(TyperCommand):
    """A command. Its help shows arguments, its own options, then those that most commands have."""

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "Common options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                is_argument = param.param_type_name == "argument"
                common = "Common options" if param.name in COMMON else "Options"
                sections["Arguments" if is_argument else common].append(record)
        for name, rows in sections.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


class Root(TyperGroup):
    """The command `ledgermq`. `panels`: of each command, in the order in which help shows them."""

    panels: Mapping[str, str]

    def list_commands(self, ctx: Context) -> list[str]:
        order = [*self.panels]
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        limit = formatter.width - 6 - max(map(len, self.commands), default=0)
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                panel = sections.setdefault(self.panels.get(name, "Other commands"), [])
                panel.append((name, command.get_short_help_str(limit)))
        for panel_name, rows in sections.items():
            with formatter.section(panel_name):
                formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _plain_words():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Context) -> Any:
        with _plain_words():
            return super().invoke(ctx)


@contextmanager
def _plain_words() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of a help page has gone, as `head` does
        forget_output()
        raise typer.Exit(ExitCode.OK) from None
    except typer.BadParameter as error:
        text = error.message.removeprefix(_PREFIX)
        error.message = _PLAIN_WORDS.get(text, text)
        raise


def examples_text(examples: tuple[str, ...]) -> str | None:
    """Return examples as the last section of a help page; its lines are not wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {each}" for each in examples))) if examples else None

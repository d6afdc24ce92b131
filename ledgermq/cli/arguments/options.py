"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

DEFAULT_TARGET = "localhost:9650"
DEFAULT_TIMEOUT_S = 30.0


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        envvar="LEDGERMQ_TARGET",
        metavar="HOST:PORT,…|ROOT",
        help="Brokers, or a root (a folder, file:///…, s3://…, az://…, gs://…, hdfs://…, memory://) for a broker inside"
        " this process.",
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Time limit of the command.",
    ),
]
AnswerTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Longest wait for an answer of brokers. While they answer, the command goes on until its work is done.",
    ),
]
"""The time limit of a command that sets `Session.progress`: the length of its work is not known before."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Debug = Annotated[bool, typer.Option("--debug", envvar="LEDGERMQ_DEBUG", help="Show the traceback of an error.")]
"""Every command has it (`cli.output.reporting`); one that does more by it takes it as its own parameter `debug`."""
DEBUG_OPTION = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)


def option_of_setting(
    name: str, kind: type, default: object, help_text: str, *, allowed: str = "", variable: str | None = None
) -> inspect.Parameter:
    """Return the option of a setting. None stands for "not given". `allowed`: what it accepts, for the help.
    `variable`: the variable of the environment that the option reads itself.
    """
    flag = "--" + name.replace("_", "-")
    shown = "not set" if default in (None, "") else str(default).lower() if kind is bool else str(default)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        envvar=variable,
        help=f"{help_text} [default: {shown}{f'; {allowed}' if allowed else ''}]",
        show_default=False,
        show_envvar=False,
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_options(function: Callable[..., None], options: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Return a command with these options beside those of a function, in place of its `**flags`."""
    given = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [*(each for each in given if each.kind is not each.VAR_KEYWORD), *options]

    @functools.wraps(function)
    def taking(**given: Any) -> None:
        function(**given)

    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking

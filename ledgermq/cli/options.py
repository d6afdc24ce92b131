"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

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
        help="Brokers, or a root (a folder, file:///…, s3://…, hdfs://…, memory://) for a broker inside this process.",
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

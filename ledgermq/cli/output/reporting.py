"""Run commands and report their errors: one line on stderr, a hint and an exit code; a traceback
only with --debug.

An unknown LEDGERMQ_… variable is refused first, because it was probably meant to change what the
command does.

`command(app, name)` registers a plain or async function, and gives it the option --debug.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from typer.models import ParameterInfo

from ledgermq.cli.arguments.options import DEBUG_OPTION, with_options
from ledgermq.cli.arguments.tls_options import TLS_OPTIONS, take_tls
from ledgermq.cli.output.exit_codes import ExitCode, exit_code, hint
from ledgermq.cli.output.help import Command, examples_text
from ledgermq.cli.output.terminal import forget_output, notes
from ledgermq.environment import check_variables
from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.runtime.process.stop_signals import stop_signals

Function = Callable[..., Any]


def command(
    app: typer.Typer, name: str, *, connects: bool | None = None, examples: tuple[str, ...] = (), **settings: Any
) -> Callable[[Function], Function]:
    """Register the decorated function, plain or async, as a command that reports its errors as
    this module describes. `connects`: it takes the options of TLS, too; None: if it has a `target`. `examples`: command
    lines for its help page.
    """

    def register(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        has_tls = "target" in parameters if connects is None else connects
        more = [] if "debug" in parameters else [DEBUG_OPTION]

        @functools.wraps(function)
        def reported(*args: Any, **kwargs: Any) -> None:
            with reporting(debug=bool(kwargs.pop("debug", False) if more else kwargs["debug"])):
                check_variables()
                check_texts(function, kwargs)
                if has_tls:
                    kwargs = take_tls(kwargs)
                if inspect.iscoroutinefunction(function):
                    asyncio.run(until_sigterm(function(*args, **kwargs)))
                else:
                    function(*args, **kwargs)

        app.command(name, cls=Command, epilog=examples_text(examples), **settings)(
            with_options(reported, [*more, *(TLS_OPTIONS if has_tls else ())])
        )
        return function

    return register


async def until_sigterm(work: Coroutine[Any, Any, None]) -> None:
    """Run a command. SIGTERM cancels it, as Ctrl-C does, so that it can commit, leave its group, and report;
    a second one ends the process at once. Commands with their own handler of SIGTERM replace this one.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        loop.call_soon_threadsafe(task.cancel)

    with stop_signals.stopping(terminate):
        try:
            await work
        except asyncio.CancelledError:
            if is_terminated:
                raise typer.Exit(ExitCode.TERMINATED) from None
            raise


def check_texts(function: Function, given: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an argument that is no UTF-8. Python passes its bytes on as surrogates, which nothing
    that takes text can store or send. Options with TAKES_BYTES take any bytes.
    """
    for name, value in given.items():
        texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
        for text in texts:
            if not isinstance(text, str) or text.isascii() or is_text(text):
                continue
            if name == "target" and Path(text).is_dir():
                continue  # it becomes a URL, which has the bytes of its name quoted
            metadata = getattr(
                inspect.signature(function, eval_str=True).parameters[name].annotation, "__metadata__", ()
            )
            if TAKES_BYTES in metadata:
                continue
            words = name.replace("_", "-")
            if metadata and isinstance(metadata[0], ParameterInfo):
                # Typer keeps the first name of an option where its default would be
                names = [str(each) for each in (metadata[0].default, *(metadata[0].param_decls or ())) if each != ...]
                words = max(names, key=len, default=metadata[0].metavar or words)
            other = "; give its bytes with --key-hex" if name == "key" and "key_hex" in given else ""
            raise InvalidRequest(f"{words} {os.fsencode(text)!r}: it must be UTF-8 text{other}")


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


TAKES_BYTES = "takes bytes"
"""In the metadata of an option whose value may be any bytes that a shell can pass."""


@contextmanager
def reporting(*, debug: bool) -> Iterator[None]:
    """Turn any error of the block into one line on stderr and typer.Exit."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.TyperException):
        raise
    except BrokenPipeError:
        forget_output()  # the reader of the pipe has gone, as `head` does: not an error of this command
        raise typer.Exit(ExitCode.OK) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        cause = root_cause(error)
        print_error(cause)
        raise typer.Exit(exit_code(cause)) from None


def root_cause(error: BaseException) -> BaseException:
    """Return the first real error inside the exception groups that tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = next((inner for inner in error.exceptions if isinstance(inner, LedgerMQError)), error.exceptions[0])
    return error


def print_error(error: BaseException) -> None:
    """Format an error as one line: `error [CODE] text (hint)`."""
    code = error.code if isinstance(error, LedgerMQError) else _code_of_other(error)
    text = " ".join(str(error).split()) or type(error).__name__
    advice = hint(error)
    if code == "INTERNAL":
        text, advice = f"{type(error).__name__}: {text}", "this is a bug; --debug shows the traceback"
    line = rf"[bold red]error[/] \[{code}] {escape(text)}" + (f" [dim](hint: {escape(advice)})[/]" if advice else "")
    notes().print(line, soft_wrap=True)


def _code_of_other(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "DEADLINE_EXCEEDED"
    return "SYSTEM" if isinstance(error, OSError) else "INTERNAL"

"""`ledgermq worker`: run the handlers that modules of the user's declare, until SIGTERM or Ctrl-C.

    client = ledgermq.connect("localhost:9650")         # app.py


    @client.handler("orders", group="billing")
    async def bill(message): ...

    $ ledgermq worker app:client

The first signal ends the work cleanly: no further call begins, running ones are finished and committed. The second
one ends the process at once. When one application fails, the others end cleanly, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from signal import SIGINT
from types import ModuleType
from typing import Annotated, NamedTuple

import typer

import ledgermq
import ledgermq.sync
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import chosen_token_file
from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.hints import nearest
from ledgermq.runtime.process.stop_signals import OnStop, stop_signals
from ledgermq.runtime.tasks import first_of

DRAIN_TIMEOUT_S = 30.0
EXAMPLES = ("ledgermq worker app:client", "ledgermq worker shop.billing:client shop.mails:client --drain-timeout 8")

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:CLIENT",
        help="Module, and the client in it, which ledgermq.connect or ledgermq.sync.connect has returned; repeatable.",
    ),
]
Folder = Annotated[
    Path, typer.Option("--app-dir", metavar="FOLDER", help="Folder in which the modules are, beside the Python path.")
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        min=0.1,
        metavar="SECONDS",
        help="How long running calls may take after the signal. Docker kills a container 10 seconds after SIGTERM,"
        " Kubernetes after 30.",
    ),
]


class Application(NamedTuple):
    """A client with declared handlers. `name`: as it was given."""

    name: str
    client: ledgermq.Client | ledgermq.sync.Client


def register(app: typer.Typer) -> None:
    command(app, "worker", connects=False, examples=EXAMPLES)(worker)


def worker(
    names: Names,
    app_dir: Folder = Path(),
    drain_timeout_s: DrainTimeout = DRAIN_TIMEOUT_S,
) -> None:
    """Run the handlers that modules declare on their clients, until SIGTERM or Ctrl-C; then finish the running calls,
    commit, and leave the groups.
    """
    if chosen_token_file():
        os.environ["LEDGERMQ_TOKEN_FILE"] = chosen_token_file()  # clients of the modules read it
    sys.path.insert(0, str(app_dir.absolute()))
    applications = [find_application(name, app_dir) for name in dict.fromkeys(names)]
    try:
        asyncio.run(run_applications(applications, drain_timeout_s))
    except (LedgerMQError, KeyboardInterrupt):
        raise
    except Exception as error:  # of a function of the application, such as a handler with then="stop"
        traceback.print_exception(error)
        raise typer.Exit(ExitCode.ERROR) from None


def find_application(name: str, folder: Path) -> Application:
    """Import the module of `module:attribute`, and return its client. Raises InvalidRequest."""
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise InvalidRequest(f"{name!r}: give a module and the client in it, as in app:client or shop.billing:client")
    module = _imported(module_name, folder)
    try:
        client = reduce(getattr, path.split("."), module)
    except AttributeError:
        near = nearest(path, [each for each in vars(module) if not each.startswith("_")])
        raise InvalidRequest(
            f"module {module_name!r} has no {path!r}" + (f"; did you mean {module_name}:{near}?" if near else "")
        ) from None
    if not isinstance(client, ledgermq.Client | ledgermq.sync.Client):
        raise InvalidRequest(
            f"{name} is no client, but an object of type {type(client).__name__}: assign client ="
            " ledgermq.connect(…) at the level of the module, and name it"
        )
    if not client.handlers:
        raise InvalidRequest(
            f"{name} has no handler: declare one with @client.handler(topic, group=…) when the module is imported"
        )
    return Application(name, client)


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidRequest(
                f"there is no module {error.name!r} in {folder.absolute()} or in the Python path; run this in its"
                " folder, or name the folder with --app-dir"
            ) from error
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> InvalidRequest:
    """Return what the import of a module ended with, and at which line of the user's."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return InvalidRequest(
        f"module {name!r} cannot be imported: {type(error).__name__}: {error} ({last.filename}, line {last.lineno};"
        " --debug shows the traceback)"
    )


async def run_applications(applications: Sequence[Application], drain_timeout_s: float) -> None:
    """Run the handlers of all applications until a signal, or until one of them fails. Raises its error."""
    stop, stop_threads = asyncio.Event(), threading.Event()

    async def run(client: ledgermq.Client | ledgermq.sync.Client) -> None:
        try:
            if isinstance(client, ledgermq.sync.Client):
                await _in_thread(client, stop_threads, drain_timeout_s)
            else:
                async with client:
                    await client.run_handlers(stop=stop, drain_timeout_s=drain_timeout_s, stop_on_sigterm=False)
        finally:
            stop.set()
            stop_threads.set()

    def end() -> None:
        _note(f"stopping: running calls are finished, for {drain_timeout_s:g} s at most; a second signal ends them")
        stop.set()
        stop_threads.set()

    for name, client in applications:
        _note(f"{name}: {', '.join(map(_described, client.handlers))}")
    with _signals(end):
        clients = dict.fromkeys(application.client for application in applications)
        outcomes = await asyncio.gather(*map(run, clients), return_exceptions=True)
    if errors := [outcome for outcome in outcomes if outcome is not None]:
        raise first_of(BaseExceptionGroup("applications", errors))
    _note("stopped")


@contextmanager
def _signals(end: OnStop) -> Iterator[None]:
    """Call `end` at the first SIGTERM or SIGINT; the second one has its default action."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(SIGINT)
        end()

    with stop_signals.stopping(partial(loop.call_soon_threadsafe, end)):
        with suppress(NotImplementedError):  # on Windows Ctrl-C cancels
            loop.add_signal_handler(SIGINT, interrupt)
        try:
            yield
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(SIGINT)


async def _in_thread(client: ledgermq.sync.Client, stop: threading.Event, drain_timeout_s: float) -> None:
    """Run the handlers of a synchronous client, which waits, in a thread that does not outlive the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            with client:
                client.run_handlers(stop=stop, drain_timeout_s=drain_timeout_s, stop_on_sigterm=False)
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the second signal has closed the loop
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=work, name="ledgermq worker", daemon=True).start()
    await done


def _described(handler: ledgermq.Handler | ledgermq.QueueHandler) -> str:
    topics = handler.settings.topics
    several = [topics] if isinstance(topics, str | re.Pattern) else topics
    shown = ", ".join(topic if isinstance(topic, str) else topic.pattern for topic in several)
    return f"{getattr(handler.function, '__name__', 'a handler')} of {shown} in group {handler.settings.group}"


def _note(text: str) -> None:
    notes().print(text, markup=False, highlight=False, soft_wrap=True)

"""What people and programs name: root URLs, broker addresses, environment variables, settings of
clients, arguments of commands.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import typer

from ledgermq.cli.messages.inputs import InputFormat, Shape, read_records
from ledgermq.cli.messages.lines import LineSource
from ledgermq.cli.messages.produce import parse_headers
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.client.connection.target import is_root_url, parse_addresses
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import ClientSettings, ConsumerSettings, settings_from
from ledgermq.errors import InvalidConfig
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.object_store.s3.location import parse_s3_url
from ledgermq_ledger.open_root import cluster_of, root_url
from ledgermq_ledger.root.open import open_store
from ledgermq_tools.ledger import fsck
from ledgermq_tools.ledger.inspect import command as inspect
from tests.fuzz.input_surfaces import FOLDER
from tests.fuzz.surface import Surface, Untyped
from tests.stores.backends import seeded_sources
from tests.worlds.batches import mutate
from tests.worlds.filled_root import fill_root

_runner = asyncio.Runner()
TARGETS = [
    b"localhost:9650,[::1]:9650, h:1",
    b"file:///data/cluster",
    b"file://localhost/a%20b%00c",
    b"memory://x",
    b"s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1&path_style=true",
    b"hdfs://namenode:8020/x",
    b"s3://user:secret@bucket",
    b"file://[::1",
    b"http://h:99999999999999999999",
    "h:\u0663".encode(),
]


async def check_target(data: bytes) -> None:
    """As the SDK and the commands take them; nothing is sent anywhere."""
    text = data.decode("utf-8", "surrogateescape")
    if not is_root_url(text):
        parse_addresses(text)
        root_url(text)
        return
    if text.lower().startswith("s3:"):
        location = parse_s3_url(text)
        if parse_s3_url(location.url) != location:
            raise Untyped(f"{location} has a URL that says something else")
        return
    if text.lower().startswith("hdfs:"):
        return  # would go over the network
    async with await open_store(text, sources=seeded_sources()) as store:
        await cluster_of(store)


ENVIRONMENTS = [
    b"LEDGERMQ_PORT=9650\nLEDGERMQ_HOST=0.0.0.0\nLEDGERMQ_AUTO_CREATE_TOPICS=yes",
    b"LEDGERMQ_PORT=tcp://10.0.0.1:9650\nLEDGERMQ_FLUSH_SPACING_MS=-1",
    b"LEDGERMQ_BUNDLES=9e99\nLEDGERMQ_LOG_LEVEL=loud\nLEDGERMQ_BROKER_ID=../x",
    "LEDGERMQ_TOPICS_MAX=\u0663\nledgermq_port=\nLEDGERMQ_".encode(),
    b"LEDGERMQ_CACHE_BYTES_MAX=" + b"9" * 5000,
]


def check_environment(data: bytes) -> None:
    variables = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        name, equals, value = line.partition("=")
        if name and equals and "\0" not in line:
            variables[name] = value
    with patch.dict(os.environ, variables, clear=True):
        load_settings()


CLIENT_SETTINGS = [
    b'timeout_s = 5\nacks = "durable"\nlinger_ms = 0.5\nfetch_bytes_max = 1000\n',
    b"timeout_s = nan\nbuffer_bytes_max = inf\nwindow_batches = 5.5\n",
    b'backoff_ms_first = true\ncompression = ["zstd"]\nwhen_full = {a = 1}\n',
    b"linger_ms = -0.0\nrequest_bytes_max = 9223372036854775807\npartitioner = 1979-05-27\n",
]


def check_client_settings(data: bytes) -> None:
    try:
        given = tomllib.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise InvalidConfig("not TOML, which is not what is tried here") from error
    for name, value in given.items():
        kinds = [
            kind for kind in (ClientSettings, ProducerSettings, ConsumerSettings) if name in kind.__dataclass_fields__
        ]
        for kind in kinds or [ClientSettings]:
            settings_from(kind, {name: value})


LINES = [
    b"a:1=1\nb:2=\r\nc::=",
    b"a:1\n:\n",
    b"no separator\n",
    b"k::v:\n" * 50,
    "\u2028:\ufeff\0\n\udcff".encode("utf-8", "surrogatepass"),
    b"",
]


def check_lines(data: bytes) -> None:
    """Every line is one record, whatever is in it; then with keys."""
    whole = list(read_records(LineSource(io.BytesIO(data), "fuzz", None), InputFormat.LINES, Shape()))
    if [record.value for record in whole] != [line.rstrip(b"\r\n") for line in io.BytesIO(data).readlines()]:
        raise Untyped("the records are not the lines")
    list(read_records(LineSource(io.BytesIO(data), "fuzz", None), InputFormat.LINES, Shape(key_separator=":")))
    list(parse_headers(line.decode("utf-8", "surrogateescape") for line in data.split(b"\n")))


COMMANDS = [
    b"fsck\nROOT",
    b"fsck\nROOT\n--output\njson\n--quick",
    b"inspect\nsegment\nROOT\n1\n2",
    b"inspect\nledger\nROOT\n1\n--newest\n0\n--full",
    b"inspect\ncheckpoint\nROOT\n1\n99999999999999999999999999",
    b"inspect\ncluster\nROOT\n--output\njson",
    b"inspect\nsegment\nmemory://none\n1\n2",
    b"inspect\nsegment\nROOT\n99999999999999999999999999\n" + b"9" * 5000,
]


ARGUMENTS = (b"-1", b"0", b"", b"--help", b"--output", b"table", b"/", b"\xff")


@cache
def command_root() -> Path:
    root = Path(FOLDER.name, "root")
    _runner.run(fill_root(root))
    return root


@cache
def application() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    for module in (fsck, inspect):
        module.register(app)
    return app


def check_command(data: bytes) -> None:
    """A line an argument; ROOT stands for a root.

    Ends with an exit code that the documentation names, and never says INTERNAL.
    """
    arguments = [
        line.replace("ROOT", str(command_root())) for line in data.decode("utf-8", "surrogateescape").split("\n")
    ]
    if any("\0" in argument or "s3:" in argument.lower() or "hdfs:" in argument.lower() for argument in arguments):
        return  # no process can be started with the one; the other would go over the network
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            application()(arguments, standalone_mode=True)
            code: object = 0
        except SystemExit as ended:
            code = ended.code or 0
    err.seek(0)
    said = err.read()
    if code not in list(ExitCode) or "[INTERNAL]" in said:
        raise Untyped(f"{arguments} ends with {code}: {said[-300:]}")


def spoil_command(rng: random.Random, data: bytes) -> bytes:
    """Arguments changed, left out, doubled, or in another order; some with other bytes."""
    arguments = data.split(b"\n")
    match rng.randrange(4):
        case 0:
            at = rng.randrange(len(arguments))
            arguments[at] = mutate(rng, arguments[at] or b"x", data)
        case 1:
            del arguments[rng.randrange(len(arguments))]
        case 2:
            arguments.insert(rng.randrange(len(arguments) + 1), rng.choice(ARGUMENTS))
        case 3:
            rng.shuffle(arguments)
    return b"\n".join(arguments)


def surfaces() -> list[Surface]:
    return [
        Surface("target", TARGETS, lambda data: _runner.run(check_target(data))),
        Surface("environment", ENVIRONMENTS, check_environment),
        Surface("client-settings", CLIENT_SETTINGS, check_client_settings),
        Surface("cli-lines", LINES, check_lines),
        Surface("commands", COMMANDS, check_command, spoil_command, weight=0.3),
    ]

"""Add the commands `ledgermq dev` and `ledgermq broker`, found through the entry-point group
"ledgermq.commands".

Every setting of `BrokerSettings` becomes a flag with its name and description, so that each is
documented in one place.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from ledgermq.cli.arguments.options import Debug, option_of_setting, with_options
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.environment import add_settings
from ledgermq.errors import InvalidConfig
from ledgermq_broker.settings.brokers import ADMIN_PORT, PORT, BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings
from ledgermq_broker.settings.processes import (
    NAMES,
    REMOVED,
    CompactionSettings,
    is_reached_from_elsewhere,
    load_compaction_settings,
    load_settings,
)
from ledgermq_ledger.open_root import root_url
from ledgermq_tools.broker import config_command
from ledgermq_tools.broker.settings_page import range_of
from ledgermq_tools.conformance import command as conformance_command
from ledgermq_tools.top import command as top_command

if TYPE_CHECKING:
    from ledgermq_broker.node import Node
    from ledgermq_broker.process.run import Beside

LOOPBACK = "127.0.0.1"

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="LEDGERMQ_CONFIG",
        help="TOML file of settings; flags and LEDGERMQ_… variables override it.",
    ),
]
Root = Annotated[
    str,
    typer.Argument(
        envvar="LEDGERMQ_ROOT",
        metavar="ROOT",
        help="Root of the cluster: file:///folder, s3://bucket/prefix, az://…, gs://…, hdfs://…, or a folder.",
    ),
]
Folder = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Folder that keeps all data; created if it does not exist.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        show_default=False,
        help=(
            "Port of /metrics, /livez and /readyz, which `ledgermq top` reads; 0 takes a free one. "
            f"Not set: none is opened. `ledgermq top` looks at {ADMIN_PORT}."
        ),
    ),
]
Http = Annotated[
    int | None,
    typer.Option(
        "--http",
        min=0,
        max=65535,
        metavar="PORT",
        show_default=False,
        help="Serve HTTP and JSON on this port, too (docs/gateway.md); 0 takes a free one. Not set: no HTTP.",
    ),
]
KafkaPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        show_default=False,
        help=(
            "Port for clients of the Kafka protocol (docs/kafka.md), usually 9092; 0 takes a free one. Not set: none is"
            " opened."
        ),
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        help=(
            "Number of broker processes, one per core. Ports, admin ports and addresses count up from those given; 0"
            " takes free ones."
        ),
    ),
]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when the standard input ends.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    add_settings(NAMES, REMOVED)
    command(app, "dev")(dev)
    command(app, "broker")(with_settings(BrokerSettings)(broker))
    command(app, "compactor")(with_settings(CompactionSettings)(compactor))
    config_command.register(app)
    top_command.register(app)
    conformance_command.register(app)


def dev(
    folder: Folder = "ledgermq-data",
    port: Port = PORT,
    admin_port: AdminPort = None,
    http: Http = None,
    kafka_port: KafkaPort = None,
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Run an all-in-one broker on a local folder; topics are created when they are first used.

    It is for development: it listens on this machine only, and every program here may use it. Ctrl-C
    stops it.
    """
    url = root_url(folder)
    if not url.startswith("file:"):
        raise InvalidConfig(
            f"dev keeps everything in a local folder, not in {folder!r}; `ledgermq broker ROOT` takes URLs"
        )
    chosen = load_settings(config)
    if is_reached_from_elsewhere(chosen):
        notes().print(
            f"The setting host = {chosen.host!r} is not used: dev is open to every caller, so it listens on this"
            " machine only. `ledgermq broker ROOT --security rules` listens elsewhere.",
            markup=False,
        )
    flags = {
        "host": LOOPBACK,
        "admin_host": LOOPBACK,
        "port": port,
        "admin_port": admin_port,
        "kafka_port": kafka_port,
        "kafka_host": LOOPBACK,
        "auto_create_topics": True,
        "log_level": None if debug else "warning",
    }
    beside: Beside | None = None
    if http is not None:
        from ledgermq_tools.broker.http import http_beside  # late: it needs the extra gateway

        beside = http_beside(http)
    _run(url, config, flags, lambda node, admin: typer.echo(_welcome(node, admin, folder, url)), beside=beside)


def broker(
    root: Root,
    config: ConfigFile = None,
    debug: Debug = False,
    processes: Processes = 1,
    supervised: Supervised = False,
    **flags: Any,
) -> None:
    """Run a broker of the cluster at ROOT until SIGTERM or Ctrl-C; it then hands its bundles over."""
    url = root_url(root)
    if processes > 1:
        raise typer.Exit(_run_processes(root, config, processes, flags, debug=debug))
    _run(
        url,
        config,
        flags,
        lambda node, _: typer.echo(f"broker listens on {node.address}, root {url}"),
        supervised=supervised,
    )


def compactor(root: Root, config: ConfigFile = None, **flags: Any) -> None:
    """Run the compaction service of the cluster at ROOT until SIGTERM or Ctrl-C: it writes segments
    to Parquet as the topics' settings say.
    """
    from ledgermq_tools.broker.compactor import run_compactor

    url = root_url(root)
    run_compactor(
        url,
        lambda: load_compaction_settings(config, **flags),
        lambda: typer.echo(f"compaction service works on root {url}"),
    )


def _run(
    url: str,
    config: Path | None,
    flags: Mapping[str, Any],
    on_ready: Callable[[Node, int | None], None],
    *,
    supervised: bool = False,
    beside: Beside | None = None,
) -> None:
    from ledgermq_broker.process.run import run_node

    more = {} if beside is None else {"beside": beside}
    run_node(url, lambda: load_settings(config, **flags), on_ready, supervised=supervised, **more)


def _run_processes(root: str, config: Path | None, processes: int, flags: Mapping[str, Any], *, debug: bool) -> int:
    """Run the processes; return the exit code."""
    from ledgermq_broker.process.siblings import arguments, shares
    from ledgermq_broker.process.supervisor import run_brokers

    settings = load_settings(config, **flags)
    own = [*(["--config", str(config)] if config is not None else []), *(["--debug"] if debug else [])]
    command = [sys.executable, "-m", "ledgermq.cli.main", "broker", root, "--supervised", *own]
    return run_brokers([[*command, *arguments({**flags, **share})] for share in shares(settings, processes)], settings)


def with_settings(kind: type[ProcessSettings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function that takes **flags one typed, documented option for each setting of `kind`."""
    options = [_option(name, field) for name, field in kind.model_fields.items()]
    return lambda function: with_options(function, options)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the option of a setting. Where it is not given, the environment, the file and the default apply, in this
    order.
    """
    kind: Any = next((k for k in get_args(field.annotation) or [field.annotation] if k in (bool, int, float)), str)
    allowed = "" if kind is bool else range_of(field).replace("`", "")
    return option_of_setting(
        name,
        kind,
        field.default,
        field.description or name.replace("_", " "),
        allowed="" if allowed == "text" else allowed,
    )


def _let_in(closed: bool, quoted: str) -> str:
    if not closed:
        return "each of them may read and change everything."
    return f"""they need tokens, because the folder holds access rules:
`ledgermq token create NAME --target {quoted}` makes one, LEDGERMQ_SECURITY=open lets every program in."""


def _welcome(node: Node, admin: int | None, folder: str, url: str) -> str:
    quoted, address = shlex.quote(folder), node.address
    target = "" if address == f"127.0.0.1:{PORT}" else f" --target {address}"
    watching = "" if admin is None else f"  ledgermq top{'' if admin == ADMIN_PORT else f' localhost:{admin}'}\n"
    kafka = "" if node.kafka_address is None else f"\nKafka clients: bootstrap.servers = {node.kafka_address}\n"
    return f"""\
LedgerMQ is ready at {address}; all its data is in {folder}/. Ctrl-C stops it.
Only programs on this machine reach it, and {_let_in(node.broker.door.closed, quoted)}

In another terminal:
  ledgermq topic create hello --partitions 4{target}
  echo "first message" | ledgermq produce hello{target}
  ledgermq consume hello --from earliest --until-end{target}
  ledgermq compact {quoted}
  python -c "import sys, pyarrow.dataset as d; print(d.dataset(sys.argv[1]).to_table())" {quoted}/parquet
{watching}{kafka}
In Python:
  import ledgermq.sync
  with ledgermq.sync.connect("{address}") as client:  # or, without any broker: "{url}"
      print(client.list_topics())
"""

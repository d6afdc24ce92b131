"""The LEDGERMQ_… variables of the environment: check that each exists, and suggest a name for a
mistyped one.

Brokers, the compaction service and the command line read the same environment, so they refuse the
same names. The settings of processes are variables, too; their package registers their names.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ledgermq.errors import InvalidConfig
from ledgermq.hints import nearest

PREFIX = "LEDGERMQ_"
SEE = "docs/settings.md lists all variables"
COMMAND_LINE = frozenset({"CONFIG", "ROOT", "TARGET", "DEBUG", "COMPLETE"})
"""Variables of the command line and of clients that are not settings of processes."""
TLS = ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name")
CLIENT = (*TLS, "token", "token_file", "tracing")
"""Settings that clients read, from variables and from the file. Brokers have the files of TLS, too."""
COMPOSE = frozenset({"TAG", "SETTINGS"})
"""Variables of infra/compose/.env, which people export as well."""
TESTS = frozenset({"HELM", "MARIADB", "MINIO", "POSTGRES", "SEEDS", "POWER_CUTS"})
"""Variables of the project's own tests."""
TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
CLOSE = 0.8
"""How similar a variable must be to one of the command line's to be refused when the settings of
processes are not registered.
"""

_KUBERNETES = re.compile(r"(.+_)?SERVICE_(HOST|PORT(_.+)?)|(.+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")
"""Variables that Kubernetes sets in every pod for services whose names begin with "ledgermq":
LEDGERMQ_PORT=tcp://… and similar.
"""

_settings: set[str] = set()
_removed: dict[str, str] = {}
_loaders: list[Callable[[], object]] = []


def add_settings(names: Iterable[str], removed: Mapping[str, str]) -> None:
    """Register the names of processes' settings, in lower case, and the removed names with their
    replacements. Not called if their package is not installed.
    """
    _settings.update(names)
    _removed.update(removed)


def add_loader(load: Callable[[], object]) -> None:
    """Call `load`, which registers the settings of packages that are not imported yet, before the names count."""
    _loaders.append(load)


def load_settings() -> None:
    """Import what registers settings. It costs the imports of a broker, so only a name that is not known needs it."""
    while _loaders:
        _loaders.pop()()


def from_settings_file(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the TOML file of LEDGERMQ_CONFIG holds; nothing if the variable is not set. Raises
    InvalidConfig if it cannot be read.
    """
    path = environment.get(f"{PREFIX}CONFIG", "")
    if not path:
        return {}
    try:
        return dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidConfig(f"settings file {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"settings file {path}: {error}") from error


def switch_of(name: str, value: object) -> bool:
    """Return the truth of a variable, or of an entry of the file. Raises InvalidConfig."""
    if isinstance(value, bool):
        return value
    found = TRUTHS.get(str(value).strip().lower())
    if found is None:
        raise InvalidConfig(f"setting {name} is true or false, not {value!r}")
    return found


def is_of_kubernetes(name: str, value: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or _KUBERNETES_VALUE.match(value))


def check_variables(settings: Iterable[str] | None = None, removed: Mapping[str, str] | None = None) -> None:
    """Check the LEDGERMQ_… variables of the environment.

    `settings`, `removed`: names of existing and of removed settings of processes; None: the
    registered ones.

    Raises InvalidConfig for an unknown variable, even an empty one, with the nearest known name;
    and for a removed setting, with its replacement.
    """
    if settings is None and any(
        name.startswith(PREFIX) and name.removeprefix(PREFIX) not in COMMAND_LINE for name in os.environ
    ):
        load_settings()
    names = set(_settings if settings is None else settings)
    gone = _removed if removed is None else removed
    known = {*COMMAND_LINE, *(name.upper() for name in (*CLIENT, *names))}
    for variable, value in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known | COMPOSE | TESTS or name.startswith("_") or is_of_kubernetes(name, value):
            continue
        if name.lower() in gone:
            raise InvalidConfig(f"{variable}: setting {name.lower()!r} was removed: {gone[name.lower()]}")
        near = nearest(name, known) if names else nearest(name, known, CLOSE)
        if near or names:
            raise InvalidConfig(f"unknown variable {variable}; {f'did you mean {PREFIX}{near}?' if near else SEE}")

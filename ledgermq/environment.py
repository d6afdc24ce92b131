"""The LEDGERMQ_… variables of the environment: which exist, and which one a mistyped name probably
means.

Brokers, the compaction service and the command line read the same environment, so they refuse the
same names. The settings of processes are variables, too; their package adds their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from ledgermq.errors import InvalidConfig
from ledgermq.hints import nearest

PREFIX = "LEDGERMQ_"
SEE = "docs/settings.md has them all"
COMMAND_LINE = frozenset({"CONFIG", "ROOT", "TARGET", "DEBUG", "COMPLETE"})
"""Variables of the command line, which are no settings."""
COMPOSE = frozenset({"TAG", "SETTINGS"})
"""Those of infra/compose/.env, which people export as well."""
TESTS = frozenset({"MINIO", "SEEDS", "POWER_CUTS"})
"""Those that the project's own tests are run with."""
CLOSE = 0.8
"""How much a variable must be like one of the command line's to be refused where the settings of
processes are not known.
"""

_KUBERNETES = re.compile(r"(.+_)?SERVICE_(HOST|PORT(_.+)?)|(.+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")
"""What Kubernetes puts into every pod for services whose names begin with "ledgermq":
LEDGERMQ_PORT=tcp://… and its like.
"""

_settings: set[str] = set()
_removed: dict[str, str] = {}


def add_settings(names: Iterable[str], removed: Mapping[str, str]) -> None:
    """Register the names of processes' settings, in small letters, and the names that were removed,
    with what to do without them. Not called where their package is not installed.
    """
    _settings.update(names)
    _removed.update(removed)


def is_of_kubernetes(name: str, value: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or _KUBERNETES_VALUE.match(value))


def check_variables(settings: Iterable[str] | None = None, removed: Mapping[str, str] | None = None) -> None:
    """`settings`, `removed`: names of the settings of processes, those that exist and those that are
    gone; None: those that were added.

    Raises InvalidConfig for a variable that does not exist, with the nearest one that does, also
    where it is set to nothing; for a setting that is gone, with what to do.
    """
    names = set(_settings if settings is None else settings)
    gone = _removed if removed is None else removed
    known = {*COMMAND_LINE, *(name.upper() for name in names)}
    for variable, value in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known | COMPOSE | TESTS or name.startswith("_") or is_of_kubernetes(name, value):
            continue
        if name.lower() in gone:
            raise InvalidConfig(f"{variable}: setting {name.lower()!r} was removed: {gone[name.lower()]}")
        near = nearest(name, known) if names else nearest(name, known, CLOSE)
        if near or names:
            raise InvalidConfig(f"unknown variable {variable}; {f'did you mean {PREFIX}{near}?' if near else SEE}")

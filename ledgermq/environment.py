"""The LEDGERMQ_… variables of the environment: which there are, and which a mistyped one was
probably meant to be.

Brokers, the compaction service and the command line read the same environment, so they agree on
what is unknown. The settings of processes are variables, too; the package that has them adds their
names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

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


def add_settings(names: Iterable[str]) -> None:
    """Names of settings of processes, in small letters.

    Empty where their package is not installed.
    """
    _settings.update(names)


def is_of_kubernetes(name: str, value: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or _KUBERNETES_VALUE.match(value))


def check_variables(settings: Iterable[str] | None = None) -> None:
    """`settings`: names of the settings of processes; None: those that were added.

    Raises InvalidConfig for a variable that does not exist, with the nearest one that does; for one
    that is set to nothing, too.
    """
    names = set(_settings if settings is None else settings)
    known = {*COMMAND_LINE, *(name.upper() for name in names)}
    for variable, value in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known | COMPOSE | TESTS or name.startswith("_") or is_of_kubernetes(name, value):
            continue
        near = nearest(name, known) if names else nearest(name, known, CLOSE)
        if near or names:
            raise InvalidConfig(f"unknown variable {variable}; {f'did you mean {PREFIX}{near}?' if near else SEE}")

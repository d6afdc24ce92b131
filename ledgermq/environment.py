"""The LEDGERMQ_… variables of the command line: their names, and a check for names that are nearly one of them.

One environment may serve commands and brokers, so the command line does not refuse every name that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.errors import InvalidConfig
from ledgermq.hints import nearest

PREFIX = "LEDGERMQ_"
COMMAND_VARIABLES = frozenset({"CONFIG", "ROOT", "TARGET", "DEBUG", "COMPLETE"})
"""Without the prefix. No settings of brokers are among them."""
MISTYPED = 0.8
"""So alike, from 0 to 1, is a name that was mistyped. No setting of a broker is as near to a name of the command line."""


def check_variables(environment: Mapping[str, str]) -> None:
    """Raises InvalidConfig for a variable that is nearly one of the command line."""
    for variable in environment:
        name = variable.removeprefix(PREFIX)
        if name == variable or name in COMMAND_VARIABLES:
            continue
        if near := nearest(name, COMMAND_VARIABLES, MISTYPED):
            raise InvalidConfig(f"unknown variable {variable}; did you mean {PREFIX}{near}?")

"""`ledgermq` with other constants than operators get: `--constant-NAME=VALUE` anywhere among its
arguments.

NAME is a field of `BrokerConstants`, of `TransactionLimits` or of `TimerLimits`, or `calls_max`, with hyphens. One
that several have is set in each.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial

import stateless_broker.broker
import stateless_broker.node
import stateless_broker.settings
from ledgermq.cli.main import main
from stateless_broker.settings import BrokerConstants
from timers.limits import TimerLimits
from transactions.limits import TransactionLimits

LEDGERMQ_WITH_CONSTANTS = (sys.executable, "-P", __file__)
"""The command; -P, because this folder has names of packages in it."""
FLAG = "--constant-"


def replace_constants(values: dict[str, int]) -> None:
    if calls_max := values.pop("calls_max", 0):
        stateless_broker.node.CALLS_MAX = calls_max
    transactions, timers = taken_by(TransactionLimits, values), taken_by(TimerLimits, values)
    others = {name: value for name, value in values.items() if name not in transactions and name not in timers}
    unknown = others.keys() - {field.name for field in fields(BrokerConstants)}
    assert not unknown, f"no constants of brokers: {unknown}"
    made = partial(
        BrokerConstants,
        **others,  # type: ignore[arg-type]
        transactions=TransactionLimits(**transactions),
        timers=TimerLimits(**timers),
    )
    for module in (stateless_broker.broker, stateless_broker.settings):
        module.BrokerConstants = made  # type: ignore[assignment,misc]


def taken_by(limits: type[TransactionLimits | TimerLimits], values: dict[str, int]) -> dict[str, int]:
    return {field.name: values[field.name] for field in fields(limits) if field.name in values}


def take_constants() -> None:
    """Out of the arguments of this process."""
    pairs = [argument.removeprefix(FLAG).partition("=") for argument in sys.argv if argument.startswith(FLAG)]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if not argument.startswith(FLAG)]
    replace_constants({name.replace("-", "_"): int(value) for name, _, value in pairs})


if __name__ == "__main__":
    take_constants()
    main()

"""`ledgermq` with other constants than operators get: `--constant-NAME=VALUE` anywhere among its
arguments.

NAME is a field of `BrokerConstants`, of `TransactionLimits` or of `TimerLimits`, or `calls_max`, or `keys_fetched_s`
(of an identity provider), with hyphens. One that several have is set in each.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial

import ledgermq_broker.access.identity.jwt
import ledgermq_broker.composition
import ledgermq_broker.node
import ledgermq_broker.settings.brokers
from ledgermq.cli.main import main
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.transactions.state.limits import TransactionLimits

LEDGERMQ_WITH_CONSTANTS = (sys.executable, "-P", __file__)
"""The command; -P, because this folder has names of packages in it."""
FLAG = "--constant-"


def replace_constants(values: dict[str, int]) -> None:
    if calls_max := values.pop("calls_max", 0):
        ledgermq_broker.node.CALLS_MAX = calls_max
    if keys_fetched_s := values.pop("keys_fetched_s", 0):
        ledgermq_broker.access.identity.jwt.FETCHED_AGAIN_AFTER_S = keys_fetched_s
    transactions, timers = taken_by(TransactionLimits, values), taken_by(TimerLimits, values)
    others = {name: value for name, value in values.items() if name not in transactions and name not in timers}
    unknown = others.keys() - {field.name for field in fields(BrokerConstants)}
    assert not unknown, f"no constants of brokers: {unknown}"
    made = partial(
        BrokerConstants,
        **others,  # type: ignore[arg-type]
        limits=(TransactionLimits(**transactions), TimerLimits(**timers)),
    )
    for module in (ledgermq_broker.composition, ledgermq_broker.settings.brokers):
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

"""Decide whether a client traces, and whether it measures, and make its `Tracing` and `ClientMetrics`. OpenTelemetry
is imported only if it does.

The settings `tracing` and `metrics` decide; without one the variable LEDGERMQ_TRACING or LEDGERMQ_METRICS, then its
name in the TOML file that LEDGERMQ_CONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ledgermq.environment import PREFIX, from_settings_file, switch_of
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics
    from ledgermq.telemetry.tracing import ParentOfCalls, Tracing

INSTALL = 'install OpenTelemetry: pip install "ledgermq[otel]"'


def chosen_switch(name: str, given: bool | None, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether "tracing" or "metrics" is on. `given`: the setting. Raises InvalidConfig."""
    if given is not None:
        return given
    variables = os.environ if environment is None else environment
    value = variables.get(PREFIX + name.upper()) or from_settings_file(variables).get(name, False)
    return switch_of(name, value)


def make_tracing(is_on: bool, parent: ParentOfCalls, now_us: Callable[[], int]) -> Tracing | None:
    """Return the tracing of a client, or of a broker; None: it is off. Raises InvalidConfig if OpenTelemetry is not
    installed.
    """
    if not is_on:
        return None
    try:
        from ledgermq.telemetry.tracing import Tracing
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"tracing: {what_to_do(error, INSTALL)}") from error
    return Tracing(now_us, parent)


def make_metrics(is_on: bool) -> ClientMetrics | None:
    """Return the metrics of a client; None: they are off. Raises InvalidConfig if OpenTelemetry is not installed."""
    if not is_on:
        return None
    try:
        from ledgermq.telemetry.client_metrics import shared_metrics
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"metrics: {what_to_do(error, INSTALL)}") from error
    return shared_metrics()

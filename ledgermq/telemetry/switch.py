"""Decide whether a client traces, and make its `Tracing`. OpenTelemetry is imported only if it does.

The setting `tracing` decides; without it the variable LEDGERMQ_TRACING, then `tracing` in the TOML file that
LEDGERMQ_CONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ledgermq.environment import PREFIX, from_settings_file, switch_of
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import ParentOfCalls, Tracing

INSTALL = 'install OpenTelemetry: pip install "ledgermq[otel]"'


def chosen_tracing(given: bool | None, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether to trace. `given`: the setting. Raises InvalidConfig."""
    if given is not None:
        return given
    variables = os.environ if environment is None else environment
    value = variables.get(f"{PREFIX}TRACING") or from_settings_file(variables).get("tracing", False)
    return switch_of("tracing", value)


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

"""Every default of a setting is what its page promised, by literals (`promised_defaults`)."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

import pytest

from ledgermq.client.groups.handlers.handler import handler_settings
from ledgermq.client.queues.runner import queue_handler_settings
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import (
    ClientSettings,
    ConsumerSettings,
    GroupSettings,
    QueueSettings,
    TableSettings,
    settings_from,
)
from ledgermq_broker.settings.processes import KINDS
from ledgermq_ledger.topics.settings import TopicSettings
from tests.unit.promised_defaults import DEFAULTS, NOT_SET
from tests.unit.test_every_setting import ALL

UNSET = (None, "", MISSING)
SDK = {
    "client": ClientSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
    "table": TableSettings,
    "group": GroupSettings,
    "queue": QueueSettings,
}


def made(kind: str) -> Any:
    """Return the settings of a program that chooses none."""
    if kind == "handler":
        return handler_settings("t", "g", {})
    if kind == "queue handler":
        return queue_handler_settings("t", "g", {})
    return settings_from(SDK[kind], {})


def found(kind: str, name: str) -> Any:
    if kind == "topic":
        return getattr(TopicSettings(), name.replace(".", "_"))
    if kind == "process":
        return next(of.model_fields[name].default for of in KINDS if name in of.model_fields)
    return getattr(made(kind), name)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in DEFAULTS for name in DEFAULTS[kind]])
def test_a_default_is_the_promised_one(kind: str, name: str) -> None:
    promised, default = DEFAULTS[kind][name], found(kind, name)
    if promised is NOT_SET:
        assert default in UNSET
    else:
        assert (default, type(default)) == (promised, type(promised))


@pytest.mark.parametrize("kind", DEFAULTS)
def test_every_setting_has_its_default_here(kind: str) -> None:
    assert sorted(DEFAULTS[kind]) == sorted(ALL[kind]), "add the setting to tests/unit/promised_defaults.py"


OF_ITS_OWN = {("table", "deliver_expired"): True}
"""docs/expiry.md: a table returns the newest message of each key, whether it has expired or not."""


@pytest.mark.parametrize("kind", ["group", "table"])
def test_members_and_tables_have_the_defaults_of_consumers(kind: str) -> None:
    settings = made(kind)
    for name, of_consumers in DEFAULTS["consumer"].items():
        promised, default = OF_ITS_OWN.get((kind, name), of_consumers), getattr(settings, name)
        assert (default in UNSET) if promised is NOT_SET else default == promised, name

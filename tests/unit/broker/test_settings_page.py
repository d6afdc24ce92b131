"""docs/settings.md is made from the code and complete."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ledgermq.client.groups.handlers.handler import HandlerSettings
from ledgermq.client.queues.runner import QueueHandlerSettings
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import (
    ClientSettings,
    ConsumerSettings,
    GroupSettings,
    QueueSettings,
    TableSettings,
)
from ledgermq_broker.settings.processes import NAMES
from ledgermq_ledger.topics import settings as topic_settings
from ledgermq_tools.broker.settings_page import page, unit_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make pages"


def test_every_setting_of_everything_is_there_with_a_meaning() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    named = {line.split("`")[1] for line in rows}
    kinds: tuple[type, ...] = (
        ClientSettings,
        ProducerSettings,
        ConsumerSettings,
        GroupSettings,
        HandlerSettings,
        TableSettings,
    )
    kinds += (QueueSettings, QueueHandlerSettings)
    clients = {field.name for kind in kinds for field in fields(kind)} - {"topics", "group", "consumer", "queue"}
    assert named == set(NAMES) | set(topic_settings.NAMES) | clients
    assert all(len(line.rstrip("| ").rpartition("|")[2].strip()) > 4 for line in rows)


def test_units_are_read_from_names() -> None:
    found = [
        unit_of(name)
        for name in (
            "fetch_wait_ms_max",
            "cache_bytes_max",
            "retention.ms",
            "backoff_ms_first",
            "host",
            "max.message.bytes",
        )
    ]
    assert found == ["ms", "bytes", "ms", "ms", "", "bytes"]

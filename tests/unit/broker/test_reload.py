"""SIGHUP's decision: what is live is taken, what is not is refused by name, a wrong file changes
nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledgermq_broker.process.reload import LiveSettings, decide
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import load_settings


def test_live_settings_are_taken_and_others_refused() -> None:
    before = BrokerSettings(flush_spacing_ms=5, port=1)
    change = decide(before, BrokerSettings(flush_spacing_ms=50, port=2, log_level="debug"))
    assert (set(change.taken), change.refused) == ({"flush_spacing_ms", "log_level"}, ("port",))
    assert change.settings == BrokerSettings(flush_spacing_ms=50, port=1, log_level="debug")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text("flush_spacing_ms = 5\n")
    return path


def test_a_reload_applies_what_is_in_force_and_logs_by_name(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    applied: list[BrokerSettings] = []
    live = LiveSettings(load_settings(file), lambda: load_settings(file), applied.append)
    file.write_text("flush_spacing_ms = 7\nbundles = 9\nport = 1234\n")
    live.reload()
    assert [(found.flush_spacing_ms, found.bundles, found.port) for found in applied] == [(7, 5, 9650)]
    refused = [record.__dict__["setting"] for record in caplog.records if record.msg == "setting needs a restart"]
    assert refused == ["port", "bundles"]
    live.reload()
    assert len(applied) == 1, "nothing is new"
    assert [r.__dict__["setting"] for r in caplog.records if r.msg == "setting needs a restart"] == [
        "port",
        "bundles",
    ] * 2


def test_a_flag_stays_above_the_file(file: Path) -> None:
    applied: list[BrokerSettings] = []
    live = LiveSettings(
        load_settings(file, flush_spacing_ms=1), lambda: load_settings(file, flush_spacing_ms=1), applied.append
    )
    file.write_text("flush_spacing_ms = 7\n")
    live.reload()
    assert (applied, live.in_force.flush_spacing_ms) == ([], 1)


@pytest.mark.parametrize("text", ["flush_spacing_ms = 'x'", "flush = 1", "= ="])
def test_a_file_that_is_wrong_changes_nothing(file: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveSettings(
        load_settings(file), lambda: load_settings(file), lambda _: pytest.fail("nothing may be applied")
    )
    file.write_text(text)
    live.reload()
    assert live.in_force.flush_spacing_ms == 5
    assert [record.msg for record in caplog.records] == ["settings not reloaded"]

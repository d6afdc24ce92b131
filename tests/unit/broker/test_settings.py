"""Settings: flags before environment before file before defaults; whatever is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text('port = 1111\nhost = "0.0.0.0"\nflush_spacing_ms = 25\n')
    return path


def test_flags_before_environment_before_file_before_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_PORT", "2222")
    monkeypatch.setenv("LEDGERMQ_HOST", "127.0.0.9")
    found = load_settings(file, host="10.0.0.1", port=None)
    assert (found.host, found.port, found.flush_spacing_ms, found.default_partitions) == ("10.0.0.1", 2222, 25, 4)


def test_variables_of_other_purposes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_TARGET", "localhost:1")
    assert load_settings().port == 9650


def test_variables_that_kubernetes_sets_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_PORT", "tcp://10.0.0.1:9650")
    assert load_settings().port == 9650


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting 'prot'; did you mean 'port'"),
        ("port = 'many'", "setting port"),
        ("port = 70000", "setting port"),
        ("bundles = 1", "setting bundles"),
        ("log_format = 'xml'", "setting log_format"),
        ("broker_id = '../x'", "setting broker_id"),
        ("= 3", "broker.toml"),
    ],
)
def test_an_error_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        load_settings(path)


def test_a_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        load_settings(tmp_path / "none.toml")


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'flush_bytes'"):
        load_settings(flush_byte=1)


def test_the_store_decides_what_is_not_set() -> None:
    settings = load_settings()
    assert (settings.flush_spacing_s("file:///x"), settings.flush_spacing_s("s3://b/p")) == (0, 0.1)
    assert settings.heartbeat_interval_s("s3://b/p") > settings.heartbeat_interval_s("memory://x")
    assert load_settings(flush_spacing_ms=0).flush_spacing_s("s3://b/p") == 0


def test_every_setting_is_documented_and_carries_its_unit() -> None:
    for name, field in BrokerSettings.model_fields.items():
        assert field.description or name in ("log_format", "log_level"), name
        if field.annotation is int and field.description and "time" in field.description.lower():
            assert name.endswith(("_ms", "_ms_max", "_slots", "_max", "_window")), name

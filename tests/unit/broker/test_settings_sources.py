"""Where settings come from: unknown names anywhere are refused with the nearest, secrets never
show.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from ledgermq.errors import InvalidConfig
from ledgermq_broker.embedded import embedded_settings
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import KINDS, LIVE, NAMES, load_compaction_settings, load_settings
from ledgermq_broker.settings.sources import STARS, read_sources, settle, shown


class WithSecret(BaseSettings):
    password: SecretStr | None = Field(None, min_length=8)
    size_bytes: int = 5


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_FLUSH_SPACING", "5")
    with pytest.raises(
        InvalidConfig, match="unknown variable LEDGERMQ_FLUSH_SPACING; did you mean LEDGERMQ_FLUSH_SPACING_MS"
    ):
        load_settings()


def test_a_port_that_is_no_setting_is_refused_unless_kubernetes_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_ADMN_PORT", "udp://10.0.0.1:53")
    load_settings()
    monkeypatch.setenv("LEDGERMQ_ADMN_PORT", "9651")
    with pytest.raises(InvalidConfig, match="did you mean LEDGERMQ_ADMIN_PORT"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LEDGERMQ_PORT", "tcp://10.0.0.1:9650"),
        ("LEDGERMQ_PORT_9650_TCP", "tcp://10.0.0.1:9650"),
        ("LEDGERMQ_PORT_9650_TCP_ADDR", "10.0.0.1"),
        ("LEDGERMQ_SERVICE_HOST", "10.0.0.1"),
        ("LEDGERMQ_SERVICE_PORT_ADMIN", "9651"),
        ("LEDGERMQ_ADMIN_PORT", "tcp://10.0.0.1:9651"),
        ("LEDGERMQ_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("LEDGERMQ_MINIO_SERVICE_PORT", "9000"),
    ],
)
def test_variables_that_kubernetes_sets_for_services_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert load_settings() == BrokerSettings()


def test_brokers_start_beside_the_variables_that_make_sets_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = Path(__file__).resolve().parents[3] / "Makefile"
    variables = set(re.findall(r"LEDGERMQ_\w+(?==)", makefile.read_text()))
    assert "LEDGERMQ_MINIO" in variables
    for variable in variables:
        monkeypatch.setenv(variable, "/somewhere")
    assert load_settings() == BrokerSettings()


def test_a_variable_that_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_BROKER_ID", "")
    assert load_settings().broker_id is None


def test_one_file_serves_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text('log_level = "error"\nport = 1\ncompaction_interval_ms = 1000\ndefault_partitions = 7\n')
    broker, compactor = load_settings(file), load_compaction_settings(file)
    assert (broker.log_level, broker.port, broker.default_partitions) == ("error", 1, 7)
    assert (compactor.log_level, compactor.compaction_interval_ms) == ("error", 1000)


def test_every_problem_is_named_at_once_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('flush_bytes = "many"\n')
    monkeypatch.setenv("LEDGERMQ_PORT", "70000")
    with pytest.raises(
        InvalidConfig,
        match=r"setting port: .*not '70000' \(from LEDGERMQ_PORT\); setting flush_bytes: .*\(from the file\)",
    ):
        load_settings(file)


def test_an_embedded_broker_takes_no_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell inside of a broker's container: it would take the broker's place in the
    cluster.
    """
    file = tmp_path / "broker.toml"
    file.write_text('advertised_address = "broker-0:9650"\nport = 9650\nflush_spacing_ms = 7\n')
    monkeypatch.setenv("LEDGERMQ_CONFIG", str(file))
    monkeypatch.setenv("LEDGERMQ_BROKER_ID", "broker-0")
    found = embedded_settings()
    assert (found.broker_id, found.advertised_address, found.port, found.flush_spacing_ms) == (None, None, 0, 7)


def test_settings_made_directly_are_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_PORT", "1")
    assert BrokerSettings().port == 9650


def test_a_secret_shows_as_stars_also_when_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_PASSWORD", "open-sesame")
    found = settle(WithSecret, read_sources([WithSecret], None, {}))
    assert found.password is not None
    assert found.password.get_secret_value() == "open-sesame"
    assert shown(found.password) == STARS
    monkeypatch.setenv("LEDGERMQ_PASSWORD", "sesame")
    with pytest.raises(InvalidConfig) as refused:
        settle(WithSecret, read_sources([WithSecret], None, {}))
    assert "sesame" not in f"{refused.value!r} {refused.value.__cause__!r}"
    assert "password" in str(refused.value)


def test_a_password_in_a_url_shows_as_stars() -> None:
    assert shown("http://user:secret@host/x") == f"http://user:{STARS}@host/x"
    assert shown("http://host:80/x") == "http://host:80/x"


def test_what_is_live_is_a_setting() -> None:
    assert set(NAMES) >= LIVE
    assert not {"host", "port", "bundles", "broker_id"} & LIVE
    assert all(kind.model_fields.keys() <= set(NAMES) for kind in KINDS)

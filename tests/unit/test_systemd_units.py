"""infra/systemd/: the units are valid, and what they may do is little."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_gateway.commands import VARIABLE
from ledgermq_gateway.settings import GatewaySettings

FOLDER = Path(__file__).resolve().parents[2] / "infra" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
EXPOSURE_MAX = 2.0
SYSTEMD = shutil.which("systemd-analyze")


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def hardening(unit: Path) -> str:
    return unit.read_text(encoding="utf-8").split("# Nothing of this machine", 1)[1]


def test_there_is_one_for_each_process() -> None:
    names = ["broker", "compactor", "gateway"]
    assert [unit.name for unit in UNITS] == [f"ledgermq-{name}.service" for name in names]
    assert [values(unit, "ExecStart")[0].split()[1:] for unit in UNITS] == [[name] for name in names]
    assert len({hardening(unit) for unit in UNITS}) == 1


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_process_has_time_to_hand_over(unit: Path) -> None:
    assert int(values(unit, "TimeoutStopSec")[0]) >= BrokerSettings.model_fields["shutdown_ms"].default / 1000 + 3


def test_a_gateway_has_time_to_end_its_streams_and_its_variables_are_settings() -> None:
    unit, settings = FOLDER / "ledgermq-gateway.service", GatewaySettings()
    stop_ms = settings.drain_ms + settings.streams_end_ms + settings.shutdown_ms
    assert int(values(unit, "TimeoutStopSec")[0]) > stop_ms / 1000
    given = dict(pair.split("=") for pair in values(unit, "Environment")[0].split())
    known = {f"{VARIABLE}{each.name.upper()}" for each in fields(GatewaySettings)}
    assert given.keys() <= known
    loaded = {line.partition(":")[0] for line in values(unit, "LoadCredential")}
    assert {file.removeprefix("%d/") for file in given.values()} == loaded


@pytest.mark.skipif(SYSTEMD is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it(unit: Path, tmp_path: Path) -> None:
    """With a program that is there: systemd looks whether the one named exists."""
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE))
    verified = analyze("verify", copy)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = analyze("security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", copy)
    assert rated.returncode == 0, rated.stdout


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

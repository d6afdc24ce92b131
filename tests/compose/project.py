"""The project of infra/compose/ for tests: images from packages, free ports, one fixed name, so
that a run clears up after a killed one.

Everything goes through `docker` and compose as an operator would use them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra import docker, minio
from infra.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "infra" / "compose"
HERE = Path(__file__).resolve().parent
NAME = "ledgermq-test"
BROKERS = ("broker-1", "broker-2", "broker-3")
SERVICES = ("minio", *BROKERS, "compactor", "prometheus")
"""What runs for good; Grafana too, where its image can be had."""
HEALTHY_S_MAX = 300
COMMAND_S_MAX = 600
BUILD_S_MAX = 1800
INTERVAL_MS = "60_000", "3_000"
"""Of the compaction service: as it is in the file, and here."""


class Project:
    """`values`: what .env says."""

    def __init__(self, folder: Path, values: Mapping[str, str], *, name: str = NAME) -> None:
        self.name = name
        self.values = {"COMPOSE_PROJECT_NAME": name, **values}
        self.services = (*SERVICES, "grafana") if docker.has_image(default("GRAFANA_IMAGE")) else SERVICES
        self._env_file = folder / f"{name}.env"
        self._env_file.write_text(filled(self.values))
        command = docker.compose()
        assert command is not None
        self._compose = [*command, "--env-file", str(self._env_file)]

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S_MAX, check: bool = True) -> str:
        """What it printed. Raises RuntimeError with it when it fails, unless `check` is off."""
        return said([*self._compose, *arguments], timeout_s, check)

    def run_once(self, service: str, *variables: str) -> tuple[int, str]:
        """A container of its own of this service with other variables: its exit status and what it
        said.
        """
        options = [part for variable in variables for part in ("-e", variable)]
        done = ran([*self._compose, "run", "-T", "--rm", "--no-deps", *options, service], COMMAND_S_MAX)
        lines = done.stdout.strip().splitlines()
        if lines and lines[-1] == str(done.returncode):  # Compose 1 says it last where it has no terminal to read from
            lines.pop()
        return done.returncode, "\n".join(lines)

    def docker(self, *arguments: str, check: bool = True) -> str:
        return said(["docker", *arguments], COMMAND_S_MAX, check)

    def up(self) -> None:
        """Until every service is healthy."""
        self.compose("up", "-d", "--no-build", *self.services)
        self.wait_healthy(*self.services)

    def admin_token(self) -> str:
        """A token of the super principal, made as docs/operations.md says."""
        page = (ROOT / "docs" / "operations.md").read_text()
        [line] = re.findall(r"^docker compose (exec .*) > admin\.token$", page, re.MULTILINE)
        done = subprocess.run(
            [*self._compose, *shlex.split(line)],
            cwd=FOLDER,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=True,
        )
        return done.stdout.strip()

    def container(self, service: str) -> str:
        """Its id."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        found = self.docker(
            "ps", "-aq", "--no-trunc", *(part for label in labels for part in ("--filter", f"label={label}"))
        ).split()
        assert len(found) == 1, f"{service} has {len(found)} containers"
        return found[0]

    def inspect(self, service: str) -> dict[str, Any]:
        [found] = json.loads(self.docker("inspect", self.container(service)))
        return dict(found)

    def state(self, service: str) -> str:
        """healthy, unhealthy, starting, exited, restarting, …"""
        state = self.inspect(service)["State"]
        return str(state["Health"]["Status"] if state["Status"] == "running" else state["Status"])

    def wait_healthy(self, *services: str) -> None:
        until = time.monotonic() + HEALTHY_S_MAX
        while (states := {service: self.state(service) for service in services}) and set(states.values()) != {
            "healthy"
        }:
            assert time.monotonic() < until, f"not healthy after {HEALTHY_S_MAX} s: {states}"
            time.sleep(0.5)

    def kill_process(self, service: str) -> None:
        """As a crash: not by Docker, which would take it for the operator's will and leave it dead."""
        os.kill(self.inspect(service)["State"]["Pid"], 9)

    def wait_restarted(self, service: str, count_before: int) -> None:
        restarted = f"Docker restarts {service}"
        wait_until(
            lambda: self.inspect(service)["RestartCount"] != count_before, HEALTHY_S_MAX, every_s=0.2, what=restarted
        )
        self.wait_healthy(service)

    def logs(self, service: str) -> str:
        return self.docker("logs", self.container(service))

    def down(self) -> None:
        """Containers, networks and volumes."""
        self.compose("down", "-v", "--remove-orphans", "--timeout", "20", check=False)

    def save_logs(self) -> Path:
        """A new folder with what every container said, and what Docker says of it."""
        folder = Path(tempfile.mkdtemp(prefix="ledgermq-compose-logs-"))
        names = self.docker(
            "ps", "-a", "--format", "{{.Names}}", "--filter", f"label=com.docker.compose.project={self.name}"
        ).split()
        for name in names:
            (folder / f"{name}.log").write_text(self.docker("logs", "--timestamps", name, check=False))
            (folder / f"{name}.json").write_text(self.docker("inspect", name, check=False))
        return folder

    def address(self, variable: str) -> str:
        """host:port of a published port, by the variable that names it."""
        return f"127.0.0.1:{self.values[variable]}"

    @property
    def target(self) -> str:
        return ",".join(self.address(f"BROKER_{number}_PORT") for number in (1, 2, 3))

    @property
    def root_url(self) -> str:
        """The cluster's root as this machine reaches it."""
        return default("LEDGERMQ_ROOT").replace("http://minio:9000", f"http://{self.address('MINIO_PORT')}")

    @property
    def credentials(self) -> dict[str, str]:
        """Of a reader: it changes nothing."""
        return {
            "AWS_ACCESS_KEY_ID": default("READER_ACCESS_KEY"),
            "AWS_SECRET_ACCESS_KEY": self.values["READER_SECRET_KEY"],
        }


def environment() -> dict[str, str]:
    """Variables of this shell would go before those of the file."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("DOCKER_")}


def ran(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    return subprocess.run(command, cwd=FOLDER, env=environment(), timeout=timeout_s, check=False, **output)


def said(command: list[str], timeout_s: float, check: bool) -> str:
    done = ran(command, timeout_s)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def filled(values: Mapping[str, str]) -> str:
    """.env.example with these values: so only what that file names can be set."""
    text = (FOLDER / ".env.example").read_text()
    for name, value in values.items():
        lines = [line for line in text.splitlines() if line.removeprefix("#").startswith(f"{name}=")]
        assert len(lines) == 1, f".env.example does not name {name}"
        text = text.replace(lines[0], f"{name}={value}")
    return text


def default(name: str) -> str:
    """What .env.example shows for a variable."""
    [found] = [line for line in (FOLDER / ".env.example").read_text().splitlines() if line.startswith(f"#{name}=")]
    return found.partition("=")[2]


def values_for_test(folder: Path) -> dict[str, str]:
    """Images from packages, ports that are free, and the settings as they are, but for a quicker
    compaction service.
    """
    base = docker.base_image()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        shutil.copy(HERE / "minio" / "Dockerfile", made)
        for binary in (minio.BINARY, minio.CLIENT):
            shutil.copy(binary.install(), Path(made, binary.name))
        docker.build(f"{NAME}-minio", Path(made), [f"BASE_IMAGE={base}"])
    docker.build(f"{NAME}-prometheus", HERE / "prometheus", [f"BASE_IMAGE={base}"])
    settings = folder / "settings"
    settings.mkdir(mode=0o755)
    text = (FOLDER / "settings" / "ledgermq.toml").read_text()
    assert text.count(f"= {INTERVAL_MS[0]}\n") == 1
    (settings / "ledgermq.toml").write_text(text.replace(*INTERVAL_MS))
    ports = [
        *(f"BROKER_{number}_{kind}" for number in (1, 2, 3) for kind in ("PORT", "ADMIN_PORT")),
        "MINIO_PORT",
        "MINIO_CONSOLE_PORT",
    ]
    return {
        "STORE_ACCESS_KEY": "ledgermq-test",
        "STORE_SECRET_KEY": "ledgermq-test-secret",
        "BROKER_SECRET_KEY": "ledgermq-test-broker",
        "COMPACTOR_SECRET_KEY": "ledgermq-test-compactor",
        "READER_SECRET_KEY": "ledgermq-test-reader",
        "GRAFANA_PASSWORD": "ledgermq-test-secret",
        "BASE_IMAGE": base,
        "MINIO_IMAGE": f"{NAME}-minio",
        "PROMETHEUS_IMAGE": f"{NAME}-prometheus",
        "LEDGERMQ_TAG": "test",
        "LEDGERMQ_SETTINGS": str(settings),
        **{port: str(free_port()) for port in (*ports, "PROMETHEUS_PORT", "GRAFANA_PORT")},
    }


@contextmanager
def certificates() -> Iterator[None]:
    """Where this machine names certificates of its own to trust, the image build trusts them too."""
    named = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    passed = FOLDER / "certificates" / f"{NAME}.pem"
    try:
        if named:
            shutil.copyfile(named, passed)
        yield
    finally:
        passed.unlink(missing_ok=True)

"""TLS of processes: the command line, the admin port, `top`, reload by a broker process."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq.sync
from tests.certificates import Authority, Pair
from tests.e2e.processes import BrokerProcess, BrokerProcesses
from tests.waiting import wait_until

BAD = b"nonsense"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as running:
        yield running


def options(pair: Pair, *more: str) -> list[str]:
    return [f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}", "--log-format=json", *more]


def cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ledgermq.cli.main", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**environment, **variables}
    )


@pytest.mark.slow
def test_the_command_line_takes_options_variables_or_the_file(
    authority: Authority, brokers: BrokerProcesses, tmp_path: Path
) -> None:
    pair, program = authority.issue("broker"), authority.issue("program")
    strict = ("--tls-client-auth=required", f"--tls-client-ca-file={authority.ca}", f"--tls-ca-file={authority.ca}")
    target = ("--target", brokers.start(*options(pair, *strict)).address)

    given = (f"--tls-ca-file={authority.ca}", f"--tls-cert-file={program.cert}", f"--tls-key-file={program.key}")
    assert cli("topic", "create", "orders", *target, *given).returncode == 0

    variables = {
        "LEDGERMQ_TLS": "true",
        "LEDGERMQ_TLS_CA_FILE": str(authority.ca),
        "LEDGERMQ_TLS_CERT_FILE": str(program.cert),
        "LEDGERMQ_TLS_KEY_FILE": str(program.key),
    }
    assert "orders" in cli("topic", "list", *target, **variables).stdout

    file = tmp_path / "ledgermq.toml"
    files = {name.removeprefix("LEDGERMQ_").lower(): value for name, value in variables.items() if "FILE" in name}
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in files.items()))
    assert "orders" in cli("topic", "list", *target, LEDGERMQ_CONFIG=str(file)).stdout

    plain = cli("topic", "list", *target, "--no-tls", LEDGERMQ_CONFIG=str(file))
    assert plain.returncode == 7
    assert "[TLS_FAILED]" in plain.stderr
    assert "accepts TLS only" in plain.stderr
    assert "Handshake" not in plain.stderr  # nothing of gRPC's own
    missing = cli("topic", "list", *target, "--tls-ca-file=/none/ca.pem")
    assert missing.returncode == 2
    assert "ca file /none/ca.pem: No such file or directory" in missing.stderr


def admin_of(broker: BrokerProcess) -> str:
    wait_until(lambda: "admin port open" in broker.text() or broker.process.poll() is not None)
    found = re.search(r'"event": "admin port open".*"port": (\d+)', broker.text())
    assert found is not None, broker.text()
    return f"127.0.0.1:{found[1]}"


def page(address: str, path: str, context: ssl.SSLContext) -> str:
    with urllib.request.urlopen(f"https://{address}{path}", timeout=20, context=context) as answer:
        text: bytes = answer.read()
        return text.decode()


def test_the_admin_port_serves_https(authority: Authority, brokers: BrokerProcesses) -> None:
    """`admin_tls`; `ledgermq top` reads it."""
    broker = brokers.start(*options(authority.issue("broker"), "--admin-port=0", "--admin-tls=on"))
    admin = admin_of(broker)
    assert json.loads(page(admin, "/readyz", authority.tls().context()))["ready"]
    with pytest.raises(OSError, match=r"closed|reset|Remote"):
        urllib.request.urlopen(f"http://{admin}/livez", timeout=20)
    shown = cli("top", admin, "--once", "--interval", "0.2", f"--tls-ca-file={authority.ca}")
    assert "1 of 1 brokers ready" in shown.stdout, shown


def test_the_admin_port_may_ask_for_certificates(
    authority: Authority, brokers: BrokerProcesses, tmp_path: Path
) -> None:
    program, stranger = authority.issue("program"), Authority(tmp_path, "other").issue("program")
    mutual = ("--admin-port=0", "--admin-tls=mutual", f"--tls-client-ca-file={authority.ca}")
    admin = admin_of(brokers.start(*options(authority.issue("broker"), *mutual)))
    assert page(admin, "/livez", authority.tls(program).context()) == "ok\n"
    for tls in (authority.tls(), authority.tls(stranger)):
        with pytest.raises(OSError, match=r"certificate required|unknown ca|reset|closed"):
            page(admin, "/livez", tls.context())


def test_a_process_takes_new_certificates_and_keeps_the_old_ones_when_they_are_bad(
    authority: Authority, brokers: BrokerProcesses
) -> None:
    pair = authority.issue("broker")
    broker = brokers.start(*options(pair, "--admin-port=0", "--admin-tls=on"))
    admin, context = admin_of(broker), authority.tls().context()

    def reloads(outcome: str) -> float:
        found = re.search(
            rf'^ledgermq_tls_reloads_total{{outcome="{outcome}"}} (\S+)$', page(admin, "/metrics", context), re.M
        )
        return float(found[1]) if found else -1.0

    assert (reloads("loaded"), reloads("refused")) == (0.0, 0.0)
    good = pair.cert.read_bytes()
    pair.cert.write_bytes(BAD)
    wait_until(lambda: reloads("refused") == 1.0)
    assert broker.text().count("certificate not reloaded, the former one stays in use") == 1
    [note] = json.loads(page(admin, "/readyz", context))["notes"]
    assert "changed TLS files are not in use" in note
    assert "has no certificate in PEM format" in note
    with ledgermq.sync.connect(broker.address, tls=authority.tls()) as client:
        assert client.list_topics() == []

    renewed = authority.issue("renewed")
    pair.take(renewed)
    wait_until(lambda: reloads("loaded") == 1.0)
    assert json.loads(page(admin, "/readyz", context))["notes"] == []
    host, port = admin.split(":")
    in_use = ssl.get_server_certificate((host, int(port)))
    assert in_use.strip() in renewed.cert.read_text()
    assert in_use.encode() not in good
    with ledgermq.sync.connect(broker.address, tls=authority.tls()) as client:
        assert client.list_topics() == []

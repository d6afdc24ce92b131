"""Plant secrets in a real broker and in commands, and look for them in all that is printed, served, logged
or shown: no text of ours repeats one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import LedgerMQError
from tests.certificates import Authority
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses
from tests.e2e.warm_cli import WarmCommands
from tests.waiting import wait_until

PASSWORD = "planted-password-of-the-key-server"
AWS_SECRET = "planted0secret0access0key0of0the0store00"
SIGNED = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.eyJzdWIiOiJwbGFudGVkIn0.planted-signature-of-a-token"
"""A signed token whose signature nobody has checked."""
PART = 20
"""So many characters of a secret are as bad as all of it."""


class Planted:
    """Secrets by what they are, and the texts in which none may be, by where they came from."""

    def __init__(self) -> None:
        self.secrets = {"password of a URL": PASSWORD, "S3 secret key": AWS_SECRET, "signed token": SIGNED}
        self.texts: dict[str, str] = {}

    def plant_key(self, what: str, file: Path) -> None:
        self.secrets[what] = file.read_text().splitlines()[2]

    def look(self, where: str, text: str) -> None:
        assert text, f"there is nothing to look at: {where}"
        self.texts[where] = text

    def found(self) -> list[str]:
        return [
            f"{what} in {where}: {text[:2000]}"
            for where, text in self.texts.items()
            for what, secret in self.secrets.items()
            if secret[-PART:] in text or secret[:PART] in text
        ]


class Shell:
    """Runs commands by a program that has imported them already, and looks at all that they print."""

    def __init__(self, program: Path, planted: Planted) -> None:
        self._program = program
        self._planted = planted

    def __call__(self, *words: str, code: int = 0, prints_it: bool = False, **variables: str) -> str:
        done = subprocess.run(
            [self._program, *words],
            env=_environment(variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stderr)
        where = f"{len(self._planted.texts)}: {' '.join(words[:2])}, exit code {code}"
        self._planted.look(where, f"stderr: {done.stderr}" + ("" if prints_it else done.stdout))
        return done.stdout


def _environment(variables: dict[str, str]) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    return {**ours, **{f"LEDGERMQ_{name}": value for name, value in variables.items()}}


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with WarmCommands(tmp_path_factory.mktemp("c")) as path:
        yield path


@pytest.mark.slow
async def test_no_text_repeats_a_planted_secret(
    tmp_path: Path, moto_root: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")  # a crash prints its stacks
    keys_url = f"https://fetcher:{PASSWORD}@127.0.0.1:9/keys"  # nobody listens there
    monkeypatch.setenv("LEDGERMQ_JWT_KEYS_URL", keys_url)
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "other")
    pair, own = authority.issue("broker"), authority.issue("program")
    planted = Planted()
    planted.plant_key("private key of the broker", pair.key)
    planted.plant_key("private key of a program", own.key)
    tls = (f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}", f"--tls-ca-file={authority.ca}")
    rules = ("--security=rules", "--super-principals=user:root", "--jwt-issuer=https://login.example")
    audit = tmp_path / "audit.jsonl"
    options = (*QUICK, *ADMIN, *tls, *rules, "--jwt-audience=ledgermq", "--log-level=debug", f"--audit-file={audit}")
    as_a_broker = {"TLS_CERT_FILE": str(own.cert), "TLS_KEY_FILE": str(own.key), "TLS_CA_FILE": str(authority.ca)}
    shell = Shell(program, planted)
    with BrokerProcesses(tmp_path, moto_root, options) as brokers:
        broker = brokers.start()
        admin = AdminPort(broker)
        first = shell("token", "create", "root", "--target", moto_root, prints_it=True, **as_a_broker).strip()
        planted.secrets["token of root"] = first
        _use(shell, planted, first, moto_root, broker, admin, authority, stranger, tmp_path)
        shop = planted.secrets["token of shop"]
        for token in (SIGNED, shop[:-1] + ("A" if shop[-1] != "A" else "B"), f"{shop} and more"):
            await _fail(planted, broker.address, authority, token)
        for page in ("/metrics", "/readyz", "/livez"):
            planted.look(page, admin.get(page)[1])
        planted.look("the broker's command line", _command_line(broker.pid))
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "settings reloaded" in broker.text())
        wait_until(lambda: "keys of the identity provider not fetched" in broker.text())
        os.kill(broker.pid, signal.SIGABRT)
        assert brokers.wait(broker) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in broker.text()
        planted.look("the log, with the trace of the crash", broker.text())
        planted.look("the audit log", audit.read_text())
    assert planted.found() == []


def _use(
    shell: Shell,
    planted: Planted,
    first: str,
    root: str,
    broker: BrokerProcess,
    admin: AdminPort,
    authority: Authority,
    stranger: Authority,
    folder: Path,
) -> None:
    """All that people do with these secrets, right and wrong."""
    at = ("--target", broker.address)
    trusts = {"TLS_CA_FILE": str(authority.ca)}
    shell("topic", "create", "orders", *at, TOKEN=first, **trusts)
    shop = shell("token", "create", "shop", *at, TOKEN=first, prints_it=True, **trusts).strip()
    planted.secrets["token of shop"] = shop
    file = folder / "shop.token"
    file.write_text(shop)
    shell("acl", "grant", "user:shop", "consume", "orders", *at, TOKEN=first, **trusts)
    shell("--token-file", str(file), "topic", "list", *at, **trusts)
    for variables in ({"TOKEN": shop}, {"TOKEN_FILE": str(file)}):
        _running(planted, broker, {**variables, **trusts})

    refused = ("topic", "delete", "orders", "--yes", *at)
    shell(*refused, TOKEN=shop, code=ExitCode.REFUSED, **trusts)
    shell(*refused, "--debug", TOKEN=shop, code=ExitCode.REFUSED, **trusts)
    shell("topic", "list", *at, "--debug", TOKEN=shop, code=ExitCode.REFUSED, TLS_CA_FILE=str(stranger.ca))
    shell("topic", "list", *at, "--debug", TOKEN=f"{shop} x", code=ExitCode.USAGE, **trusts)
    shell("topic", "list", *at, "--debug", TOKEN_FILE=shop, code=ExitCode.USAGE, **trusts)
    shell("topic", "list", *at, "--debug", TOKEN_FILE=SIGNED, code=ExitCode.USAGE, **trusts)
    shell("topic", "list", *at, TOKN=shop, code=ExitCode.USAGE, **trusts)
    plain = f"http://fetcher:{PASSWORD}@login.example/keys"
    settings = {"SECURITY": "rules", "JWT_ISSUER": "https://login.example", "JWT_AUDIENCE": "ledgermq"}
    shell("broker", root, JWT_KEYS_URL=plain, code=ExitCode.USAGE, **settings)
    shell("config", "show", "--output", "json", JWT_KEYS_URL=plain, TOKEN=shop, **settings)
    toml = folder / "settings.toml"
    for text, code in (
        (f'token = "{shop}"', ExitCode.OK),
        (f'token = ["{shop}"]', ExitCode.USAGE),
        (f'token = "{shop}', ExitCode.USAGE),
    ):
        toml.write_text(text + "\n")
        shell("topic", "list", *at, "--debug", CONFIG=str(toml), code=code, **trusts)
        if code is ExitCode.OK:
            shell("config", "show", "--output", "json", CONFIG=str(toml))
    for words in (("status", *at), ("acl", "list", *at), ("token", "list", *at)):
        shell(*words, "--output", "json", TOKEN=first, **trusts)
    shell("top", admin.address, "--once", "--interval", "0.2")
    for words in (("inspect", "cluster", root), ("inspect", "ledger", root, "0"), ("fsck", root)):
        shell(*words, TOKEN=shop)


def _running(planted: Planted, broker: BrokerProcess, variables: dict[str, str]) -> None:
    """Look at a command of a program of its own while it runs."""
    words = ["consume", "orders", "--target", broker.address]
    with subprocess.Popen(
        [sys.executable, "-m", "ledgermq.cli.main", *words],
        env=_environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        wait_until(lambda: "consume" in _command_line(command.pid))
        planted.look(f"command line with {', '.join(variables)}", _command_line(command.pid))
        command.terminate()
        printed, _ = command.communicate(timeout=60)
        planted.look(f"consume with {', '.join(variables)}", f"printed: {printed}")


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


async def _fail(planted: Planted, address: str, authority: Authority, token: str) -> None:
    """A program of the SDK whose token does not count: its error, with all that led to it."""
    try:
        async with ledgermq.connect(address, tls=authority.tls(), token=token, timeout_s=2) as client:
            planted.look(f"a client {len(planted.texts)}", repr(client) + repr(vars(client)))
            await client.list_topics()
    except LedgerMQError as error:
        planted.look(f"an error {len(planted.texts)}", "".join(traceback.format_exception(error)) + repr(error))
        return
    raise AssertionError("a wrong token was taken")

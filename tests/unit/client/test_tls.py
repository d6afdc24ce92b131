"""How a client chooses TLS: the argument, variables, the file; and which files it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import ledgermq
from ledgermq import Tls
from ledgermq.client.settings.tls import Credentials, chosen_tls
from ledgermq.errors import InvalidConfig
from tests.certificates import Authority

CA = {"LEDGERMQ_TLS_CA_FILE": "/ca.pem"}


def test_the_argument_decides_then_variables_then_the_file(tmp_path: Path) -> None:
    given = Tls(ca="/mine.pem")
    assert chosen_tls(given, CA) is given
    assert chosen_tls(False, CA) is None
    assert chosen_tls(None, {}) is None
    assert chosen_tls(True, {}) == Tls()
    assert chosen_tls(True, CA) == Tls(ca="/ca.pem")
    assert chosen_tls(None, CA) == Tls(ca="/ca.pem")
    assert chosen_tls(None, {"LEDGERMQ_TLS": "true"}) == Tls()
    assert chosen_tls(None, {"LEDGERMQ_TLS": "false", **CA}) is None
    file = tmp_path / "ledgermq.toml"
    file.write_text('tls = true\ntls_ca_file = "/file.pem"\nflush_bytes = 1048576\n')
    config = {"LEDGERMQ_CONFIG": str(file)}
    assert chosen_tls(None, config) == Tls(ca="/file.pem")
    assert chosen_tls(None, {**config, **CA}) == Tls(ca="/ca.pem")
    file.write_text('tls = false\ntls_ca_file = "/file.pem"\n')
    assert chosen_tls(None, config) is None
    assert chosen_tls(True, config) == Tls(ca="/file.pem")


def test_wrong_values_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="tls is true or false, not 'perhaps'"):
        chosen_tls(None, {"LEDGERMQ_TLS": "perhaps"})
    with pytest.raises(InvalidConfig, match=r"settings file /none\.toml"):
        chosen_tls(None, {"LEDGERMQ_CONFIG": "/none.toml"})
    with pytest.raises(InvalidConfig, match="cert of Tls needs key"):
        Tls(cert="/cert.pem")
    with pytest.raises(InvalidConfig, match="key of Tls needs cert"):
        Tls(key="/key.pem")
    for name in ("", "host:9650", "a b", "-a", "x" * 254, 7):
        with pytest.raises(InvalidConfig, match="server_name of Tls must be a host name or an IP address"):
            Tls(server_name=name)  # type: ignore[arg-type]
    for name in ("brokers.example", "10.0.0.1", "::1", "fe80::1"):
        assert Tls(server_name=name).server_name == name
    with pytest.raises(InvalidConfig, match="ca of Tls must be the path"):
        Tls(ca=b"bytes")  # type: ignore[arg-type]


def test_files_that_cannot_be_used_are_refused_when_a_client_is_made(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    text = tmp_path / "text"
    text.write_text("nonsense")
    for wrong, why in (
        (Tls(ca=text), f"ca file {text}: no certificate in PEM format is in it"),
        (Tls(ca=tmp_path / "none"), f"ca file {tmp_path / 'none'}: No such file"),
        (Tls(cert=one.cert, key=other.key), f"{other.key} is not the private key of the certificate in {one.cert}"),
        (Tls(cert=text, key=one.key), f"{text} and {one.key} must be a certificate and its private key"),
        (Tls(cert=tmp_path / "none", key=one.key), f"cert file {tmp_path / 'none'}: no such file"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            Credentials(wrong)
        assert why in refused.value.message


async def test_the_setting_is_checked() -> None:
    with pytest.raises(InvalidConfig, match=r"tls must be True, False or a ledgermq\.Tls, not 'yes'"):
        async with ledgermq.connect("localhost:1", tls="yes"):
            pass
    with pytest.raises(InvalidConfig, match="starts one in this process: leave tls out"):
        async with ledgermq.connect("memory://tls", tls=True):
            pass


async def test_changed_files_are_taken_and_bad_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ledgermq.client.settings.tls.LOOK_S", 0.0)
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    credentials = Credentials(authority.tls(pair))
    first = credentials.current()
    assert (credentials.look(), credentials.current()) == (0, first)
    good = pair.cert.read_bytes()
    pair.cert.write_bytes(b"nonsense")
    for _ in range(3):
        assert (credentials.look(), credentials.current()) == (0, first)
    assert caplog.text.count("the changed files are not used") == 1
    pair.cert.unlink()
    assert credentials.look() == 0
    pair.cert.write_bytes(good)
    assert credentials.look() == 1
    assert credentials.current() is not first
    pair.take(authority.issue("renewed"))
    assert credentials.look() == 2

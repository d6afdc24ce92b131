"""Certificate files: which fit together, what an error names, and when changed ones are taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ledgermq.errors import InvalidConfig
from ledgermq_broker.ports.tls import CertificateFiles, check_tls, tls_to_peers
from ledgermq_broker.settings.processes import load_compaction_settings, load_settings
from tests.certificates import Authority, Pair

FILES = {"tls_cert_file": "a", "tls_key_file": "b"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tls_cert_file": "a"}, "setting tls_cert_file needs tls_key_file"),
        ({"tls_key_file": "a"}, "setting tls_key_file needs tls_cert_file"),
        ({"tls_client_auth": "required"}, "setting tls_client_auth = required needs tls_cert_file"),
        ({"admin_tls": "on"}, "setting admin_tls needs tls_cert_file"),
        ({**FILES, "tls_client_auth": "required"}, "tls_client_auth = required needs tls_client_ca_file"),
        ({**FILES, "admin_tls": "mutual"}, "admin_tls = mutual needs tls_client_ca_file"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        check_tls(load_settings(None, **given))
    if "tls_client_auth" not in given:
        with pytest.raises(InvalidConfig, match=why):
            check_tls(load_compaction_settings(None, **given))


def test_settings_that_fit_are_accepted() -> None:
    check_tls(load_settings(None))
    check_tls(load_settings(None, **FILES, tls_client_auth="required", tls_client_ca_file="c", admin_tls="mutual"))


def files_of(pair: Pair, client_ca: Path | None = None) -> CertificateFiles:
    return CertificateFiles(str(pair.cert), str(pair.key), None if client_ca is None else str(client_ca))


def test_a_pair_has_its_times(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    loaded = files_of(authority.issue("broker"), authority.ca).load()
    assert loaded.client_ca == authority.ca.read_bytes()
    assert loaded.problem(loaded.begins) is None
    assert "has expired" in str(loaded.problem(loaded.expires + timedelta(seconds=1)))
    assert "valid only from" in str(loaded.problem(loaded.begins - timedelta(seconds=1)))
    old = files_of(authority.issue("old", expired=True)).load()
    assert "has expired at 2020-01-02" in str(old.problem(datetime.now(UTC)))


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    text = tmp_path / "text"
    text.write_text("nonsense")
    for wrong, why in (
        (Pair(one.cert, other.key), f"tls_key_file {other.key} is not the key of the certificate in {one.cert}"),
        (Pair(text, one.key), f"tls_cert_file {text} has no certificate"),
        (Pair(one.cert, text), f"tls_key_file {text} has no private key"),
        (Pair(tmp_path / "none", one.key), f"tls_cert_file {tmp_path / 'none'}: No such file"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            files_of(wrong).load()
        assert why in refused.value.message
    with pytest.raises(InvalidConfig, match=r"tls_client_ca_file .*text has no certificate"):
        files_of(one, text).load()


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("broker")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    pair.key.write_bytes(locked)
    with pytest.raises(InvalidConfig, match="is encrypted: give a key without a password"):
        files_of(pair).load()


def test_brokers_reach_each_other_as_they_serve(tmp_path: Path) -> None:
    """`tls_ca_file`: of the other brokers."""
    assert tls_to_peers(load_settings(None)) is None
    found = tls_to_peers(load_settings(None, **FILES, tls_ca_file="c"))
    assert found is not None
    assert [str(path) for path in (found.cert, found.key, found.ca)] == ["a", "b", "c"]

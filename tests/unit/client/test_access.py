"""Tokens of clients, and the administration of rules and tokens, with and without asyncio."""

from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

import ledgermq
from ledgermq.client.admin.access import NewToken
from ledgermq.client.connection.credentials import LOOKED_AGAIN_AFTER_S, credential_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.sync.admin.access import Access
from tests.virtual_time import run_virtual

SECRET = "lmq_0123456789ab_" + "s" * 43


def test_the_settings_go_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert credential_of("", "", {}) is None
    for given, environment in (
        (("one", ""), {"LEDGERMQ_TOKEN": "two"}),
        (("", ""), {"LEDGERMQ_TOKEN": "one"}),
    ):
        found = credential_of(*given, environment)
        assert found is not None
        assert found("a:1") == "Bearer one"

    async def of_file() -> None:
        for given, environment in (
            (("", str(file)), {"LEDGERMQ_TOKEN": "two"}),
            (("", ""), {"LEDGERMQ_TOKEN_FILE": str(file)}),
        ):
            found = credential_of(*given, environment)
            assert found is not None
            assert found("a:1") == "Bearer from-file"

    run_virtual(of_file)


def test_the_settings_file_gives_what_nothing_else_does(tmp_path: Path) -> None:
    token_file, settings = tmp_path / "token", tmp_path / "ledgermq.toml"
    token_file.write_text("from-file")
    environment = {"LEDGERMQ_CONFIG": str(settings)}

    async def run() -> None:
        for text, expected in (
            ('token = "in-settings"', "in-settings"),
            (f'token_file = "{token_file}"', "from-file"),
        ):
            settings.write_text(text)
            for given, more, token in (
                (("", ""), {}, expected),
                (("own", ""), {}, "own"),
                (("", ""), {"LEDGERMQ_TOKEN": "variable"}, "variable"),
            ):
                found = credential_of(*given, environment | more)
                assert found is not None
                assert found("a:1") == f"Bearer {token}"
        settings.write_text('tls_ca_file = "ca.pem"')
        assert credential_of("", "", environment) is None

    run_virtual(run)
    for text, says in (
        (f'token = "{SECRET}"\ntoken_file = "b"', r"token or token_file, not both \(from .*ledgermq.toml"),
        (f'token = ["{SECRET}"]', "setting token must be text"),
        (f'token = "{SECRET} and more"', "one word"),
        ('token_file = "/absent/token"', "token file /absent/token: No such file"),
    ):
        settings.write_text(text)
        with pytest.raises(InvalidConfig, match=says) as refused:
            credential_of("", "", environment)
        assert SECRET not in str(refused.value)
    with pytest.raises(InvalidConfig, match="settings file /absent"):
        credential_of("", "", {"LEDGERMQ_CONFIG": "/absent"})


def test_a_file_is_read_again_when_it_changes_and_a_bad_one_leaves_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")

    async def run() -> None:
        found = credential_of("", str(file), {})
        assert found is not None
        assert found("a:1") == "Bearer first"
        for text, expected in (("second!", "second!"), ("", "second!"), ("two words", "second!"), ("third", "third")):
            file.write_text(text)
            await asyncio.sleep(LOOKED_AGAIN_AFTER_S)
            assert found("a:1") == f"Bearer {expected}"
        file.unlink()
        await asyncio.sleep(LOOKED_AGAIN_AFTER_S)
        assert found("a:1") == "Bearer third"

    run_virtual(run)


@pytest.mark.parametrize("token", ["two words", "new\nline", "ümlaut", "x" * 9000])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as refused:
        credential_of(token, "", {})
    assert token not in refused.value.message
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(InvalidConfig, match="token file") as refused:
        credential_of("", str(file), {})
    assert token not in refused.value.message


def test_two_tokens_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="not both"):
        credential_of("a", "b", {})
    with pytest.raises(InvalidConfig, match="LEDGERMQ_TOKEN_FILE"):
        credential_of("", "", {"LEDGERMQ_TOKEN": "a", "LEDGERMQ_TOKEN_FILE": "b"})
    with pytest.raises(InvalidConfig, match="No such file"):
        credential_of("", str(tmp_path / "absent"), {})


@pytest.mark.parametrize("token", [SECRET, "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.signature"])
def test_a_token_in_place_of_a_file_is_not_shown(token: str) -> None:
    with pytest.raises(InvalidConfig, match="path of a file") as refused:
        credential_of("", token, {})
    assert token not in "".join(traceback.format_exception(refused.value))


def test_no_text_of_the_settings_shows_the_token() -> None:
    assert SECRET not in repr(ClientSettings(token=SECRET))
    assert SECRET not in repr(NewToken("id", SECRET))
    with pytest.raises(InvalidConfig) as refused:
        ClientSettings(token=[SECRET])  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


def test_without_asyncio() -> None:
    with ledgermq.sync.connect("memory://access") as client:
        access = client.access
        assert isinstance(access, Access)
        rule_id = access.grant("user:a", ["produce", "consume"], "orders.*")
        denied = access.grant("group:g", "consume", "orders.secret", deny=True)
        assert sorted(str(rule) for rule in access.list()) == [
            "allow user:a consume,produce orders.*",
            "deny group:g consume orders.secret",
        ]
        assert access.test("consume", "orders.eu", principal="user:a").rule_id == rule_id
        assert access.test("consume", "orders.secret", principal="user:a", groups=["g"]).rule_id == denied
        assert access.revoke(denied, "0" * 16) == [denied]
        made = access.create_token("a", groups=["g"], expires_in=timedelta(hours=1))
        [known] = access.list_tokens()
        assert (known.token_id, known.user, known.groups) == (made.token_id, "a", ("g",))
        assert known.expires is not None
        assert known.expires - known.created <= timedelta(hours=1)
        assert access.revoke_token(made.token_id)
        assert not access.revoke_token(made.token_id)
        with pytest.raises(InvalidRequest, match="longer than 0"):
            access.create_token("a", expires_in=timedelta(0))
        with pytest.raises(InvalidRequest, match="did you mean 'produce'"):
            access.grant("user:a", "prodduce", "x")
        with pytest.raises(InvalidRequest, match="no spaces"):
            access.create_token("a b")

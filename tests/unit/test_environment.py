"""Mistyped LEDGERMQ_… variables are refused by every command; those of brokers, and of Kubernetes, are not."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ledgermq.cli.main import build
from ledgermq.environment import check_variables
from ledgermq.errors import InvalidConfig
from stateless_broker.settings import NAMES


@pytest.mark.parametrize("name", ["LEDGERMQ_TARGE", "LEDGERMQ_TARGETS", "LEDGERMQ_DEBG", "LEDGERMQ_ROOTS", "LEDGERMQ_target"])
def test_a_mistyped_variable_is_refused_by_every_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    ended = CliRunner().invoke(build(), ["topic", "list", "--target", "127.0.0.1:1"])
    assert ended.exit_code == 2
    assert f"unknown variable {name}; did you mean LEDGERMQ_" in ended.output.replace("\n", "")


def test_variables_of_others_are_left_alone() -> None:
    check_variables({f"LEDGERMQ_{name.upper()}": "x" for name in NAMES})
    check_variables(
        {"LEDGERMQ_TARGET": "x", "TARGE": "x", "LEDGERMQ_SERVICE_HOST": "x", "LEDGERMQ_PORT_9650_TCP": "x", "LEDGERMQ_MINIO": "x"}
    )
    with pytest.raises(InvalidConfig, match="did you mean LEDGERMQ_TARGET"):
        check_variables({"LEDGERMQ_TARGTE": "x"})

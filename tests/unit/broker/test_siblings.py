"""Broker processes of one command: their own settings, their command lines, when one begins again,
what the command returns.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import InvalidConfig
from ledgermq_broker.process.siblings import (
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    STEADY_S,
    arguments,
    ends_in_a_row,
    exit_code,
    pause_s,
    shares,
)
from ledgermq_broker.process.supervisor import labelled
from ledgermq_broker.settings.processes import load_settings


def of(processes: int = 3, **flags: Any) -> list[dict[str, Any]]:
    return shares(load_settings(**flags), processes)


def test_ports_count_up() -> None:
    assert of(port=9650) == [{"port": 9650}, {"port": 9651}, {"port": 9652}]


def test_free_ports_stay_free_ports() -> None:
    assert of(2, port=0, admin_port=0) == [{"port": 0, "admin_port": 0}] * 2


def test_admin_ports_addresses_and_ids_are_their_own() -> None:
    flags = {
        "port": 9650,
        "admin_port": 9750,
        "broker_id": "left",
        "advertised_address": "far:19650",
        "peer_address": "[::1]:9650",
    }
    first, second = of(2, **flags)
    assert first == {
        "port": 9650, "admin_port": 9750, "broker_id": "left-0",
        "advertised_address": "far:19650", "peer_address": "[::1]:9650",
    }  # fmt: skip
    assert second == {
        "port": 9651, "admin_port": 9751, "broker_id": "left-1",
        "advertised_address": "far:19651", "peer_address": "[::1]:9651",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"port": 9650, "admin_port": 9651}, "9650 and 9653 would do"),
        ({"port": 9652, "admin_port": 9650}, "too near"),
        ({"port": 65534}, "need port 65536"),
        ({"port": 9650, "admin_port": 65535}, "admin_port 65535 on need port 65537"),
        ({"port": 0, "advertised_address": "far:9650"}, "port 0 does not"),
        ({"port": 9650, "advertised_address": "far"}, "host:port, not 'far'"),
    ],
)
def test_what_cannot_be_counted_up_is_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        of(**flags)


@given(st.integers(1, 65535), st.none() | st.integers(0, 65535), st.integers(2, 64))
def test_no_port_is_given_twice(port: int, admin_port: int | None, processes: int) -> None:
    try:
        found = of(processes, port=port, admin_port=admin_port)
    except InvalidConfig:
        return
    given_out = [number for share in found for name in ("port", "admin_port") if (number := share.get(name))]
    assert len(set(given_out)) == len(given_out) == processes * (2 if admin_port else 1)
    assert max(given_out) <= 65535


def test_settings_as_options_say_the_same_again() -> None:
    flags = {
        "port": 9651,
        "background_compaction": False,
        "auto_create_topics": True,
        "flush_bytes": None,
        "broker_id": "-x",
    }
    assert arguments(flags) == ["--port=9651", "--no-background-compaction", "--auto-create-topics", "--broker-id=-x"]


def test_the_pause_doubles_up_to_its_bound() -> None:
    assert [pause_s(ends) for ends in (1, 2, 3, 4)] == [PAUSE_S_FIRST, 1.0, 2.0, 4.0]
    assert pause_s(7) == pause_s(10_000) == PAUSE_S_MAX


def test_a_long_life_is_a_new_beginning() -> None:
    assert ends_in_a_row(0, 0.1) == 1
    assert ends_in_a_row(5, STEADY_S - 0.1) == 6
    assert ends_in_a_row(5, STEADY_S) == 1


def test_the_command_returns_what_was_worst() -> None:
    assert exit_code([]) == exit_code([0, 0]) == 0
    assert exit_code([0, 3]) == 3
    assert exit_code([0, -9, 2]) == 137


def test_lines_carry_the_number_of_their_process() -> None:
    assert labelled(b"broker listens", 2, as_json=False) == b"[2] broker listens\n"
    assert labelled(b'{"event": "x"}', 2, as_json=True) == b'{"process_number": 2, "event": "x"}\n'
    assert labelled(b"broker listens", 0, as_json=True) == b"[0] broker listens\n"

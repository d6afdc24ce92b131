"""Settings and targets: the nearest name for a wrong one, a reason for a wrong value."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ledgermq
from ledgermq.client.connection import target
from ledgermq.client.connection.target import is_root_url, parse_addresses
from ledgermq.client.consuming.start import check_start
from ledgermq.client.groups.handlers.handler import handler_settings
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import ClientSettings, ConsumerSettings, GroupSettings, settings_from
from ledgermq.errors import InvalidConfig, InvalidTopicName, LedgerMQError, Unavailable
from tests.waiting import WAIT_S_MAX, until


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'delivery_timeout_s'"):
        settings_from(ProducerSettings, {"delivery_timeout": 5})
    with pytest.raises(InvalidConfig, match="did you mean 'timeout_s'"):
        settings_from(ClientSettings, {"timeout": 5})


def test_a_handler_lists_its_own_settings_and_those_of_its_consumer() -> None:
    with pytest.raises(
        InvalidConfig,
        match=r"a handler has no setting 'max_attempts'; it takes concurrency, .*on_failure, .*session_timeout_s",
    ):
        handler_settings("t", "g", {"max_attempts": 5})
    with pytest.raises(InvalidConfig, match=r"no setting 'concurency' \(did you mean 'concurrency'\?\)"):
        handler_settings("t", "g", {"concurency": 5})
    assert handler_settings("t", "g", {"session_timeout_s": 30.0, "start": "latest", "concurrency": 2}).concurrency == 2


def test_what_is_told_of_trouble_is_a_function() -> None:
    with pytest.raises(InvalidConfig, match="on_trouble"):
        settings_from(ClientSettings, {"on_trouble": "print"})


async def test_trouble_is_told_while_a_call_waits() -> None:
    told: list[LedgerMQError | None] = []

    def refusals() -> list[LedgerMQError]:
        return [error for error in told if error is not None and error.message.endswith(": connection refused")]

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with ledgermq.connect(address, timeout_s=WAIT_S_MAX, on_trouble=told.append) as client:
            calling = asyncio.create_task(client.list_topics())
            await until(refusals)
            assert not calling.done()
            calling.cancel()
            await asyncio.wait([calling])
    assert all(isinstance(error, Unavailable) for error in refusals())


def test_a_setting_like_no_other_lists_them_all() -> None:
    with pytest.raises(InvalidConfig, match="auto_offset_reset, "):
        settings_from(ConsumerSettings, {"xyzzy": 5})


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (ProducerSettings, {"acks": "all"}),
        (ProducerSettings, {"linger_ms": -1}),
        (ProducerSettings, {"window_batches": 6}),
        (ProducerSettings, {"compression": "gzip"}),
        (ProducerSettings, {"delivery_timeout_s": 0}),
        (ProducerSettings, {"buffer_bytes_max": "1"}),
        (ProducerSettings, {"batch_bytes_max": 2**31}),
        (ClientSettings, {"timeout_s": True}),
        (ConsumerSettings, {"auto_offset_reset": "newest"}),
        (ConsumerSettings, {"fetch_bytes_max": 0}),
    ],
)
def test_a_value_out_of_range_is_refused(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(bad))):
        settings_from(kind, bad)


def test_a_shorter_session_shortens_what_depends_on_it() -> None:
    usual = settings_from(GroupSettings, {})
    assert (usual.longest_heartbeat_s, usual.longest_revoke_s) == (3.0, 30.0)
    short = settings_from(GroupSettings, {"session_timeout_s": 6, "max_poll_interval_s": 10})
    assert (short.longest_heartbeat_s, short.longest_revoke_s) == (2.0, 10.0)
    chosen = settings_from(GroupSettings, {"session_timeout_s": 6, "heartbeat_wait_s": 0.5, "revoke_wait_s": 0})
    assert (chosen.longest_heartbeat_s, chosen.longest_revoke_s) == (0.5, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"session_timeout_s": 6, "heartbeat_wait_s": 3},
            (
                "heartbeat_wait_s (3) is more than a third of session_timeout_s (6): leave heartbeat_wait_s out, or"
                " give at most 2, or "
            ),
        ),
        (
            {"max_poll_interval_s": 10, "revoke_wait_s": 20},
            (
                "revoke_wait_s (20) is more than max_poll_interval_s (10): leave revoke_wait_s out, or give at most"
                " 10, or "
            ),
        ),
        ({"heartbeat_wait_s": 0}, "heartbeat_wait_s must be a number above 0"),
        ({"revoke_wait_s": -1}, "revoke_wait_s must be a number from 0"),
        ({"revoke_wait_s": "1"}, "revoke_wait_s must be a number from 0"),
        ({"revoke_wait_s": float("nan")}, "revoke_wait_s must be a number from 0"),
    ],
)
def test_two_settings_that_do_not_fit_are_both_named_with_what_would_do(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        settings_from(GroupSettings, given)
    assert said in str(raised.value)


def test_addresses_are_parsed() -> None:
    assert parse_addresses("a:1, [::1]:9200 ,c.example:65535") == ["a:1", "[::1]:9200", "c.example:65535"]


@pytest.mark.parametrize(
    "bad", ["", ",", "host", "host:", ":1", "host:0", "host:99999", "host:x", "a b:1", "http:/x:1", "user@host:1"]
)
def test_a_text_that_is_no_address_is_refused(bad: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_addresses(bad)


@pytest.mark.parametrize("url", ["file:///x", "memory://", "s3://b/p?endpoint=http://x:1"])
def test_a_root_url_is_told_from_an_address(url: str) -> None:
    assert is_root_url(url)


async def test_connect_refuses_before_it_opens_anything() -> None:
    with pytest.raises(InvalidConfig):
        async with ledgermq.connect("nonsense"):
            pass
    with pytest.raises(InvalidConfig, match="a target is text: host:port"):
        async with ledgermq.connect(["a:1", "b:1"]):  # type: ignore[arg-type]
            pass
    with pytest.raises(InvalidConfig):
        async with ledgermq.connect("host:1", timeouts=1):
            pass


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def test_an_age_is_a_moment_before_now() -> None:
    for age in ("90m", "1.5h", timedelta(minutes=90)):
        assert check_start(age, ["t"], NOW) == datetime(2026, 11, 23, 10, 30, tzinfo=UTC)
    assert check_start("999999999d", ["t"], NOW) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "bad",
    [
        "newest",
        "15",
        "-1h",
        timedelta(-1),
        5,
        None,
        {0: "earliest"},
        {0: -1},
        {0: 2**63},
        {"0": 1},
        {("other", 0): 1},
        {True: 1},
        {0: True},
    ],
)
def test_a_start_that_means_nothing_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidConfig):
        check_start(bad, ["t"], NOW)


def test_a_partition_number_needs_a_single_topic() -> None:
    assert check_start({0: 5}, ["t"], NOW) == {("t", 0): 5}
    with pytest.raises(InvalidConfig):
        check_start({0: 5}, ["t", "u"], NOW)


async def test_a_root_url_without_the_server_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "EMBEDDED_GROUP", "ledgermq.nobody")
    with pytest.raises(InvalidConfig, match=r'pip install "ledgermq\[broker\]"'):
        async with ledgermq.connect("memory://"):
            pass


@pytest.mark.parametrize("name", [None, 5, b"t", "\ud800"])
async def test_a_topic_name_that_cannot_be_sent_is_refused_and_not_buffered(name: Any) -> None:
    async with ledgermq.connect("127.0.0.1:1", timeout_s=0.2) as client:
        producer = client.producer(delivery_timeout_s=0.2)
        with pytest.raises(InvalidTopicName):
            producer.send(name, b"v")
        with pytest.raises(InvalidTopicName):
            await client.create_topic(name)
        with pytest.raises((InvalidTopicName, InvalidConfig)):
            await client.consumer([name]).fetch()
        assert producer.buffered_bytes == 0
        with pytest.raises(LedgerMQError):
            await producer.send("t", b"v")
        await producer.abort()


@pytest.mark.parametrize("settings", [{"a": "\ud800"}, {"\ud800": "a"}])
async def test_topic_settings_that_cannot_be_sent_are_refused(settings: dict[str, str]) -> None:
    async with ledgermq.connect("127.0.0.1:1") as client:
        with pytest.raises(InvalidConfig):
            await client.create_topic("t", settings=settings)


@pytest.mark.parametrize("name", ["session_timeout_s", "max_poll_interval_s"])
@pytest.mark.parametrize("value", [0, -1, 24 * 3600 + 1])
def test_time_outs_of_members_are_above_zero_and_at_most_a_day(name: str, value: float) -> None:
    with pytest.raises(InvalidConfig, match=name):
        GroupSettings(**{name: value})

"""Complete names in the shell: ask the cluster for topics, groups and transactions, and complete nothing if it
does not answer at once. What names need is imported only when one is completed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable

import typer

import ledgermq
from ledgermq.cli.arguments.options import DEFAULT_TARGET
from ledgermq.cli.arguments.tls_options import given_tls, take_tls
from ledgermq.environment import load_settings

COMPLETION_TIMEOUT_S = 1.0

_setting_names: list[Callable[[], Iterable[str]]] = []


def add_setting_names(names: Callable[[], Iterable[str]]) -> None:
    """Register where the names of topic settings come from. They are read, and the package that defines them is
    imported, only when one is completed.
    """
    if names not in _setting_names:
        _setting_names.append(names)


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin with what was typed."""
    return _found(context, incomplete, _topics)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups whose names begin with what was typed."""
    return _found(context, incomplete, _groups)


def complete_transaction(context: typer.Context, incomplete: str) -> list[str]:
    """Return the transactional ids that begin with what was typed."""
    return _found(context, incomplete, _transactions)


def complete_check_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the check groups with unresolved half messages whose names begin with what was typed."""
    return _found(context, incomplete, lambda client: client.unresolved.groups())


def complete_dead_letter_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups with a dead-letter topic whose names begin with what was typed."""
    return _found(context, incomplete, lambda client: client.dead_letters.groups())


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queue groups whose names begin with what was typed."""
    return _found(context, incomplete, _queues)


def complete_setting(incomplete: str) -> list[str]:
    """Return the topic settings whose names begin with what was typed."""
    load_settings()
    return sorted(name for names in _setting_names for name in names() if name.startswith(incomplete))


def complete_assignment(incomplete: str) -> list[str]:
    """Return completions of NAME=VALUE."""
    return [f"{name}=" for name in complete_setting(incomplete)]


async def _topics(client: ledgermq.Client) -> Iterable[str]:
    return [topic.name for topic in await client.list_topics()]


async def _groups(client: ledgermq.Client) -> Iterable[str]:
    return [group.name for group in await client.groups.list()]


async def _queues(client: ledgermq.Client) -> Iterable[str]:
    return {queue.group for queue in await client.queues.list()}


async def _transactions(client: ledgermq.Client) -> Iterable[str]:
    return [found.transactional_id for found in (await client.transactions.list(open_only=False)).transactions]


def _found(
    context: typer.Context, incomplete: str, ask: Callable[[ledgermq.Client], Awaitable[Iterable[str]]]
) -> list[str]:
    target = context.params.get("target") or os.environ.get("LEDGERMQ_TARGET") or DEFAULT_TARGET
    if "://" in str(target):
        return []  # starting an embedded broker takes too long for a key press
    try:
        take_tls(context.params)
        names = asyncio.run(_names(str(target), ask))
    except Exception:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


async def _names(target: str, ask: Callable[[ledgermq.Client], Awaitable[Iterable[str]]]) -> Iterable[str]:
    async with (
        asyncio.timeout(COMPLETION_TIMEOUT_S),
        ledgermq.connect(target, timeout_s=COMPLETION_TIMEOUT_S, tls=given_tls()) as client,
    ):
        return await ask(client)

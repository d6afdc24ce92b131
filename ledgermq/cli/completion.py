"""Completion of topic names in the shell: asks the cluster, and stays silent when it does not answer at once."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import typer

from ledgermq.cli.options import DEFAULT_TARGET

COMPLETION_TIMEOUT_S = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin with what was typed."""
    target = context.params.get("target") or os.environ.get("LEDGERMQ_TARGET") or DEFAULT_TARGET
    if "://" in str(target):
        return []  # an embedded broker is too much for a key press
    try:
        names = asyncio.run(_names(str(target)))
    except Exception:
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _names(target: str) -> list[Any]:
    from ledgermq.cli.session import connected

    async with asyncio.timeout(COMPLETION_TIMEOUT_S), connected(target, COMPLETION_TIMEOUT_S) as client:
        return sorted(topic.name for topic in await client.list_topics())

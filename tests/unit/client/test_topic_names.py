"""`client.create_topic` and its like are names of what `client.topics` does."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import ledgermq
from ledgermq.client.admin.topic_admin import TopicAdmin, TopicNames

NAMES = {
    name: name.removesuffix("_topics").removesuffix("_topic")
    for name, member in inspect.getmembers(TopicNames, inspect.isfunction)
    if not name.startswith("_")
}


LATER = ["delete_with_cuts"]
"""Calls that are newer than the names: they have one place, `client.topics`."""


def test_a_client_has_a_name_for_each_call_of_its_topics() -> None:
    calls = [name for name, _ in inspect.getmembers(TopicAdmin, inspect.isfunction) if not name.startswith("_")]
    assert sorted([*NAMES.values(), *LATER]) == sorted(calls)
    assert set(NAMES) <= set(dir(ledgermq.Client)) & set(dir(ledgermq.sync.Client))


@pytest.mark.parametrize(("name", "call"), NAMES.items())
def test_a_name_takes_what_the_call_takes_and_hands_all_of_it_on(name: str, call: str) -> None:
    signature = inspect.signature(getattr(TopicNames, name))
    wanted = inspect.signature(getattr(TopicAdmin, call))
    assert list(signature.parameters.values()) == list(wanted.parameters.values())
    assert signature.return_annotation == wanted.return_annotation.replace("builtins.", "")
    given = {each: object() for each in signature.parameters if each != "self"}

    class Recorder:
        def __getattr__(self, called: str) -> Any:
            async def record(*args: object, **more: object) -> dict[str, object]:
                assert called == call
                return dict(wanted.bind(None, *args, **more).arguments)

            return record

    bound = signature.bind(TopicNames(Recorder()), **given)  # type: ignore[arg-type]
    arguments = asyncio.run(getattr(TopicNames, name)(*bound.args, **bound.kwargs))
    assert {each: value for each, value in arguments.items() if each != "self"} == given

"""What `ledgermq.sync` has from the asynchronous client: all of it, as it is there, and by `make pages` alone."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, get_overloads

import pytest

import ledgermq
import ledgermq.sync
from infra import sync_client
from infra.internal_names import INTERNAL, ONLY_ASYNC
from infra.sync_methods import ClassWriter, Module, NotGenerated, Twin
from ledgermq.client.admin.access import Access
from ledgermq.client.transactions.admin import TransactionAdmin
from ledgermq.sync.admin import access
from ledgermq.sync.transactions import transaction_admin

HEAD = """
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self, overload, Unpack

from ledgermq.client.finding import Search
from ledgermq.client.setting_types import TableOptions
from ledgermq.client.tables.table import Table

class Thing:
    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.seen: tuple[str, ...] = ()
        self.odd = name.upper()

"""
DIFFERENT = {
    "Client.half_messages": {"check"},
    "Client.run_handlers": {"stop"},
    "Client.trace": {"on_progress"},
    "HalfMessages.send_in_transaction": {"execute"},
    "Producer.send_many": {"records"},
    "Transaction.send": {"expect_end"},
    "Transaction.send_many": {"records"},
    "TwoPhase.send": {"expect_end"},
    "TwoPhase.send_many": {"records"},
}
"""Parameters that have another type without asyncio, no awaitables and no events of its loop, or that one of both
lacks: what it shares with `Producer.send` refuses `expect_end` there.
"""
RETURNED_AT_ONCE = {"send", "send_many", "send_batch", "reply"}
"""Calls that return awaitables there, and here what these give, or a `Delivery` to wait for."""


def written(methods: str, by_hand: set[str] | None = None, **twin: Any) -> tuple[str, set[str]]:
    """Return the class that is generated from a class `Thing` with these methods, and what it imports."""
    indented = "\n".join(f"    {line}" for line in methods.strip().splitlines())
    module = Module("ledgermq.client.things", ast.parse(HEAD + indented))
    twins = {
        "from ledgermq.client.finding import Search": Twin("Search", "finding", "finding"),
        "from ledgermq.client.tables.table import Table": Twin("Table", "tables.table", "tables", needs_sources=True),
    }
    writer = ClassWriter(Twin("Thing", "things", "things", **twin), module, by_hand or set(), twins)
    return "\n".join(writer.lines()), writer.imports


def body(methods: str, **twin: Any) -> list[str]:
    """Return the lines of the last method."""
    lines = written(methods, **twin)[0].splitlines()
    [*_, last] = [number for number, line in enumerate(lines) if line.startswith("    def ")]
    return [line.strip() for line in lines[last:]]


def test_the_generated_modules_are_up_to_date() -> None:
    assert list(sync_client.outdated()) == [], "run: make pages"


def test_a_changed_module_is_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sync_client.modules()
    for path, text in made.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    changed = "ledgermq/sync/admin/quotas.py"
    (tmp_path / changed).write_text(made[changed].replace("unset", "reset"))
    monkeypatch.setattr(sync_client, "CLONE", tmp_path)
    monkeypatch.setattr(sync_client, "modules", lambda: made)
    assert list(sync_client.outdated()) == [changed]


# -- one method


def test_a_new_asynchronous_method_is_waited_for() -> None:
    text, imports = written(
        '''
async def ask(self, what: str, *more: str, limit: int = 3, **options: Unpack[TableOptions]) -> list[str]:
    """Return the answers; `await thing.ask("a")` or `async with thing:` around it."""
    return []
'''
    )
    assert text.splitlines()[-3:] == [
        "    def ask(self, what: str, *more: str, limit: int=3, **options: Unpack[TableOptions]) -> list[str]:",
        '        """Return the answers; `thing.ask("a")` or `with thing:` around it."""',
        "        return self._background.run(self._inner.ask(what, *more, limit=limit, **options))",
    ]
    assert {"from typing import Unpack", "from ledgermq.client.setting_types import TableOptions"} <= imports
    assert "class ThingCalls:" in text


@pytest.mark.parametrize(
    ("method", "waits"),
    [
        ("async def end(self) -> None: ...", "self._background.run(self._inner.end())"),
        (
            "async def end(self, timeout_s: float) -> None: ...",
            "self._background.run(self._inner.end(timeout_s), timeout_s)",
        ),
        (
            "async def get(self, timeout: float) -> int: ...",
            "return self._background.run(self._inner.get(timeout), timeout)",
        ),
        ("def get(self) -> int: ...", "return self._background.run(as_coroutine(lambda: self._inner.get()))"),
        ("@property\ndef size(self) -> int:\n    return self._size", "return self._inner.size"),
    ],
)
def test_the_thread_and_the_bound_of_a_call(method: str, waits: str) -> None:
    assert body(method)[-1] == waits


def test_what_is_made_belongs_to_the_same_thread() -> None:
    text, imports = written("def find(self, key: str) -> Search: ...")
    assert text.splitlines()[-2:] == [
        "        made = self._background.run(as_coroutine(lambda: self._inner.find(key)))",
        "        return Search(self._background, made)",
    ]
    assert "from ledgermq.sync.finding import Search" in imports
    text, imports = written("async def look(self) -> Search | Table[int]: ...")
    assert text.splitlines()[-4:] == [
        "        made = self._background.run(self._inner.look())",
        "        if isinstance(made, AsyncSearch):",
        "            return Search(self._background, made)",
        "        return Table(self._background, made, self._sources)",
    ]
    assert "from ledgermq.client.finding import Search as AsyncSearch" in imports


def test_functions_of_the_program_run_in_threads() -> None:
    text, imports = written("async def run(self, **settings: Any) -> None: ...", callbacks=("run",))
    assert "self._inner.run(**in_threads(settings, self._callers))" in text
    assert "from ledgermq.sync.background import Callers, in_threads" in imports


def test_what_any_thread_may_call_and_what_only_the_loop_reads() -> None:
    assert body("def get(self) -> int: ...", direct=("get",))[-1] == "return self._inner.get()"
    text, imports = written("@property\ndef size(self) -> int: ...", in_loop=("size",))
    assert "return self._background.run(as_coroutine(lambda: self._inner.size))" in text
    assert "from ledgermq.sync.background import as_coroutine" in imports


def test_overloads_stay() -> None:
    text, _ = written(
        "@overload\nasync def get(self, key: str) -> int | None: ...\n"
        "@overload\nasync def get(self, key: str, default: int) -> int: ...\n"
        "async def get(self, key: str, default: int | None = None) -> int | None: ..."
    )
    assert text.count("@overload") == 2
    assert text.count("def get(") == 3
    assert "found: int | None = self._background.run(cast(Any, self._inner).get(key, default))" in text


def test_blocks_are_entered_and_left_as_with_asyncio() -> None:
    enter = "async def __aenter__(self) -> Self:\n    await self.start()\n    return self"
    assert body(enter) == ["def __enter__(self) -> Self:", "self.start()", "return self"]
    enter = "async def __aenter__(self) -> Self:\n    self._begin()\n    return self"
    assert body(enter)[1:] == ["self._background.run(self._inner.__aenter__())", "return self"]
    with pytest.raises(NotGenerated, match="__aexit__ calls close, which is written by hand"):
        written("async def __aexit__(self, *of: object) -> None:\n    await self.close()", by_hand={"close"})


def test_attributes_that_are_named_are_readable() -> None:
    text, _ = written("", attributes=("name", "closed", "seen"))
    declared = re.findall(r"def (\w+)\(self\) -> (.+):", text)
    assert declared == [("name", "str"), ("closed", "bool"), ("seen", "tuple[str, ...]")]
    with pytest.raises(NotGenerated, match=r"the type of Thing\.odd is not evident"):
        written("", attributes=("odd",))


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("async def run(self, stop: asyncio.Event) -> None: ...", "Thing.run takes asyncio"),
        ("async def run(self, call: Callable[[], int]) -> None: ...", "Thing.run takes Callable"),
        ("async def take(self, found: Search) -> None: ...", "Thing.take takes Search"),
        ("def find(self) -> list[Search]: ...", r"Thing.find returns list\[Search\]"),
        ("def find(self) -> Search | None: ...", r"Thing.find returns Search \| None"),
        ("def declare(self) -> Callable[[int], int]: ...", "Thing.declare returns Callable"),
        ("async def changes(self) -> AsyncIterator[int]:\n    yield 1", r"Thing.changes returns AsyncIterator\[int\]"),
        ("@staticmethod\ndef make() -> int: ...", "Thing.make is decorated with staticmethod"),
    ],
)
def test_what_cannot_be_generated_is_refused_until_it_is_written_by_hand(method: str, why: str) -> None:
    with pytest.raises(NotGenerated, match=why):
        written(method)
    name = re.search(r"def (\w+)", method)
    assert name is not None
    assert f"def {name[1]}" not in written(method, by_hand={name[1]})[0]


def test_a_property_that_computes_says_in_which_thread() -> None:
    method = "@property\ndef sizes(self) -> list[int]:\n    return [each for each in self._sizes]"
    with pytest.raises(NotGenerated, match=r"Thing\.sizes computes something: name it in `in_loop` or `direct`"):
        written(method)
    assert body(method, direct=("sizes",))[-1] == "return self._inner.sizes"
    assert body(method, in_loop=("sizes",))[-1].startswith("return self._background.run(as_coroutine(")


@pytest.mark.parametrize("kind", ["in_loop", "direct", "callbacks"])
def test_a_name_that_is_gone_is_refused(kind: str) -> None:
    with pytest.raises(NotGenerated, match="Thing has no gone: correct what its twin"):
        written("async def end(self) -> None: ...", **{kind: ("gone",)})


def test_a_docstring_that_is_about_asyncio_is_not_copied() -> None:
    method = 'async def run(self) -> None:\n    """Run. It is an awaitable."""'
    assert body(method)[1] == '"""See `ledgermq.Thing.run`."""'
    assert body(method, notes={"run": "it blocks."})[1] == '"""See `ledgermq.Thing.run`; it blocks."""'


# -- the whole client


def pairs() -> list[tuple[type, type]]:
    public = [
        (getattr(ledgermq, twin.name), getattr(ledgermq.sync, twin.name))
        for twin in sync_client.TWINS
        if twin.name in ledgermq.sync.__all__
    ]
    return [*public, (Access, access.Access), (TransactionAdmin, transaction_admin.TransactionAdmin)]


def public_names(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind)
        if (not name.startswith("_") or name == "__call__")
        and (inspect.isfunction(member) or isinstance(member, property))
    } - {name.partition(".")[2] for name in INTERNAL | ONLY_ASYNC if name.startswith(f"{kind.__name__}.")}


def test_names_that_are_no_part_of_the_api_exist() -> None:
    places = [(name, *name.split(".")) for name in INTERNAL | ONLY_ASYNC]
    kinds = (ledgermq, ledgermq.sync)
    gone = [
        name for name, kind, member in places if not any(hasattr(getattr(each, kind, None), member) for each in kinds)
    ]
    assert gone == []


def test_each_public_name_is_in_both() -> None:
    missing = {f"{kind.__name__}.{name}" for kind, twin in pairs() for name in public_names(kind) - public_names(twin)}
    assert missing == set()


def test_each_parameter_is_the_same_in_both() -> None:
    """What is written by hand, too: its name, its kind, its default and its type."""
    compared = 0
    for kind, twin in pairs():
        for name in public_names(kind) & public_names(twin):
            one, other = getattr(kind, name), getattr(twin, name)
            if not inspect.isfunction(one):
                continue
            place = f"{kind.__name__}.{name}"
            theirs, ours = (
                {
                    each.name: (each.kind, each.default, _plain(each.annotation))
                    for each in inspect.signature(function).parameters.values()
                }
                for function in (one, other)
            )
            differ = {each for each in theirs.keys() | ours.keys() if theirs.get(each) != ours.get(each)}
            assert differ == DIFFERENT.get(place, set()), place
            if name not in RETURNED_AT_ONCE:
                returned = [_plain(inspect.signature(function).return_annotation) for function in (one, other)]
                assert returned[0].replace("AsyncIterator", "Iterator") == returned[1], place
            compared += 1
    assert compared > 100


def test_each_overload_is_the_same_in_both() -> None:
    compared = 0
    for kind, twin in pairs():
        for name in public_names(kind) & public_names(twin):
            if not inspect.isfunction(getattr(kind, name)):
                continue
            theirs, ours = (
                [_plain(inspect.signature(each)) for each in get_overloads(getattr(of, name))] for of in (kind, twin)
            )
            assert theirs == ours, f"{kind.__name__}.{name}"
            compared += len(ours)
    assert compared == 4, "two of `Client.consumer`, two of `Table.get`"


def _plain(annotation: object) -> str:
    return str(annotation).replace("ledgermq.", "")


def test_all_calls_that_send_a_record_have_the_same_parameters() -> None:
    """They are written out in each, as arguments may be given by position."""
    senders = [ledgermq.Producer, ledgermq.Transaction, ledgermq.TwoPhase, ledgermq.sync.Producer]
    [declared, *others] = [[*inspect.signature(kind.send).parameters.values()] for kind in senders]
    assert len(declared) == 17
    assert declared[-1].name == "expect_end", "what a transaction lacks comes last, so that positions agree"
    assert all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in declared), "the quick way of CPython"
    staged = [each for each in declared if each.name != "expect_end"]  # a staged record expects no end
    for kind, found in zip(senders[1:], others, strict=True):
        taken = declared if kind is ledgermq.sync.Producer else staged
        assert [(each.name, each.kind, each.default, _plain(each.annotation)) for each in found] == [
            (each.name, each.kind, each.default, _plain(each.annotation)) for each in taken
        ]
    fields = [*inspect.signature(ledgermq.Record).parameters.values()]
    assert [(each.name, each.default) for each in fields] == [(each.name, each.default) for each in declared[2:-3]]

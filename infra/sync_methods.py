"""One class of the client without asyncio, written from the asynchronous class: each method with its signature and
docstring, and a body that waits in the background thread.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef

NOT_HERE = {"__init__", "__await__", "__aiter__", "__anext__", "__iter__", "__next__"}
"""Special methods that are written by hand where there are any, `__iter__` of a mapping apart (`Twin.direct`)."""
ENTRY_AND_EXIT = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
TIMEOUTS = ("timeout_s", "timeout")
NOT_FOR_THREADS = {"AsyncIterable", "AsyncIterator", "Awaitable", "Callable", "Coroutine", "asyncio"}
"""Arguments of these kinds mean something else without an event loop, so such a method is written by hand."""
COMPUTING = (ast.Call, ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OF_ASYNCIO = re.compile(r"\b(?:await\w*|async\w*|event loop)\b")


class NotGenerated(Exception):
    """A method cannot be generated. `advice`: what to do."""

    def __init__(
        self, why: str, advice: str = "write it in ledgermq/sync/, in the class that inherits the generated one"
    ):
        super().__init__(f"{why}: {advice}")


@dataclass(frozen=True)
class Twin:
    """An asynchronous class, and the place of the class without asyncio.

    `module`: of the asynchronous class, in ledgermq.client. `home`: the module in ledgermq.sync from which the class is
    imported. `text`: the docstring of a class that is generated wholly; "": the class in `home` is written by hand, and
    inherits what is generated.
    """

    name: str
    module: str
    home: str
    text: str = ""
    attributes: tuple[str, ...] = ()
    """Public attributes of the asynchronous object that are readable here; methods and properties all are."""
    in_loop: tuple[str, ...] = ()
    """Properties that are computed in the event loop, because it changes meanwhile what they look at."""
    direct: tuple[str, ...] = ()
    """Plain methods and computed properties that any thread may call, whatever the event loop does meanwhile, and after
    the end of the client. Other methods are called in the event loop; a property that calls nothing is only read.
    """
    callbacks: tuple[str, ...] = ()
    """Methods with settings that may be functions of the program, which run in threads."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What is different, by method: its docstring is a reference, and this."""
    needs_sources: bool = False
    """Whether the class is made with the client's sources, too."""
    has_init: bool = True
    """Whether `__init__` is generated."""
    part_of: str = ""
    """The class that programs see in place of this one, a base of it, and whose module by hand counts for both."""
    inner: tuple[str, ...] = ()
    """Bases that the twin does not have: what they define is written by hand, or is no part of the API."""

    @property
    def is_whole(self) -> bool:
        return bool(self.text)

    @property
    def shown(self) -> str:
        """The class that programs see."""
        return self.part_of or self.name

    @property
    def class_name(self) -> str:
        return self.name if self.is_whole else f"{self.name}Calls"

    @property
    def file(self) -> str:
        """The generated module, in ledgermq.sync."""
        return self.home if self.is_whole else f"generated.{self.home.rpartition('.')[2]}"


@dataclass
class Module:
    """A module of the asynchronous client, and where its names come from."""

    name: str
    tree: ast.Module
    imported: Mapping[str, str] = field(init=False)
    """Import statement by name."""

    def __post_init__(self) -> None:
        found = {}
        for node in ast.walk(ast.Module([node for node in self.tree.body if not isinstance(node, ast.ClassDef)], [])):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"from {node.module} import {ast.unparse(alias)}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"import {ast.unparse(alias)}"
        self.imported = found

    def import_of(self, name: str) -> str:
        return self.imported.get(name, f"from {self.name} import {name}")

    def class_of(self, name: str) -> ast.ClassDef:
        [found] = [node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        return found


class ClassWriter:
    """Writes one class. `by_hand`: names that the hand-written class has itself, or that are no part of the API.
    `twins`: all classes that exist twice, by the import of the asynchronous one.
    """

    def __init__(self, twin: Twin, module: Module, by_hand: set[str], twins: Mapping[str, Twin]) -> None:
        self._twin = twin
        self._module = module
        self._declared = module.class_of(twin.name)
        self._by_hand = by_hand
        self._twins = twins
        self.imports = {
            "from ledgermq.sync.background import Background",
            f"from {module.name} import {twin.name} as Async{twin.name}",
        }
        """Import statements that the class needs."""

    def lines(self) -> Iterator[str]:
        """Yield the class. Raises NotGenerated."""
        twin = self._twin
        if unknown := {*twin.in_loop, *twin.direct, *twin.callbacks, *twin.notes} - self._members():
            raise NotGenerated(
                f"{twin.name} has no {', '.join(sorted(unknown))}", "correct what its twin in infra/sync_client.py says"
            )
        text = twin.text or f"The calls of `ledgermq.sync.{twin.name}` that only wait for the asynchronous ones."
        bases = [self._base(base) for base in self._declared.bases if ast.unparse(base) not in twin.inner]
        yield f"class {twin.class_name}({', '.join(bases)}):" if bases else f"class {twin.class_name}:"
        yield f'    """{text}"""'
        yield from self._init()
        for name in twin.attributes:
            if name not in self._by_hand:
                yield from self._attribute(name)
        for method in self._methods():
            yield from self._method(method)

    def _members(self) -> set[str]:
        return {node.name for node in self._declared.body if isinstance(node, Function)}

    def _base(self, base: ast.expr) -> str:
        for name in _names(base):
            self._import(name)
        return ast.unparse(base)

    def _init(self) -> Iterator[str]:
        generic = [ast.unparse(base) for base in self._declared.bases if ast.unparse(base).startswith("Generic")]
        parameters = generic[0].removeprefix("Generic") if generic else ""
        inner = f"Async{self._twin.name}{parameters}"
        if not self._twin.has_init:
            yield from ("    _background: Background", f"    _inner: {inner}")
            return
        if any(self._twin_of(name) for base in self._declared.bases for name in _names(base)):
            yield f"    _inner: {inner}"
        if self._twin.callbacks:
            self.imports.add("from ledgermq.sync.background import Callers, in_threads")
            yield "    _callers: Callers"
        more = ", sources: Sources" if self._twin.needs_sources else ""
        yield f"    def __init__(self, background: Background, inner: {inner}{more}) -> None:"
        yield "        self._background = background"
        yield "        self._inner = inner"
        if more:
            self.imports.add("from ledgermq.sources import Sources")
            yield "        self._sources = sources"

    def _methods(self) -> Iterator[Function]:
        for node in self._declared.body:
            if not isinstance(node, Function):
                continue
            name = ENTRY_AND_EXIT.get(node.name, node.name)
            is_special = name.startswith("__") and (name not in NOT_HERE or name in self._twin.direct)
            if name not in self._by_hand and (is_special or not name.startswith("_")):
                yield node

    def _method(self, method: Function) -> Iterator[str]:
        decorators = [ast.unparse(each) for each in method.decorator_list]
        if method.name in ENTRY_AND_EXIT:
            yield from self._entry_or_exit(method)
            return
        self._check(method, decorators)
        for name in [*_names(method.args), *_names(method.returns)]:
            self._import(name)
        for decorator in decorators:
            yield f"    @{decorator}"
            if decorator == "overload":
                self.imports.add("from typing import overload")
        yield f"    def {method.name}({ast.unparse(method.args)}) -> {_returned(method)}:"
        if "overload" in decorators:
            yield "        ..."
            return
        if text := self._docstring(method):
            yield f"        {text}"
        yield from (f"        {line}" for line in self._body(method, is_property="property" in decorators))

    def _check(self, method: Function, decorators: Sequence[str]) -> None:
        """Raise NotGenerated if no thread can call this just so."""
        taken = set(_names(method.args))
        if unfit := sorted(taken & NOT_FOR_THREADS) + sorted(name for name in taken if self._twin_of(name)):
            raise NotGenerated(f"{self._twin.name}.{method.name} takes {', '.join(unfit)}")
        given = _names(method.returns)
        is_unfit = NOT_FOR_THREADS & {*given} and method.name not in self._twin.direct
        if is_unfit or len([name for name in given if self._twin_of(name)]) > len(self._made_by(method)):
            raise NotGenerated(f"{self._twin.name}.{method.name} returns {_returned(method)}")
        if set(decorators) - {"property", "overload"}:
            raise NotGenerated(f"{self._twin.name}.{method.name} is decorated with {', '.join(decorators)}")
        is_computed = "property" in decorators and any(isinstance(node, COMPUTING) for node in ast.walk(method))
        if is_computed and method.name not in (*self._twin.in_loop, *self._twin.direct):
            raise NotGenerated(
                f"{self._twin.name}.{method.name} computes something", "name it in `in_loop` or `direct` of its twin"
            )

    def _twin_of(self, name: str) -> Twin | None:
        return self._twins.get(self._module.import_of(name))

    def _import(self, name: str) -> None:
        if name in vars(builtins):
            return
        twin = self._twin_of(name)
        if twin is None:
            self.imports.add(self._module.import_of(name))
        elif twin.file != self._twin.file or not twin.is_whole:
            self.imports.add(f"from ledgermq.sync.{twin.home} import {twin.name}")

    def _body(self, method: Function, *, is_property: bool) -> Iterator[str]:
        value = self._call(method, is_property=is_property)
        is_overloaded = method.name in self._overloaded()
        if is_overloaded:  # no overload takes what the implementation takes
            self.imports.add("from typing import Any, cast")
            value = value.replace("self._inner", "cast(Any, self._inner)")
        if made := self._made_by(method):
            yield from self._made(made, value)
        elif _returned(method) == "None":
            yield value
        elif is_overloaded:
            yield f"found: {_returned(method)} = {value}"
            yield "return found"
        else:
            yield f"return {value}"

    def _made(self, twins: Sequence[Twin], value: str) -> Iterator[str]:
        """Put what was made into an object for threads: the first of these kinds that fits."""
        yield f"made = {value}"
        for each in twins:
            if each is not twins[-1]:
                self.imports.add(f"from ledgermq.client.{each.module} import {each.name} as Async{each.name}")
                yield f"if isinstance(made, Async{each.name}):"
            indent = "" if each is twins[-1] else "    "
            yield f"{indent}return {each.name}(self._background, made{', self._sources' if each.needs_sources else ''})"

    def _call(self, method: Function, *, is_property: bool) -> str:
        name, twin = method.name, self._twin
        function = "self._inner" if name == "__call__" else f"self._inner.{name}"
        passed = _passed(method.args)
        if name in twin.callbacks:
            passed = passed.replace("**settings", "**in_threads(settings, self._callers)")
        call = function if is_property else f"{function}({passed})"
        if isinstance(method, ast.AsyncFunctionDef):
            bound = next((f", {each}" for each in TIMEOUTS if each in _parameters(method.args)), "")
            return f"self._background.run({call}{bound})"
        if name in twin.direct or (is_property and name not in twin.in_loop):
            return call
        self.imports.add("from ledgermq.sync.background import as_coroutine")
        return f"self._background.run(as_coroutine(lambda: {call}))"

    def _made_by(self, method: Function) -> list[Twin]:
        """Return the kinds of objects that the method makes, if they exist twice: `A`, `A[V]` or `A | B`."""
        kinds = [method.returns]
        while isinstance(kinds[0], ast.BinOp):
            kinds = [kinds[0].left, kinds[0].right, *kinds[1:]]
        names = [each.value if isinstance(each, ast.Subscript) else each for each in kinds]
        made = [self._twin_of(each.id) if isinstance(each, ast.Name) else None for each in names]
        return [] if None in made else [each for each in made if each is not None]

    def _overloaded(self) -> set[str]:
        return {
            node.name
            for node in self._declared.body
            if isinstance(node, Function) and any(ast.unparse(each) == "overload" for each in node.decorator_list)
        }

    def _entry_or_exit(self, method: Function) -> Iterator[str]:
        """Write `with` as `async with`. Where that only awaits a method of the object, its twin is called here."""
        statements = [ast.unparse(node) for node in method.body if not _is_text(node)]
        simple = [re.fullmatch(r"await self\.(\w+)\(\)|return self", statement) for statement in statements]
        for name in [*_names(method.args), *_names(method.returns)]:
            self._import(name)
        yield f"    def {ENTRY_AND_EXIT[method.name]}({ast.unparse(method.args)}) -> {_returned(method)}:"
        if all(simple):
            if missing := {found[1] for found in simple if found} & self._by_hand:
                raise NotGenerated(
                    f"{self._twin.name}.{method.name} calls {', '.join(missing)}, which is written by hand"
                )
            yield from (f"        {statement.removeprefix('await ')}" for statement in statements)
            return
        yield f"        self._background.run(self._inner.{method.name}({_passed(method.args)}))"
        if method.name == "__aenter__":
            yield "        return self"

    def _attribute(self, name: str) -> Iterator[str]:
        annotation = self._type_of(name)
        for each in _names(annotation):
            self._import(each)
        yield "    @property"
        yield f"    def {name}(self) -> {ast.unparse(annotation)}:"
        yield f"        return self._inner.{name}"

    def _type_of(self, name: str) -> ast.expr:
        """Return the type of an attribute that `__init__` sets: declared, of a parameter, or of a constant."""
        [init] = [node for node in self._declared.body if isinstance(node, Function) and node.name == "__init__"]
        types = {each.arg: each.annotation for each in _parameters(init.args).values()}
        for node in ast.walk(init):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == f"self.{name}":
                return node.annotation
            if isinstance(node, ast.Assign) and any(ast.unparse(each) == f"self.{name}" for each in node.targets):
                if isinstance(node.value, ast.Constant) and node.value.value is not None:
                    return ast.Name(type(node.value.value).__name__)
                if isinstance(node.value, ast.Name) and (found := types.get(node.value.id)):
                    return found
        raise NotGenerated(f"the type of {self._twin.name}.{name} is not evident", "annotate it in __init__")

    def _docstring(self, method: Function) -> str:
        """Return the docstring of the asynchronous method, as far as it is true here, with its quotes."""
        note = self._twin.notes.get(method.name)
        if not _is_text(method.body[0]):
            return ""
        adapted = re.sub(r"\bawait |\basync (?=with|for|def)", "", _text(method.body[0]))
        if note or OF_ASYNCIO.search(adapted):
            return f'"""See `ledgermq.{self._twin.shown}.{method.name}`{"; " + note if note else "."}"""'
        return f'"""{adapted}"""'


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _text(node: ast.stmt) -> str:
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Constant)
    return str(node.value.value).replace("\\", "\\\\")


def _returned(method: Function) -> str:
    return "None" if method.returns is None else ast.unparse(method.returns)


def _names(node: ast.AST | None) -> list[str]:
    """Return the names that annotations and defaults use, in their order."""
    return [] if node is None else [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def _parameters(given: ast.arguments) -> dict[str, ast.arg]:
    """Return the parameters after `self`, by name."""
    named = [*given.posonlyargs, *given.args][1:]
    more = [each for each in (given.vararg, given.kwarg) if each is not None]
    return {each.arg: each for each in [*named, *given.kwonlyargs, *more]}


def _passed(given: ast.arguments) -> str:
    """Return the arguments of a call that passes all parameters on."""
    passed = [each.arg for each in [*given.posonlyargs, *given.args][1:]]
    if given.vararg is not None:
        passed.append(f"*{given.vararg.arg}")
    passed += [f"{each.arg}={each.arg}" for each in given.kwonlyargs]
    if given.kwarg is not None:
        passed.append(f"**{given.kwarg.arg}")
    return ", ".join(passed)

"""Any sequence of calls gives the same answers on files as in memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore

FILES = ["a", "b.c", "d-e", ".h", "0", "Z"]
FOLDERS = ["", "x/", "x-/", "x/y/", "x0/", ".q/"]
KEYS = [folder + "f-" + name if not name.startswith(".") else folder + name for folder in FOLDERS for name in FILES]
PREFIXES = ["", "x", "x/", "x/y", "x/f", "x-", "f-d", "nothing"]

keys = st.sampled_from(KEYS)
data = st.binary(max_size=20)
Step = Callable[[ObjectStore], Awaitable[object]]


async def listed(store: ObjectStore, prefix: str, start_after: str) -> list[tuple[str, int]]:
    return [(info.key, info.size) async for info in store.list(prefix, start_after)]


async def size_of(store: ObjectStore, key: str) -> int:
    return (await store.head(key)).size


async def fenced_put(store: ObjectStore, fence: str, key: str, value: bytes) -> None:
    await (await store.fenced_puts(fence, [key], 1000)).put_if_absent(key, [value])


fences = st.sampled_from(["f", "g"])
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda key, value: lambda store: store.put_if_absent(key, [value, value]), keys, data),
    st.builds(lambda key, value: lambda store: store.put(key, value), keys, data),
    st.builds(lambda key: lambda store: store.get(key), keys),
    st.builds(
        lambda key, start, length: lambda store: store.get_range(key, start, length),
        keys,
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    st.builds(lambda key, length: lambda store: store.get_suffix(key, length), keys, st.integers(0, 50)),
    st.builds(lambda key: lambda store: size_of(store, key), keys),
    st.builds(lambda chosen: lambda store: store.delete(chosen), st.lists(keys, max_size=4)),
    st.builds(
        lambda prefix, after: lambda store: listed(store, prefix, after),
        st.sampled_from(PREFIXES),
        st.sampled_from(["", *KEYS]),
    ),
    st.builds(lambda fence: lambda store: store.open_fence(fence), fences),
    st.builds(lambda fence: lambda store: store.close_fence(fence), fences),
    st.builds(lambda fence, key, value: lambda store: fenced_put(store, fence, key, value), fences, keys, data),
    st.just(lambda store: store.list_fences()),
)


async def answer(store: ObjectStore, step: Step) -> object:
    try:
        found = await step(store)
    except LedgerMQError as error:
        return type(error)
    return list(found) if isinstance(found, (list, tuple)) else found


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=5, max_size=40))
def test_files_answer_as_memory_does(chosen: list[Step]) -> None:
    async def main(folder: Path) -> None:
        memory = MemoryStore("agree")
        async with FileStore(folder) as files:
            for step in chosen:
                assert await answer(files, step) == await answer(memory, step)
            assert await listed(files, "", "") == await listed(memory, "", "")

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name) / "root"))

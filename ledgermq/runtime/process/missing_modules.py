"""Say why a module cannot be imported, and what to do about it.

Not every ImportError means that an extra is not installed. A file of the user's may hide a module
(`aiohttp.py` beside the program), and an installed package may be damaged or too old. Advice to
install what is there already helps in neither case.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import ModuleType

OWN = frozenset(
    {
        "ledgermq",
        "ledgermq_ledger",
        "ledgermq_offsets",
        "ledgermq_broker",
        "ledgermq_spark",
        "ledgermq_gateway",
        "ledgermq_tools",
        "pyspark_ledgermq",
    }
)
"""Top-level packages of LedgerMQ's distribution."""


def what_to_do(error: ImportError | AttributeError, install: str) -> str:
    """Return what to do about a failed import, with its cause in parentheses.

    `install`: the command that installs what is optional here, such as `pip install
    "ledgermq[broker]"`. An AttributeError comes from code that takes a name out of a module that is
    hidden. It is raised again if none is, because then it is a fault and not a failed import.
    """
    hidden = hiding(error)
    if isinstance(error, AttributeError) and hidden is None:
        raise error
    top = _top(error)
    if top in OWN and hidden is None:
        return f"the installation of LedgerMQ is damaged: pip install --force-reinstall ledgermq ({error})"
    if isinstance(error, ModuleNotFoundError) and error.name == top:
        return f"{install} ({error})"
    if hidden is not None:
        return f"{hidden} ({error})"
    again = install.replace("pip install", "pip install --force-reinstall", 1)
    return f"{top or 'what it needs'} is installed, but cannot be loaded; install it again: {again} ({error})"


def _top(error: ImportError | AttributeError) -> str:
    """Return the top-level package of the module that was not found, or lacks a name; "" if it is unknown."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0]
    return error.obj.__name__.partition(".")[0] if isinstance(error.obj, ModuleType) else ""


def hiding(error: ImportError | AttributeError) -> str | None:
    """Return which file hides the module that an import did not find, and what to do. None: it is not that."""
    top = _top(error)
    places = _places(top) if top else []
    if len(places) < 2:
        return None
    return f"{places[0]} hides the module {top} at {places[1]}: rename it, or start Python in another folder"


def _places(top: str) -> list[str]:
    """Return the files or packages of this name in all folders of the search path, the one that counts first.

    A folder without `__init__.py` hides nothing, and is none of them.
    """
    found: list[str] = []
    for folder in sys.path:
        spec = PathFinder.find_spec(top, [folder])
        if spec is not None and spec.origin is not None and spec.origin not in found:
            found.append(spec.origin)
    return found

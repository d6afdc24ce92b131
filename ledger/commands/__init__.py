"""The commands that work on a root itself, without a broker: `ledgermq compact`, `inspect`, `fsck`, `gc` and `repair`.

Found by the command line through the entry-point group "ledgermq.commands". They read and write the store by the same code as
brokers do; `inspect` and `fsck` never write.
"""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    from ledger.commands import compact, fsck, gc, inspect, repair

    compact.register(app)
    inspect.register(app)
    fsck.register(app)
    gc.register(app)
    repair.register(app)

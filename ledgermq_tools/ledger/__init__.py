"""Add the commands that work on a root itself, without a broker: `ledgermq compact`, `inspect`,
`fsck`, `gc`, `backup`, `restore`, `replica`, `repair`, `store` and `sql`.

The command line finds them through the entry-point group "ledgermq.commands". They read and write
the store by the same code as brokers do; `inspect`, `fsck` and `sql` never
write.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    from ledgermq.cli.arguments.completion import add_setting_names
    from ledgermq_tools.ledger import backup, fsck, gc, repair
    from ledgermq_tools.ledger.compact import command as compact
    from ledgermq_tools.ledger.inspect import command as inspect
    from ledgermq_tools.ledger.restore import command as restore
    from ledgermq_tools.ledger.restore import replica
    from ledgermq_tools.query import sql
    from ledgermq_tools.store import store

    add_setting_names(_topic_settings)
    compact.register(app)
    inspect.register(app)
    fsck.register(app)
    gc.register(app)
    backup.register(app)
    restore.register(app)
    replica.register(app)
    repair.register(app)
    store.register(app)
    sql.register(app)


def _topic_settings() -> Iterable[str]:
    from ledgermq_ledger.topics import settings as topic_settings  # late: only completion needs it here

    return topic_settings.NAMES

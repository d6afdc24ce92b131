"""Reload settings at SIGHUP: read them again, apply the live ones, refuse the others by name, and
survive an invalid file.

This module decides; the owner of the parts applies. Refused settings stay as they are in
`in_force`, so each SIGHUP names them again until the process is restarted or the file is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from ledgermq.errors import InvalidConfig
from ledgermq_broker.logs import get_logger
from ledgermq_broker.settings.declaring import ProcessSettings
from ledgermq_broker.settings.processes import LIVE
from ledgermq_broker.settings.sources import shown

log = get_logger(__name__)

S = TypeVar("S", bound=ProcessSettings)


@dataclass(frozen=True, slots=True)
class Change:
    """`settings`: the settings in force from now on.

    `taken`, `refused`: names of the settings that differ from what was read before.
    """

    settings: ProcessSettings
    taken: tuple[str, ...]
    refused: tuple[str, ...]


def decide(before: S, read: S, live: Collection[str] = LIVE) -> Change:
    """Decide which of the changed settings a running process can apply. Pure."""
    differ = [name for name in type(before).model_fields if getattr(before, name) != getattr(read, name)]
    taken = tuple(name for name in differ if name in live)
    refused = tuple(name for name in differ if name not in live)
    return Change(before.model_copy(update={name: getattr(read, name) for name in taken}), taken, refused)


class LiveSettings(Generic[S]):
    """`read()` reads the settings from the same sources as at the start.

    `apply` is called with the settings in force after a change.
    """

    def __init__(self, in_force: S, read: Callable[[], S], apply: Callable[[S], None]) -> None:
        self.in_force = in_force
        self._read = read
        self._apply = apply

    def reload(self) -> None:
        """Reload the settings. Never raises: a mistake in a file does not stop a running process."""
        try:
            change = decide(self.in_force, self._read())
        except InvalidConfig as error:
            log.error("settings not reloaded", error=error.message)
            return
        for name in change.refused:
            log.error("setting needs a restart", setting=name, in_force=shown(getattr(self.in_force, name)))
        before = self.in_force
        if change.taken:
            assert isinstance(change.settings, type(before))
            self.in_force = change.settings
            self._apply(self.in_force)
        taken = {name: shown(getattr(self.in_force, name)) for name in change.taken}
        log.info("settings reloaded", changed=taken, refused=list(change.refused))

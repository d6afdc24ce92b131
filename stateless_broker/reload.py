"""What SIGHUP does: read the settings again, take over what is live, refuse the rest by name, and
survive a file that is wrong.

Decides; whoever owns the parts applies. Settings that were refused stay as they are in `in_force`,
so that each SIGHUP names them again until the process is restarted or the file is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from ledgermq.errors import InvalidConfig
from stateless_broker.logs import get_logger
from stateless_broker.settings import LIVE, ProcessSettings
from stateless_broker.settings_sources import shown

log = get_logger(__name__)

S = TypeVar("S", bound=ProcessSettings)


@dataclass(frozen=True, slots=True)
class Change:
    """`settings`: what is in force from now on.

    `taken`, `refused`: the names of those that differ in what was read.
    """

    settings: ProcessSettings
    taken: tuple[str, ...]
    refused: tuple[str, ...]


def decide(before: S, read: S, live: Collection[str] = LIVE) -> Change:
    """Pure: which of the settings that differ may change in a running process."""
    differ = [name for name in type(before).model_fields if getattr(before, name) != getattr(read, name)]
    taken = tuple(name for name in differ if name in live)
    refused = tuple(name for name in differ if name not in live)
    return Change(before.model_copy(update={name: getattr(read, name) for name in taken}), taken, refused)


class LiveSettings(Generic[S]):
    """`read()`: the settings from where they came from at the start.

    `apply`: told of what is in force after a change.
    """

    def __init__(self, in_force: S, read: Callable[[], S], apply: Callable[[S], None]) -> None:
        self.in_force = in_force
        self._read = read
        self._apply = apply

    def reload(self) -> None:
        """Never raises: a running process does not stop for a mistake in a file."""
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

"""Find the token that a client's calls carry.

The first of these that is given: the settings `token` and `token_file`, then the variables
LEDGERMQ_TOKEN and LEDGERMQ_TOKEN_FILE, then `token` and `token_file` in the TOML file that LEDGERMQ_CONFIG
names. A file with a token is read again when it changes, so that a token can be renewed under a running
program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ledgermq.environment import PREFIX, from_settings_file
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.naming.tokens import CREDENTIAL_CHARS_MAX, bearer

Credential = Callable[[str], str]
"""Returns what calls to an address carry, "" for nothing."""

LOOKED_AGAIN_AFTER_S = 1.0
OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger("ledgermq.credentials")


def credential_of(token: str, token_file: str, environment: Mapping[str, str] = os.environ) -> Credential | None:
    """Return what makes the credential of each call; None without a token.

    Raises InvalidConfig for a token that cannot be sent, a file that cannot be read, and two tokens
    from one source.
    """
    for place, (text, file) in _sources(token, token_file, environment):
        if text and file:
            names = [f"{PREFIX}{name.upper()}" if place == PREFIX else name for name in ("token", "token_file")]
            raise InvalidConfig(f"give {names[0]} or {names[1]}, not both{'' if place == PREFIX else place}")
        if text:
            found = bearer(text.strip())
            return lambda address: found
        if file:
            return TokenFile(Path(file)).credential
    return None


def _sources(token: str, token_file: str, environment: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Return where a token may come from, with token and file, in order of precedence."""
    yield "", (token, token_file)
    yield PREFIX, (environment.get(f"{PREFIX}TOKEN", ""), environment.get(f"{PREFIX}TOKEN_FILE", ""))
    found = from_settings_file(environment)
    place = f" (from {environment.get(f'{PREFIX}CONFIG')})"
    yield place, (_text("token", found, place), _text("token_file", found, place))


def _text(name: str, found: Mapping[str, Any], place: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise InvalidConfig(f"setting {name} must be text{place}")  # without the value, which is a secret
    return value


class TokenFile:
    """A file that holds one token. Raises InvalidConfig if it cannot be read at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._credential = self._read()
        if others_may_use(path):
            _log.warning(
                "other users of this machine may read the token file %s: give it to yours alone (chmod 600)", path
            )
        self._looked_s = float("-inf")

    def credential(self, address: str) -> str:
        """Return the credential of the file's token. While a changed file cannot be read, or holds no
        token, the one before it stays.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= LOOKED_AGAIN_AFTER_S:
            self._looked_s = now_s
            try:
                if self._stamp() != self._seen:
                    self._seen, self._credential = self._read()
            except (OSError, InvalidConfig):
                pass
        return self._credential

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> tuple[tuple[int, int, int], str]:
        try:
            stamp = self._stamp()
            with self._path.open(encoding="ascii") as file:
                text = file.read(CREDENTIAL_CHARS_MAX + 2).strip()
        except OSError as error:
            if _is_token(self._path.name):  # neither the text nor its cause may repeat it
                raise InvalidConfig(
                    "token_file is given a token itself: give the path of a file that holds it"
                ) from None
            raise InvalidConfig(f"token file {self._path}: {error.strerror or error}") from error
        except UnicodeDecodeError:
            raise InvalidConfig(f"token file {self._path} holds more than a token") from None
        if not text:
            raise InvalidConfig(f"token file {self._path} is empty")
        try:
            return stamp, bearer(text)
        except InvalidConfig as error:
            raise InvalidConfig(f"token file {self._path}: {error.message}") from None


def others_may_use(path: Path) -> bool:
    """Return whether a file of this user is open to its group or to all. Files of other users, such as the secrets
    that an orchestrator mounts, are not this user's to close.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and bool(found.st_mode & OTHERS)


def _is_token(text: str) -> bool:
    """Return whether a text looks like a static token, or like a signed one."""
    return text.startswith("lmq_") or (text.startswith("eyJ") and text.count(".") == 2)

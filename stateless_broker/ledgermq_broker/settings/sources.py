"""Read settings from their sources: flags, then LEDGERMQ_… variables, then a TOML file, then the
default. Unknown names are refused.

One file and one environment may serve every process of a cluster: each takes its own settings. A
name that no process has is an error that gives the nearest name; a name that was removed is an
error that says what to do instead. This module names no setting.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource

from ledgermq.environment import CLIENT, PREFIX, SEE, check_variables, is_of_kubernetes
from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean

STARS = "********"

Origin = Literal["flag", "environment", "file", "default"]
S = TypeVar("S", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class Given:
    """What the three sources hold, by name: names are checked, values are as they were written."""

    flags: Mapping[str, Any]
    environment: Mapping[str, Any]
    file: Mapping[str, Any]

    def origin(self, name: str) -> Origin:
        """Return the source that decides a setting."""
        if name in self.flags:
            return "flag"
        if name in self.environment:
            return "environment"
        return "file" if name in self.file else "default"

    def value_of(self, name: str) -> Any:
        origin = self.origin(name)
        return {"flag": self.flags, "environment": self.environment, "file": self.file}[origin][name]


def file_of_environment() -> Path | None:
    """Return the TOML file that LEDGERMQ_CONFIG names."""
    found = os.environ.get(f"{PREFIX}CONFIG")
    return Path(found) if found else None


def names_of(*kinds: type[BaseSettings]) -> tuple[str, ...]:
    """Return the settings of all these kinds, each once."""
    return tuple(dict.fromkeys(name for kind in kinds for name in kind.model_fields))


def read_sources(
    kinds: Iterable[type[BaseSettings]],
    file: Path | None,
    flags: Mapping[str, Any],
    removed: Mapping[str, str] | None = None,
) -> Given:
    """Read the sources. `kinds`: of all processes. `removed`: removed names, and what to do without
    them.

    Raises InvalidConfig for any other name than those of `kinds`, and for a file that cannot be
    read.
    """
    every = tuple(kinds)
    names = names_of(*every)
    gone = removed or {}
    given = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown(given, names, gone, "")
    environment = _read_environment(every, names, gone)
    from_file = _read_toml(file) if file is not None else {}
    _refuse_unknown(from_file, (*names, *CLIENT), gone, f"{file}: ")
    return Given(given, environment, from_file)


def settle(kind: type[S], given: Given) -> S:
    """Return the settings of `kind` by precedence.

    Raises InvalidConfig, naming each setting that is wrong and where it comes from.
    """
    try:
        return kind(**{name: given.value_of(name) for name in kind.model_fields if given.origin(name) != "default"})
    except ValidationError as error:
        raise InvalidConfig(
            "; ".join(_problem(kind, given, problem) for problem in error.errors())
        ) from None  # the cause holds secrets


def is_secret(kind: type[BaseSettings], name: str) -> bool:
    return "Secret" in str(kind.model_fields[name].annotation)


def shown(value: Any) -> Any:
    """Return a value as it may be printed and logged: secrets as stars, and a URL without its
    password.
    """
    if isinstance(value, SecretStr):
        return STARS
    return re.sub(r"(://[^/@:\s]*):[^/@\s]*@", rf"\1:{STARS}@", value) if isinstance(value, str) else value


def _problem(kind: type[BaseSettings], given: Given, problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    value = STARS if name in kind.model_fields and is_secret(kind, name) else repr(shown(problem.get("input")))
    origin = given.origin(name)
    where = {"flag": "", "environment": f" (from {PREFIX}{name.upper()})", "file": " (from the file)", "default": ""}[
        origin
    ]
    return f"setting {name}: {problem['msg']}, not {value}{where}"


def _read_environment(
    kinds: Iterable[type[BaseSettings]], names: tuple[str, ...], removed: Mapping[str, str]
) -> dict[str, Any]:
    """Read the variables; one that is set to the empty string counts as not set."""
    check_variables(names, removed)
    found: dict[str, Any] = {}
    for kind in kinds:
        found |= EnvSettingsSource(kind, env_prefix=PREFIX, env_ignore_empty=True)()
    return {name: value for name, value in found.items() if not is_of_kubernetes("", str(value))}


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"settings file {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise InvalidConfig(f"settings file {file}: {error}") from error


def _refuse_unknown(values: Mapping[str, Any], names: tuple[str, ...], removed: Mapping[str, str], where: str) -> None:
    for name in values:
        if name in removed:
            raise InvalidConfig(f"{where}setting {name!r} was removed: {removed[name]}")
        if name not in names:
            raise InvalidConfig(f"{where}unknown setting {name!r}; {did_you_mean(name, names, SEE)}")

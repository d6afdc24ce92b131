"""Declare and parse the options of source and sink.

An option is a field of a dataclass: `startingOffsets` is the field `starting_offsets`. It is
declared once: type, default, rule (`option` and below), and below the field its text in
docs/spark.md. Spark passes names in any case, mixed with its own options, and every value as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from ledgermq.client.settings.tls import Tls
from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean
from ledgermq.protocol.naming.names import is_host
from ledgermq.protocol.naming.tokens import bearer

Parse = Callable[[str, str], Any]
"""A rule, called with (name, text). Returns the value. Raises InvalidConfig, naming the option."""

T = TypeVar("T")


def option(default: Any, parse: Parse = lambda _, text: text, shown: str = "") -> Any:
    """Declare an option. `shown`: what docs/spark.md says in place of the default."""
    return field(default=default, metadata={"parse": parse, "shown": shown})


def secret() -> Any:
    """Declare an option with a token, which no text of the options shows."""

    def parse(name: str, text: str) -> str:
        if not (text := text.strip()):
            return ""
        try:
            bearer(text)
        except InvalidConfig as error:
            raise InvalidConfig(f"{name}: {error.message}") from None
        return text

    return field(default="", repr=False, metadata={"parse": parse, "shown": ""})


def switch(default: bool) -> Any:
    """Declare an option that is true or false."""

    def parse(name: str, text: str) -> bool:
        text = text.strip().lower()
        if text not in ("true", "false"):
            raise InvalidConfig(f"{name} is true or false, not {text!r}")
        return text == "true"

    return option(default, parse)


def maybe_switch() -> Any:
    """Declare an option that is true, false or not set."""

    def parse(name: str, text: str) -> bool | None:
        text = text.strip().lower()
        if text not in ("true", "false", ""):
            raise InvalidConfig(f"{name} is true or false, not {text!r}")
        return None if not text else text == "true"

    return option(None, parse, "the environment's")


def between(default: int | None, least: int, most: int, shown: str = "") -> Any:
    """Declare a whole number from `least` to `most`."""

    def parse(name: str, text: str) -> int:
        text = text.strip()
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise InvalidConfig(f"{name} is a number from {least} to {most}, not {text!r}")
        return int(text)

    return option(default, parse, shown)


def above_zero(default: float, unit: str, shown: str = "") -> Any:
    """Declare a number above 0, of the default's type."""

    def parse(name: str, text: str) -> float:
        text = text.strip()
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or float(text) <= 0:
            raise InvalidConfig(f"{name} is a number of {unit}, as {int(default)}, above 0, not {text!r}")
        return type(default)(float(text))

    return option(default, parse, shown)


def one_of(default: str, choices: Sequence[str]) -> Any:
    """Declare an option that takes one of the choices, in any case."""
    allowed = {each.lower(): each for each in (default, *choices)}

    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in allowed:
            raise InvalidConfig(f"{name} is one of {', '.join(allowed.values())}, not {text!r}")
        return allowed[text.strip().lower()]

    return option(default, parse)


def option_name(of_field: str) -> str:
    """Return the option of a field: `starting_offsets` is `startingOffsets`."""
    first, *others = of_field.split("_")
    return first + "".join(word.capitalize() for word in others)


def fields_of(kind: Any) -> list[Field[Any]]:
    """Return the options that a dataclass declares, and after them those that it inherits."""
    own = vars(kind)["__annotations__"]
    return sorted(fields(kind), key=lambda each: each.name not in own)


def names_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the options that a dataclass declares."""
    return tuple(option_name(each.name) for each in fields_of(kind))


def known_options(
    given: Mapping[str, str],
    names: Sequence[str],
    ignored: Sequence[str] = (),
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return values by the names as they are written in `names`, without those of `ignored`, which
    are in lower case. `elsewhere`: what to do instead of options of Spark's Kafka connector.

    Raises InvalidConfig, with what to do, or the nearest name.
    """
    known = {name.lower(): name for name in names}
    kafka = {name.lower(): advice for name, advice in elsewhere.items()}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in known:
            values[known[name.lower()]] = value
        elif name.lower() in kafka:
            raise InvalidConfig(f"{name} is an option of the Kafka connector; here {kafka[name.lower()]}")
        elif name.lower().startswith("kafka."):
            raise InvalidConfig(
                f"{name} is an option of the Kafka connector; leave it out: options are {', '.join(names)}"
            )
        elif name.lower() not in ignored:
            raise InvalidConfig(f"unknown option {name!r}; {did_you_mean(name, names)}")
    return values


def parse_known(kind: type[T], values: Mapping[str, str]) -> T:
    """Parse the values that `known_options` returned; the other options have their defaults.

    Raises InvalidConfig.
    """
    found: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if (name := option_name(each.name)) in values:
            found[each.name] = each.metadata["parse"](name, values[name])
    return kind(**found)


@dataclass(frozen=True, slots=True)
class Connection:
    """How driver and tasks connect to brokers: settings of `ledgermq.connect`. It shows no token."""

    tls: Tls | bool | None = None
    token: str = field(default="", repr=False)
    token_file: str = ""

    def settings(self) -> dict[str, Any]:
        return {"tls": self.tls, "token": self.token, "token_file": self.token_file}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options about TLS and tokens, which source and sink share. All files are paths on every machine
    that connects to brokers: the driver's, and for a sink also those of the executors.

    Spark shows options in plans, logs and its pages, but hides the values of those whose names match
    `spark.redaction.regex`. By default it holds the word token, in any case.
    """

    token_file: str = option("")
    """file with the token that proves to brokers who calls; a path on the driver, and of a sink also on
    each executor. It is read again when it changes. Not set: as the environment of the driver and of
    each executor says
    """
    token: str = secret()
    """the token itself, in place of `tokenFile`. Spark shows stars in place of it in plans, logs and its
    pages; it sends it to executors with the tasks
    """
    tls: bool | None = maybe_switch()
    """`true`: connect to brokers by TLS; `false`: without. Not set: as the files and the environment
    of the driver and of each executor say
    """
    tls_ca_file: str = option("")
    """PEM file of the authorities that sign the brokers' certificates; a path on the driver, and of a
    sink also on each executor
    """
    tls_cert_file: str = option("")
    """PEM file of a certificate for brokers that ask for one, there, too"""
    tls_key_file: str = option("")
    """PEM file of its private key, there, too"""
    tls_server_name: str = option("")
    """name that the brokers' certificates are made out for, in place of the host of each broker's address"""

    def connection(self) -> Connection:
        """Return how to connect. Raises InvalidConfig."""
        if self.token and self.token_file:
            raise InvalidConfig("give token or tokenFile, not both")
        return Connection(self._tls(), self.token, self.token_file)

    def _tls(self) -> Tls | bool | None:
        if not (self.tls_ca_file or self.tls_cert_file or self.tls_key_file or self.tls_server_name):
            return self.tls
        if self.tls is False:
            raise InvalidConfig("tls=false takes no files of TLS and no server name")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise InvalidConfig("tlsCertFile and tlsKeyFile go together: give both or none")
        if self.tls_server_name and not is_host(self.tls_server_name):
            raise InvalidConfig(f"tlsServerName must be a host name or an IP address, not {self.tls_server_name!r}")
        return Tls(
            ca=self.tls_ca_file or None,
            cert=self.tls_cert_file or None,
            key=self.tls_key_file or None,
            server_name=self.tls_server_name or None,
        )


def check_servers(servers: str) -> None:
    """Check the addresses of brokers. Raises InvalidConfig for a root URL, which would start a
    broker in this process.
    """
    if "://" in servers:
        raise InvalidConfig(
            f"servers are addresses of brokers, host:port with commas between them, not {servers!r}; a URL is for root"
        )

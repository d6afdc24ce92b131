"""Declare settings of processes: frozen and typed, each with its help text, and whether a running process takes a
change. `ProcessSettings` has those that every process has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict


def setting(default: Any, help_text: str, **rules: Any) -> Any:
    """Declare a setting that a process reads when it starts; `rules` as in pydantic's `Field`."""
    return Field(default, description=help_text, **rules)


def live(default: Any, help_text: str, **rules: Any) -> Any:
    """Declare a setting that SIGHUP changes in a running process."""
    return Field(default, description=help_text, json_schema_extra={"live": True}, **rules)


def is_live(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, Mapping) and field.json_schema_extra.get("live") is True


class ProcessSettings(BaseSettings):
    """Settings of every process."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **by_name: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Ignore all sources: only `load_settings` reads the environment."""
        return (init_settings,)

    cluster_id: str | None = setting(
        None,
        "Accept only the root of this cluster; the process refuses any other root, and an empty one. Set it where a "
        "wrong root URL must not start a second cluster. `ledgermq inspect cluster ROOT` prints the id",
        pattern=r"^[0-9a-f]{32}$",
    )

    log_format: Literal["console", "json"] = live(
        "console", "Format of the log lines on stderr: console for people, json for log collectors"
    )
    log_level: Literal["debug", "info", "warning", "error"] = live(
        "info", "Lowest level that is logged. Set debug to look into a problem, warning for less output"
    )

    shutdown_ms: int = live(
        20_000,
        "Longest time after SIGTERM to flush and to hand over bundles; 3 s later the process exits in any case. Keep "
        "it shorter than the grace period of the supervisor, such as Kubernetes' terminationGracePeriodSeconds",
        ge=100,
    )

    admin_host: str = setting(
        "127.0.0.1",
        "Address on which the admin port (/livez, /readyz, /metrics) listens; 0.0.0.0 for all. Set it when another "
        "machine scrapes metrics or probes health",
    )
    admin_port: int | None = setting(
        None,
        "Admin port, HTTP; 0 takes a free port, not set opens none. Set it to get metrics and probes",
        ge=0,
        le=65535,
    )
    admin_tls: Literal["off", "on", "mutual"] = setting(
        "off",
        "TLS of the admin port: on serves HTTPS with `tls_cert_file`; mutual also refuses clients without a certificate"
        " of `tls_client_ca_file`. Set it when the port can be reached from other machines",
    )

    tls_cert_file: str | None = setting(
        None,
        "PEM file of this process's certificate, with its chain. With it a broker's port accepts TLS only (1.2 or"
        " newer), and the broker connects to other brokers by TLS: set it alike in all brokers. Its names must include"
        " the host of `advertised_address` and of `peer_address`. A changed file is read within seconds",
        min_length=1,
    )
    tls_key_file: str | None = setting(
        None, "PEM file of the private key of `tls_cert_file`, without a password", min_length=1
    )
    tls_client_ca_file: str | None = setting(
        None,
        "PEM file of the authorities that sign certificates of clients, and of the other brokers, which are clients,"
        " too. Used where `tls_client_auth` is required or `admin_tls` is mutual",
        min_length=1,
    )

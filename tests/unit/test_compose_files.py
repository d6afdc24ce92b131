"""infra/compose/ without a Docker daemon: what its files say of each other, of the project and of
secrets.
"""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from packaging.requirements import Requirement

from infra import image_locks
from ledgermq_broker.settings.processes import NAMES, load_compaction_settings, load_settings
from ledgermq_gateway.commands import tls_context
from ledgermq_gateway.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "infra" / "compose"
COMPOSE = (FOLDER / "compose.yaml").read_text()
EXAMPLE = (FOLDER / ".env.example").read_text()
SCRIPT = (FOLDER / "minio" / "make_users.sh").read_text()
FOR_GOOD = {"minio", "broker-1", "broker-2", "broker-3", "compactor", "gateway", "prometheus", "grafana"}
ADMINISTRATOR = {"STORE_ACCESS_KEY", "STORE_SECRET_KEY"}
USERS = {"BROKER", "COMPACTOR", "READER"}
SECRETS = {*ADMINISTRATOR, *(f"{user}_SECRET_KEY" for user in USERS), "GRAFANA_PASSWORD"}
MINIO = FOLDER / "minio"


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
    return found


def test_the_images_install_what_is_locked() -> None:
    for path, text in image_locks.locks().items():
        assert path.read_text() == text, "run: make lock"
        assert text.count("==") > 3
        assert "--hash=sha256:" in text


def test_everything_that_an_image_downloads_by_pip_has_a_hash() -> None:
    installs = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if "pip.sh install" in line]
    assert [line for line in installs if "--require-hashes" not in line and "/project" not in line] == []
    lock = (FOLDER / "build.lock").read_text()
    [build] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert f"{Requirement(build).name}==" in lock
    for block in re.split(r"\n(?=\S)", lock.split("\n", 1)[1]):
        assert "--hash=sha256:" in block, block


def test_images_that_others_publish_come_by_digest() -> None:
    """A tag may mean another image tomorrow. Our own images are built here; their base is the operator's choice."""
    others = {name: each["image"] for name, each in services().items() if not each["image"].startswith("ledgermq")}
    assert set(others) == {"prometheus", "grafana"}
    for image in others.values():
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z/]+:v?[0-9.]+@sha256:[0-9a-f]{64}\}", image), image
    argument = services()["minio"]["build"]["args"]["MINIO_IMAGE"]
    assert "@sha256:" in argument
    assert argument.partition(":-")[2].rstrip("}") in (MINIO / "Dockerfile").read_text(), "the same in both"


def test_spark_is_not_in_the_image_of_brokers() -> None:
    broker, spark = ((FOLDER / f"{name}.lock").read_text() for name in ("broker", "spark"))
    names = [set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)) for text in (broker, spark)]
    assert {"grpcio", "pyarrow", "botocore", "hdfs-native"} <= names[0]
    assert {"pyspark", "pandas"} <= names[1]
    assert not names[0] & names[1]


def test_the_image_takes_in_every_package() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    needed = [*(package.partition("/")[0] for package in packages), "infra/metadata_hook.py", "infra/package_page.py"]
    assert {f"!{path}" for path in needed} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_the_example_names_every_variable_with_its_default_and_no_other() -> None:
    named = dict(re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    used = dict(re.findall(r"\$\{([A-Z][A-Z0-9_]+)(?::[-?]([^}]*))?\}", COMPOSE))
    assert named.keys() == used.keys() | {"COMPOSE_PROJECT_NAME"}
    assert {name: value for name, value in used.items() if name not in SECRETS} == {
        name: value for name, value in named.items() if name not in SECRETS | {"COMPOSE_PROJECT_NAME"}
    }
    for path in ("Dockerfile", "minio/Dockerfile"):
        for name, value in re.findall(r"^ARG ([A-Z_]+)=(\S+)$", (FOLDER / path).read_text(), re.MULTILINE):
            assert named[name] == value


def test_no_secret_is_in_the_files() -> None:
    assert set(re.findall(r"^([A-Z_]+)=$", EXAMPLE, re.MULTILINE)) == SECRETS
    assert {name for name in SECRETS if f"${{{name}:?" in COMPOSE} == SECRETS
    for service in services().values():
        for name, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|ACCESS_KEY|ROOT_USER", name):
                assert str(value).startswith("${"), name
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/infra/compose/.env" in ignored


def test_no_process_of_ours_has_the_key_of_the_stores_administrator() -> None:
    """It opens, and deletes, every bucket of the store."""
    holders = {
        name
        for name, service in services().items()
        if any(
            secret in str(value) for value in (service.get("environment") or {}).values() for secret in ADMINISTRATOR
        )
    }
    assert holders == {"minio", "bucket", "users"}
    assert not any("AWS" in name or "TOKEN" in name for name in services()["gateway"]["environment"])
    for name in FOR_GOOD - {"minio", "gateway", "prometheus", "grafana"}:
        user = "COMPACTOR" if name == "compactor" else "BROKER"
        environment = services()[name]["environment"]
        assert f"${{{user}_ACCESS_KEY:-" in environment["AWS_ACCESS_KEY_ID"]
        assert f"${{{user}_SECRET_KEY:?" in environment["AWS_SECRET_ACCESS_KEY"]
        assert list(services()[name]["depends_on"]) == ["users"]
        assert not (USERS - {user}) & {value[2:].partition("_")[0] for value in map(str, environment.values())}


def test_the_users_of_the_store_have_the_policies_that_the_page_shows() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    shown = dict(re.findall(r"<!-- policy: (\w+) -->\n```json\n(.*?)```", page, re.DOTALL))
    assert shown == {file.stem: file.read_text() for file in (MINIO / "policies").glob("*.json")}
    made = re.findall(r'^make_user "\$(\w+)_ACCESS_KEY" "\$\1_SECRET_KEY" (.*)$', SCRIPT, re.MULTILINE)
    assert {user: policies.split() for user, policies in made} == {
        "BROKER": ["broker"],
        "COMPACTOR": ["compactor"],
        "READER": ["reader", "s3a"],
    }
    [policies] = re.findall(r"^for policy in (.*); do make_policy", SCRIPT, re.MULTILINE)
    assert set(policies.split()) == {name for _, names in made for name in names.split()}
    needed = {name for name in re.findall(r"\$\{?([A-Z][A-Z_]+)", SCRIPT) if name not in ("POLICIES", "BASH_REMATCH")}
    assert needed - {"SECONDS"} <= services()["users"]["environment"].keys()


@pytest.mark.parametrize("service", sorted(FOR_GOOD))
def test_a_service_is_bounded_and_watched(service: str) -> None:
    found = services()[service]
    assert found["restart"] == "unless-stopped"
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["user"].partition(":")[0] not in ("", "0", "root")
    assert {"healthcheck", "mem_limit", "cpus", "pids_limit", "logging", "security_opt"} <= found.keys()


def test_every_variable_that_is_passed_to_processes_is_a_setting() -> None:
    passed = {
        name
        for service in services().values()
        for name in service.get("environment") or ()
        if name.startswith("LEDGERMQ_")
    }
    of_gateway = {f"gateway_{each.name}" for each in fields(GatewaySettings)}
    known = {*NAMES, *of_gateway, "root", "config", "target"}
    assert {name.removeprefix("LEDGERMQ_").lower() for name in passed} <= known


def test_the_settings_file_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FOLDER / "settings" / "ledgermq.toml"
    assert load_settings(file).background_compaction is False
    assert load_compaction_settings(file).compaction_engine == "spark"


def test_brokers_ask_for_a_token_and_the_pages_make_the_first_one() -> None:
    settings = load_settings(FOLDER / "settings" / "ledgermq.toml")
    assert (settings.security, settings.super_principals) == ("rules", "user:admin")
    made = (
        "docker compose exec -T broker-1 sh -c 'ledgermq token create admin --target \"$LEDGERMQ_ROOT\"' > admin.token"
    )
    for text in (COMPOSE, (ROOT / "docs" / "operations.md").read_text()):
        assert made in text
    assert "LEDGERMQ_ROOT" in services()["broker-1"]["environment"]
    assert "/infra/compose/*.token" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_gateway_serves_the_console_by_tls_with_keys_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = services()["gateway"]["environment"]
    defaults = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in environment.items()}
    given = {
        name.removeprefix("LEDGERMQ_GATEWAY_").lower(): value.replace("/keys", str(tmp_path))
        for name, value in defaults.items()
        if name.startswith("LEDGERMQ_GATEWAY_")
    }
    numbers = {name: int(value) for name, value in given.items() if name.endswith("port")}
    settings = GatewaySettings(**{**given, **numbers})
    assert (settings.host, settings.admin_host, settings.console) == ("127.0.0.1", "127.0.0.1", "read")
    spec = importlib.util.spec_from_file_location("make_keys", FOLDER / "image" / "make_keys.py")
    assert spec is not None
    assert spec.loader is not None
    make_keys = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_keys)
    make_keys.main(tmp_path, "mq.example.com")
    assert tls_context(settings) is not None
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == {"gateway.pem", "gateway.key", "console.key"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert len(bytes.fromhex(made["console.key"].decode())) == 32
    names = x509.load_pem_x509_certificate(made["gateway.pem"]).extensions
    shown = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert shown.get_values_for_type(x509.DNSName) == ["mq.example.com", "localhost"]
    make_keys.main(tmp_path, "other.example.com")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == made, "what is there stays"
    (tmp_path / "gateway.key").unlink()
    make_keys.main(tmp_path, "other.example.com")
    assert tls_context(settings) is not None, "both are made again"


def test_grafana_is_given_the_dashboard_and_its_source() -> None:
    [provider] = yaml.safe_load((FOLDER / "grafana" / "dashboards" / "ledgermq.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])
    assert mounts["../grafana/ledgermq.json"].startswith(provider["options"]["path"])
    assert (FOLDER / "../grafana/ledgermq.json").exists()
    [source] = yaml.safe_load((FOLDER / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True


def test_prometheus_scrapes_every_process() -> None:
    jobs = yaml.safe_load((ROOT / "infra" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for scraped in job["static_configs"] for target in scraped["targets"]}
    assert targets == {f"{name}:9651" for name in FOR_GOOD if name.startswith("broker-") or name == "compactor"}

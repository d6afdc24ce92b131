"""The chart of infra/kubernetes/, rendered by Helm in each of its variants. No cluster is needed, and none was to be
had: what a cluster would do with it is not shown here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.helm import HELM
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import NAMES
from ledgermq_gateway.commands import VARIABLE
from ledgermq_gateway.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "infra" / "kubernetes" / "ledgermq"
KUBERNETES = "1.34.0"
VALIDATE = (
    Path(sys.executable).parent / "uv",
    "tool",
    "run",
    "--from",
    "kubernetes-validate==1.34.1",
    "kubernetes-validate",
)
OWN = ("monitoring.coreos.com",)
"""Kinds that Kubernetes has no schema of."""
BUCKET = "s3://bucket/prefix?region=eu-central-1"
TOPICS = [{"name": "orders", "partitions": 12, "settings": {"retention.ms": "7d"}}]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "open": {"broker": {"security": "open"}, "compactor": {"enabled": False}},
    "store": {"broker": {"store": {"secret": "keys"}}, "compactor": {"store": {"secret": "keys"}}},
    "tls": {"tls": {"secret": "certificate"}, "topics": TOPICS},
    "autoscaling": {"autoscaling": {"enabled": True}},
    "topics": {"topics": TOPICS, "topicsToken": {"secret": "token"}},
    "monitoring": {
        "gateway": {"enabled": True},
        "monitoring": {"podMonitor": True, "rules": True, "labels": {"release": "prometheus"}},
    },
    "network": {"networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}},
    "gateway": {"gateway": {"enabled": True}},
    "gateway tls": {
        "tls": {"secret": "certificate"},
        "gateway": {
            "enabled": True,
            "hosts": ["mq.example.org", "mq.example.org:8080"],
            "tls": {"secret": "web"},
            "settings": {"streams_max": 1000, "cors_origins": "https://shop.example.org"},
        },
    },
    "delegate": {
        "gateway": {"enabled": True, "delegate": {"secret": "gateway-token", "key": "t", "principal": "user:gw"}},
        "tracing": {"endpoint": "http://collector:4317"},
    },
    "settings": {
        "broker": {
            "settings": {"flush_bytes": 1048576, "direct_reads": True, "rack": "a"},
            "superPrincipals": ["user:a"],
        }
    },
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HELM.installed() is None, reason="helm is not installed: make test-kubernetes"),
]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(HELM.install()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def values_of(folder: Path, values: Mapping[str, Any]) -> Path:
    file = folder / "values.json"
    file.write_text(json.dumps({"root": BUCKET, **values}), encoding="utf-8")
    return file


def rendered(folder: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    done = helm("template", "mq", CHART, "--kube-version", KUBERNETES, "--values", values_of(folder, values))
    assert done.returncode == 0, done.stderr
    (folder / "all.yaml").write_text(done.stdout, encoding="utf-8")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods_of(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if document["kind"] in ("Deployment", "Job"):
            yield document["spec"]["template"]["spec"]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def test_helm_and_the_schemas_of_kubernetes_take_it(variant: dict[str, Any], tmp_path: Path) -> None:
    values = values_of(tmp_path, variant)
    linted = helm("lint", "--strict", CHART, "--kube-version", KUBERNETES, "--values", values)
    assert linted.returncode == 0, linted.stdout
    known = [each for each in rendered(tmp_path, variant) if not each["apiVersion"].startswith(OWN)]
    (tmp_path / "known.yaml").write_text(yaml.safe_dump_all(known), encoding="utf-8")
    command = [*map(str, VALIDATE), "--strict", "-k", KUBERNETES, str(tmp_path / "known.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_pod_is_restricted(variant: dict[str, Any], tmp_path: Path) -> None:
    """As the profile `restricted` of Pod Security Standards asks, and with limits of memory, none of CPU."""
    pods = list(pods_of(rendered(tmp_path, variant)))
    assert pods
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            limits = container["resources"]["limits"]
            assert limits.keys() == {"memory"}
            assert limits["memory"] == container["resources"]["requests"]["memory"]


def test_every_variable_is_a_setting(variant: dict[str, Any], tmp_path: Path) -> None:
    known = {f"LEDGERMQ_{name.upper()}" for name in NAMES} | {"LEDGERMQ_ROOT", "LEDGERMQ_TARGET", "LEDGERMQ_TOKEN_FILE"}
    known |= {f"{VARIABLE}{each.name.upper()}" for each in fields(GatewaySettings)}
    for pod in pods_of(rendered(tmp_path, variant)):
        names = {each["name"] for container in pod["containers"] for each in container["env"]}
        assert names - known <= {"POD_IP", "POD_NAME", "OTEL_EXPORTER_OTLP_ENDPOINT"}


def test_settings_are_written_as_brokers_read_them(tmp_path: Path) -> None:
    [broker] = [
        pod for pod in pods_of(rendered(tmp_path, VARIANTS["settings"])) if pod["containers"][0]["name"] == "broker"
    ]
    found = {each["name"]: each.get("value") for each in broker["containers"][0]["env"]}
    assert found["LEDGERMQ_FLUSH_BYTES"] == "1048576"
    assert found["LEDGERMQ_DIRECT_READS"] == "true"
    assert found["LEDGERMQ_SUPER_PRINCIPALS"] == "user:a"


def test_a_gateway_knows_where_brokers_are_and_what_it_shows(tmp_path: Path) -> None:
    documents = rendered(tmp_path, VARIANTS["gateway tls"])
    [pod] = [pod for pod in pods_of(documents) if pod["containers"][0]["name"] == "gateway"]
    found = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    services = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["port"] for each in documents if each["kind"] == "Service"
    }
    assert found["LEDGERMQ_TARGET"] == f"mq:{services['mq']}"
    assert services["mq-gateway"] == int(found["LEDGERMQ_GATEWAY_PORT"])
    assert found["LEDGERMQ_GATEWAY_HOSTS"] == "mq.example.org,mq.example.org:8080"
    assert found["LEDGERMQ_GATEWAY_STREAMS_MAX"] == "1000"
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert found["LEDGERMQ_GATEWAY_HTTP_KEY_FILE"] == f"{mounts['http-tls']}/tls.key"
    assert found["LEDGERMQ_TLS_CA_FILE"] == f"{mounts['tls']}/ca.crt"


def test_a_gateway_passes_on_addresses_and_both_send_spans(tmp_path: Path) -> None:
    documents = rendered(tmp_path, VARIANTS["delegate"])
    found = {
        pod["containers"][0]["name"]: {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        for pod in pods_of(documents)
    }
    assert found["broker"]["LEDGERMQ_DELEGATES"] == "user:gw"
    assert BrokerSettings.model_validate({"delegates": "user:gw"}).delegates == "user:gw"
    [pod] = [pod for pod in pods_of(documents) if pod["containers"][0]["name"] == "gateway"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert found["gateway"]["LEDGERMQ_GATEWAY_DELEGATE_TOKEN_FILE"] == f"{mounts['delegate']}/t"
    [volume] = [each for each in pod["volumes"] if each["name"] == "delegate"]
    assert volume["secret"]["secretName"] == "gateway-token"
    assert found["broker"]["LEDGERMQ_TRACING"] == "true"
    assert found["gateway"]["LEDGERMQ_GATEWAY_TRACING"] == "on"
    for name in ("broker", "gateway"):
        assert found[name]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in found["compactor"]


@pytest.mark.parametrize(
    "root", [BUCKET, "az://container/prefix?account=a", "gs://bucket/prefix", "hdfs://name/prefix"]
)
def test_every_store_that_outlives_pods_can_be_a_root(root: str, tmp_path: Path) -> None:
    assert rendered(tmp_path, {"root": root})


def test_a_gateway_has_time_to_end_its_streams(tmp_path: Path) -> None:
    settings = GatewaySettings()
    [pod] = [p for p in pods_of(rendered(tmp_path, VARIANTS["gateway"])) if p["containers"][0]["name"] == "gateway"]
    stop_ms = settings.drain_ms + settings.streams_end_ms + settings.shutdown_ms
    assert pod["terminationGracePeriodSeconds"] > stop_ms / 1000


def test_a_pod_has_time_to_hand_over(tmp_path: Path) -> None:
    shutdown_s = BrokerSettings.model_fields["shutdown_ms"].default / 1000 + 3
    for pod in pods_of(rendered(tmp_path, {})):
        assert pod["terminationGracePeriodSeconds"] > shutdown_s


def test_autoscaling_leaves_the_number_of_pods_alone(tmp_path: Path) -> None:
    by_kind = {
        each["kind"]: each for each in rendered(tmp_path, {"compactor": {"enabled": False}, **VARIANTS["autoscaling"]})
    }
    assert "replicas" not in by_kind["Deployment"]["spec"]
    assert (
        by_kind["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == by_kind["Deployment"]["metadata"]["name"]
    )


def test_topics_come_as_the_command_line_reads_them(tmp_path: Path) -> None:
    from ledgermq.client.admin.topic_plan import TopicSpec, read_topics

    [config] = [each for each in rendered(tmp_path, VARIANTS["topics"]) if each["kind"] == "ConfigMap"]
    found = read_topics(config["data"]["topics.json"], "json", "the ConfigMap")
    assert found == [TopicSpec("orders", 12, {"retention.ms": "7d"})]


def test_the_alerts_are_those_of_prometheus(tmp_path: Path) -> None:
    alerts = ROOT / "infra" / "prometheus" / "alerts.yml"
    [rule] = [each for each in rendered(tmp_path, VARIANTS["monitoring"]) if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(alerts.read_text())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"root": "file:///data"}, "root"),
        ({"root": ""}, "root"),
        ({"brokers": {}}, "brokers"),
        ({"broker": {"replica": 3}}, "replica"),
        ({"broker": {"superPrincipals": ["alice"]}}, "superPrincipals"),
        ({"topics": [{"name": "a b"}]}, "topics"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"gateway": {"hosts": ["https://a/b"]}}, "hosts"),
        ({"gateway": {"delegate": {"principal": "gateway"}}}, "principal"),
        ({"tracing": {"endpoint": "collector:4317"}}, "endpoint"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    done = helm("template", "mq", CHART, "--kube-version", KUBERNETES, "--values", values_of(tmp_path, values))
    assert done.returncode != 0
    assert says in done.stderr


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()

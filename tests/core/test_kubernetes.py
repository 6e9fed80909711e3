"""The manifests: right by the schemas of Kubernetes, right in what they refer to, and with settings that are right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router.settings import load

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
# The oldest that is still maintained by somebody, and the newest that is known here.
VERSIONS = ("1.30", "1.37")

Manifest = dict[str, Any]


def manifests() -> Iterator[Manifest]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


def named(kind: str, name: str) -> Manifest:
    (found,) = [one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


ALL = list(manifests())
DEPLOYMENTS = [one for one in ALL if one["kind"] == "Deployment"]
ROUTER = named("Deployment", "prefix-router")
POD = ROUTER["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SETTINGS = yaml.safe_load(named("ConfigMap", "prefix-router")["data"]["router.yaml"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", ALL, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_it_is_what_the_schema_says(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_would_find_a_mistake() -> None:
    broken = yaml.safe_load(yaml.safe_dump(ROUTER))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_everything_but_the_example_of_a_secret_is_applied() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in FILES if path.name != "secret.example.yaml")


def test_its_settings_are_right_and_name_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(SETTINGS))
    settings = load(file)
    name, _, port = settings.workers_dns[0].partition(":")
    workers = named("Service", name)
    assert workers["spec"]["clusterIP"] == "None"
    assert [str(one["port"]) for one in workers["spec"]["ports"]] == [port]
    assert settings.sync.redis_url is not None
    host, _, port = (
        settings.sync.redis_url.get_secret_value().removeprefix("redis://").removesuffix("/0").partition(":")
    )
    assert [str(one["port"]) for one in named("Service", host)["spec"]["ports"]] == [port]
    assert settings.host == "0.0.0.0"
    assert settings.port == CONTAINER["ports"][0]["containerPort"]
    mount = next(one for one in CONTAINER["volumeMounts"] if one["name"] == "settings")
    assert CONTAINER["args"] == ["serve", "--config", f"{mount['mountPath']}/router.yaml"]


def test_its_variables_are_settings_and_their_secrets_are_in_the_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = named("Secret", "prefix-router")["stringData"]
    wanted = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in CONTAINER["env"]}
    assert {reference["key"] for reference in wanted.values()} == set(keys)
    assert {reference["name"] for reference in wanted.values()} == {"prefix-router"}
    for name, reference in wanted.items():
        monkeypatch.setenv(name, keys[reference["key"]])
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(SETTINGS))
    auth = load(file).auth
    assert auth.admin_key is not None
    assert auth.worker_api_key is not None
    assert len(auth.api_keys) == 1
    # Those that the cluster makes of the names of services could look like settings, and be refused.
    assert POD["enableServiceLinks"] is False


def test_a_pod_is_given_the_time_that_a_drain_takes() -> None:
    (_, wait) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    timeouts = SETTINGS["timeouts"]
    needed = int(wait) + timeouts["drain_delay"] + timeouts["drain"]
    assert needed < POD["terminationGracePeriodSeconds"] <= needed + 30


def test_probes_ask_what_they_should() -> None:
    paths = {name: CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness", "startup")}
    assert paths == {"liveness": "/health", "readiness": "/ready", "startup": "/health"}
    port = CONTAINER["ports"][0]["name"]
    assert {CONTAINER[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {port}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: one["metadata"]["name"])
def test_selectors_meet_their_pods_and_pods_have_few_rights(deployment: Manifest) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert named("Service", deployment["metadata"]["name"])["spec"]["selector"].items() <= labels.items()
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        mounted = {one["name"] for one in container.get("volumeMounts", ())}
        assert mounted == {one["name"] for one in pod.get("volumes", ())}


def test_a_disruption_leaves_somebody() -> None:
    budget = named("PodDisruptionBudget", "prefix-router")["spec"]
    assert 0 < budget["minAvailable"] < ROUTER["spec"]["replicas"]
    assert budget["selector"] == ROUTER["spec"]["selector"]
    assert ROUTER["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_user_is_the_images() -> None:
    image = (FOLDER.parents[1] / "Dockerfile").read_text()
    assert f"USER {POD['securityContext']['runAsUser']}\n" in image

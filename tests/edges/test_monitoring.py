"""The shipped alerts and dashboard: their metrics and labels exist, and the alerts fire when they should."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.app import Router
from router.settings import Settings
from tests.shipped import CONFIG, ROOT, ROUTERS, SERVICES, WORKERS, needed, run

ALERTS = CONFIG / "alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((CONFIG / "grafana" / "dashboards" / "prefix-router.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
# What Prometheus adds to every series, and what belongs to histograms.
EVERYWHERE = {"instance", "job", "le"}
# Written with the engine's metrics, which the simulated worker has too.
ENGINE = {"vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"}


def expressions() -> list[tuple[str, str]]:
    """(where, expression) of every alert and panel."""
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    found += [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", [])]
    return found


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """Labels by name, as they appear in the exposition."""
    known: dict[str, set[str]] = {"up": set(), **{name: {"model_name", "engine"} for name in ENGINE}}
    metrics = Router(Settings()).metrics
    kinds = {family.name: family.type for family in metrics.collect()}
    for part in metrics._parts:
        kind = kinds[part.name.removesuffix("_total")]
        suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        known |= {part.name + suffix: set(part.labels) for suffix in suffixes}
    return known


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_an_expression_uses_metrics_and_labels_that_exist(
    where: str, expression: str, metrics: dict[str, set[str]]
) -> None:
    names = re.findall(r"\b(?:router_\w+|vllm:\w+|up\b)", expression)
    assert names, where
    assert set(names) <= set(metrics)
    labels = EVERYWHERE.union(*(metrics[name] for name in names))
    used = re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression)
    for group in re.findall(r"by \(([^)]*)\)", expression):
        used += [label.strip() for label in group.split(",")]
    assert set(used) <= labels


def test_alerts_say_how_grave_they_are_and_what_happened(metrics: dict[str, set[str]]) -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(",")}
        series = set().union(*(metrics[name] for name in re.findall(r"router_\w+", rule["expr"]))) | EVERYWHERE
        shown = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert set(shown) <= (grouped or series), rule["alert"]


def test_prometheus_scrapes_every_replica_and_worker() -> None:
    content = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in content["scrape_configs"]}
    assert targets == {
        "prefix-router": [f"{name}:8080" for name in ROUTERS],
        "vllm": [f"{name}:8000" for name in WORKERS],
    }
    mounted = {volume.split(":")[0]: volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert content["rule_files"] == [Path(mounted["./config/alerts.yml"]).name]
    assert 'job="prefix-router"' in RULES[0]["expr"]


def test_promtool_accepts_the_configuration() -> None:
    done = run(needed("promtool"), "check", "config", str(CONFIG / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should() -> None:
    done = run(needed("promtool"), "test", "rules", str(ROOT / "tests" / "data" / "alerts_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_for_promtool() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "data" / "alerts_test.yml").read_text())["tests"]
    fired = {check["alertname"] for case in cases for check in case["alert_rule_test"] if check.get("exp_alerts")}
    quiet = {check["alertname"] for case in cases for check in case["alert_rule_test"] if not check.get("exp_alerts")}
    assert fired == quiet == {rule["alert"] for rule in RULES}


def test_the_dashboard_has_its_rows_and_its_panels_do_not_overlap() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "Affinity",
        "Latency",
        "Workers",
        "Calibration",
        "Replicas",
        "News between replicas",
    ]
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    provisioning = CONFIG / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    used = re.findall(r'"datasource": (\{[^}]*\})', json.dumps(DASHBOARD))
    assert set(used) == {json.dumps({"type": "prometheus", "uid": source["uid"]})}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "prefix-router.yml").read_text())["providers"]
    mounted = {volume.split(":")[0]: volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert provider["options"]["path"] == mounted["./config/grafana/dashboards"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/prefix-router.json"

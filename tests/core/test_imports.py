"""Imports point down only; the table is the house of docs/why.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "router"

# Lower number = lower floor. A module may import from its own package and from lower floors.
FLOORS = {
    "errors": 0,
    "settings": 1,
    "wire": 1,
    "descriptors": 1,
    "flags": 0,
    "quota": 1,
    "reload": 2,
    "keys": 2,
    "prompt": 2,
    "hashing": 0,
    "build": 1,
    "cachemodel": 2,
    "touches": 0,
    "holdings": 1,
    "shadows": 2,
    "affinity": 3,
    "sync_pack": 1,
    "policy": 2,
    "policy_work": 3,
    "work": 1,
    "routes": 3,
    "metrics": 3,
    "sync_steps": 2,
    "sync_codec": 4,
    "sync_work": 6,
    "sync_peers": 5,
    "sync_snapshot": 5,
    "sync_repair": 5,
    "sync_sketches": 6,
    "sync_outbox": 7,
    "sync_resync": 7,
    "sync_off": 8,
    "calibration": 4,
    "decisions": 4,
    "decision_file": 5,
    "terminal": 5,
    "workers": 5,
    "dataplane": 6,
    "sync_places": 2,
    "sync_connection": 3,
    "sync_publisher": 4,
    "sync_subscriber": 4,
    "sync_redis": 5,
    "sync_train": 6,
    "sync_echo": 1,
    "sync": 9,
    "siblings": 2,
    "restarts": 0,
    "collector": 0,
    "allocator": 0,
    "sync_metrics": 9,
    "control": 7,
    "fit": 6,
    "doctor": 6,
    "replay": 7,
    "app": 10,
    "serving": 11,
    "demo": 11,
    "processes": 12,
    "__main__": 13,
}
PURE = {"errors", "prompt", "hashing", "cachemodel", "touches", "affinity", "policy", "policy_work", "work"}
PURE |= {"calibration", "restarts", "holdings", "shadows"}
PURE |= {"quota", "sync_codec", "sync_pack", "sync_steps", "sync_peers", "sync_snapshot", "sync_repair", "sync_echo"}
IMPURE_MODULES = {"asyncio", "time", "random", "logging", "socket", "threading", "os", "secrets", "uuid"}


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            if node.module == "router":
                found.update(f"router.{alias.name}" for alias in node.names)
            else:
                found.add(node.module)
    return found


MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    assert part in FLOORS, f"{part} has no floor: add it to the table"
    for name in imports_of(path):
        if not name.startswith("router."):
            continue
        target = name.split(".")[1]
        if target != part:
            assert FLOORS[target] < FLOORS[part], f"{part} must not import {target}"


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) in PURE], ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & IMPURE_MODULES


def test_the_simulated_worker_knows_nothing_of_the_router() -> None:
    for path in (ROOT.parent / "loadtest" / "simworker").rglob("*.py"):
        assert not any(name.split(".")[0] == "router" for name in imports_of(path)), path

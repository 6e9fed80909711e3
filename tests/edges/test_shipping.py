"""What is shipped around the code: the wheel, the image's recipe, the deployment."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator

import pytest

from loadtest.fleet import free_port
from loadtest.simworker.config import parse as parse_simworker
from router import __main__ as command_line
from router.settings import load
from tests.shipped import COMPOSE, CONFIG, ROOT, ROUTERS, SERVICES, WORKERS, optional, run, stand_in

VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


# -- the wheel -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy that has only what the image's recipe copies, so that nothing else can be needed."""
    source = tmp_path_factory.mktemp("source")
    for name in context():
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = run(sys.executable, "-c", build, str(source), cwd=source)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(source / f"prefix_router-{VERSION}-py3-none-any.whl") as archive:
        yield archive


def test_the_wheel_has_every_module_and_what_it_reads(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("router", "loadtest")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    assert packed == sources
    assert {"router/py.typed", "router/control/static/dashboard.html", "loadtest/simworker/__main__.py"} <= packed


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    about = f"prefix_router-{VERSION}.dist-info"
    metadata = wheel.read(f"{about}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert f"{about}/licenses/LICENSE" in wheel.namelist()
    assert "# prefix-router" in metadata  # the README is the description
    assert wheel.read(f"{about}/entry_points.txt").decode().split() == [
        "[console_scripts]",
        "prefix-router",
        "=",
        "router.__main__:main",
    ]


# -- the image -------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(word, rest) for word, rest in pairs]


def values(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def context() -> list[str]:
    """What the first stage copies from the build context."""
    copied = [shlex.split(rest)[:-1] for rest in values("COPY") if not rest.startswith("--from")]
    return list(itertools.chain.from_iterable(copied))


def test_the_image_copies_what_exists_and_is_not_ignored() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"  # all is ignored, but for what is named
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert context()
    assert all((ROOT / name).exists() for name in context())
    assert set(context()) == allowed


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    words = [word for word, _ in instructions()]
    last = len(words) - 1 - words[::-1].index("FROM")
    assert "USER" in words[last:]
    assert values("USER")[-1] not in ("root", "0")
    assert words.count("FROM") == 2
    assert not re.search(r"^(ENV|ARG) .*(KEY|SECRET|PASSWORD|TOKEN)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_the_image_starts_a_command_that_exists(wheel: zipfile.ZipFile) -> None:
    (entry,) = json.loads(values("ENTRYPOINT")[0])
    scripts = wheel.read(f"prefix_router-{VERSION}.dist-info/entry_points.txt").decode()
    assert f"\n{entry} = " in scripts
    parsed = command_line._parser().parse_args(json.loads(values("CMD")[0]))
    assert (parsed.command, parsed.host) == ("serve", "0.0.0.0")


def test_the_image_has_settings_that_the_router_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in shlex.split(" ".join(values("ENV"))):
        monkeypatch.setenv(*word.split("=", 1))
    assert load().host == "0.0.0.0"


def health_check() -> list[str]:
    command = json.loads(values("HEALTHCHECK")[0].partition("CMD")[2])
    assert command[0] == "python"
    return [sys.executable, *command[1:]]


def test_the_health_check_passes_where_the_router_answers() -> None:
    with stand_in() as port:
        assert run(*health_check(), ROUTER_PORT=str(port)).returncode == 0


def test_the_health_check_fails_where_nobody_answers() -> None:
    assert run(*health_check(), ROUTER_PORT=str(free_port())).returncode != 0


# -- the deployment --------------------------------------------------------------------------------------------

OWN_IMAGE = f"prefix-router:{VERSION}"


def test_the_deployment_has_its_parts() -> None:
    assert sorted(SERVICES) == sorted(["nginx", "redis", "prometheus", "grafana", *ROUTERS, *WORKERS])
    assert {service["image"] for name, service in SERVICES.items() if name in ROUTERS + WORKERS} == {OWN_IMAGE}
    others = [service["image"] for name, service in SERVICES.items() if name not in ROUTERS + WORKERS]
    assert all(":" in image and not image.endswith(":latest") for image in others)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_mounts_what_exists_and_waits_for_what_is_there(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source, _, mode = volume.split(":") if volume.count(":") == 2 else (*volume.split(":"), "")
        if source.startswith("./"):
            assert (ROOT / source).exists(), source
            assert mode == "ro"
        else:
            assert source in COMPOSE["volumes"]
    waits = service.get("depends_on", {})
    assert set(waits) <= set(SERVICES)
    for other in waits if isinstance(waits, dict) else ():
        if waits[other]["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other] or SERVICES[other]["image"] == OWN_IMAGE


def test_only_nginx_is_open_to_the_world() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    host_sides = [port.rpartition(":")[0] for port in published]
    assert len(set(host_sides)) == len(host_sides)
    assert [port for port in published if not port.startswith("127.0.0.1:")] == SERVICES["nginx"]["ports"]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_replica_starts_with_settings_that_it_knows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    for variable, value in service["environment"].items():
        if value is not None:
            monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
    passed_on = [variable for variable, value in service["environment"].items() if value is None]
    for variable in passed_on:
        monkeypatch.setenv(variable, '["key"]' if variable.endswith("KEYS") else "key")
    parsed = command_line._parser().parse_args(service["command"])
    assert f"{CONFIG / 'router.yaml'}" == f"{ROOT / service['volumes'][0].split(':')[0]}"
    assert service["volumes"][0].split(":")[1] == str(parsed.config)
    settings = load(CONFIG / "router.yaml", command_line._flags(parsed))
    assert [worker.url for worker in settings.workers] == [f"http://{worker}:8000" for worker in WORKERS]
    redis = settings.sync.redis_url
    assert redis is not None
    assert redis.get_secret_value() == "redis://redis:6379/0"
    assert settings.host == "0.0.0.0"
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > settings.timeouts.drain + settings.timeouts.drain_delay


@pytest.mark.parametrize("name", WORKERS)
def test_a_simulated_worker_starts_with_flags_that_it_knows(name: str) -> None:
    service = SERVICES[name]
    assert service["entrypoint"] == ["python", "-m", "loadtest.simworker"]
    config = parse_simworker(service["command"])
    assert (config.host, config.port) == ("0.0.0.0", 8000)
    assert f":{config.port}/health" in service["healthcheck"]["test"][-1]


def test_the_compose_file_is_accepted_by_compose() -> None:
    done = run(optional("docker-compose"), "-f", str(ROOT / "docker-compose.yml"), "config", "--quiet")
    assert done.returncode == 0, done.stderr

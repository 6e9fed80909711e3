"""What documentation tells people to type exists: commands, flags, scripts and modules; and the house is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.core.test_docs import options, parsers
from tests.core.test_docs_pages import DOCS, OTHER_PAGES, PAGES, ROOT

TYPED = re.compile(rf"(python -m [\w.]+|scripts/\w+|prefix-router (?:{'|'.join(sorted(parsers()))})\b)([^\n`|]*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def typed() -> Iterator[tuple[str, str, list[str]]]:
    """(page, command, its flags) wherever a page shows one."""
    for path in [*PAGES, *OTHER_PAGES]:
        for command, rest in TYPED.findall(path.read_text()):
            yield path.name, command, FLAG.findall(rest.partition("#")[0])


def sources(*places: str) -> str:
    files = [
        file
        for place in places
        for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*.py"))
    ]
    return "\n".join(file.read_text() for file in files)


def run_by(script: str) -> list[str]:
    """Where the modules lie that a script runs, as far as they are this repository's."""
    found = re.findall(r"-m (router demo|[\w.]+)", (ROOT / script).read_text())
    modules = ["loadtest.demo" if name == "router demo" else name for name in found]
    return [place_of(name) for name in modules if name.partition(".")[0] in ("loadtest", "router", "tests")]


def place_of(module: str) -> str:
    place = module.replace(".", "/")
    if (ROOT / place).is_dir():
        return place
    assert (ROOT / f"{place}.py").is_file(), module
    return f"{place}.py"


def unknown(flags: tuple[str, ...], text: str) -> list[str]:
    """Flags that are not written there, nor made of a field's name."""
    words = set(re.findall(r"--[a-z][\w-]*|[a-z]\w*", text))
    return [flag for flag in flags if not {flag, flag[2:].replace("-", "_")} & words]


COMMANDS = sorted({(page, command, tuple(flags)) for page, command, flags in typed()})


@pytest.mark.interpreted  # the files of the source are looked at
@pytest.mark.parametrize(("page", "command", "flags"), COMMANDS)
def test_a_command_that_is_shown_exists_with_its_flags(page: str, command: str, flags: tuple[str, ...]) -> None:
    if command.startswith("prefix-router"):
        assert set(flags) <= options(parsers()[command.split()[1]]), page
    elif command.startswith("scripts/"):
        assert (ROOT / command).is_file(), page
        assert unknown(flags, sources(command, *run_by(command))) == [], page
    else:
        assert unknown(flags, sources(place_of(command.split()[-1]))) == [], page


@pytest.mark.interpreted
def test_the_house_has_every_module() -> None:
    house = re.search(r"^    router/\n(?:    .*\n)+", (DOCS / "why.md").read_text(), re.MULTILINE)
    assert house
    named = set(re.findall(r"[\w]+(?:\.py|/)(?=\s|$)", house[0]))
    parts = {path.name if path.is_file() else f"{path.name}/" for path in (ROOT / "router").iterdir()}
    parts -= {"__init__.py", "__pycache__/", "py.typed", "router/"}
    assert parts - named == set(), "the house in docs/why.md has every module"
    assert {name for name in named if (ROOT / "router" / name).exists()} == parts

"""The settings file: what stands in it, and in which line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from router.errors import SettingsError

# What the parser says, by its beginning, and what is meant; all else is left as it is.
_PLAIN: Final[Mapping[str, str]] = {
    "mapping values are not allowed here": (
        "a second colon in a line, or a line that is indented unlike those around it; quotes are for text with colons"
    ),
    r"found character '\t'": "a tab, where YAML indents with blanks",
    "expected ',' or ']'": "a list in brackets that is not closed",
    "expected ',' or '}'": "a table in braces that is not closed",
    "could not find expected ':'": "a line without a colon: a setting is written NAME: VALUE",
    "expected <block end>": "a line that is indented unlike those around it",
    "found unexpected end of stream": "a quote that is not closed",
    "found unhashable key": "a name that is a list or a table",
    "expected '<document start>'": "text that belongs to no setting",
    "but found another document": "a second document begins here; settings are one",
}


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The file's mapping; `root` is the tree that it was read from."""

    path: Path
    content: dict[str, Any]
    root: yaml.Node | None

    def line(self, location: Iterable[int | str]) -> int | None:
        """The line, from 1, in which the setting stands, or the group that it is missing from."""
        found = None
        node = self.root
        for part in location:
            inside = _inside(node, part)
            if inside is None:
                break
            found, node = inside
        return found


def read_yaml(path: Path) -> YamlFile:
    """Read the file; raises SettingsError, which shows nothing of what stands in it but names."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            root = loader.get_single_node()
            content = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    except yaml.MarkedYAMLError as error:
        # Its own text quotes the line, which may hold a key.
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or "not YAML"
        quoting = isinstance(error, yaml.composer.ComposerError | yaml.constructor.ConstructorError)
        if (quoting or "tag handle" in problem) and (quote := re.search("['\"]", problem)):
            # A value that begins with !, & or * is taken for a tag or the name of another, and quoted in these.
            problem = f"{problem[: quote.start()].strip()}; a value that begins with !, & or * is put in quotes"
        problem = next((plain for said, plain in _PLAIN.items() if problem.startswith(said)), problem)
        raise SettingsError([f"{path}{place}: {problem}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise SettingsError([f"{path}: not a YAML file in UTF-8"]) from None
    if content is None:
        return YamlFile(path, {}, None)
    if not isinstance(content, dict):
        raise SettingsError([f"{path}: settings are expected, each written NAME: VALUE"])
    return YamlFile(path, {str(key): value for key, value in content.items()}, root)


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, where YAML would let the last one win in silence.

    A date that is none, or a tag that its text does not fit, makes yaml's own functions fail in many ways.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise yaml.MarkedYAMLError(problem="not a value of its kind", problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _inside(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    """The line of an element of a node, and the element."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        element: yaml.Node = node.value[part]
        return element.start_mark.line + 1, element
    if isinstance(node, yaml.MappingNode):
        # What a merge brought in stands before what overrides it.
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    return None

"""Settings from the defaults, a YAML file, `ROUTER_...` environment variables and flags, later ones winning.

Every problem is reported at once, with the place it came from and without the value, which may be secret.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from router.errors import SettingsError
from router.settings import words
from router.settings.schema import NESTED, PREFIX, Settings, WorkerSettings
from router.settings.yaml_file import YamlFile, read_yaml


class _FileSource(PydanticBaseSettingsSource):
    """The YAML file that `load` has read; below the environment, above the defaults."""

    def __init__(self, settings_cls: type[BaseSettings], content: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self.content = content

    def get_field_value(self, field: object, field_name: str) -> tuple[Any, str, bool]:
        return self.content.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self.content)


def load(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, flag_names: Mapping[str, str] | None = None
) -> Settings:
    """Settings from all sources; raises SettingsError with every problem found.

    `flag_names` says what the command line calls a setting, by its path, such as `--redis` for `sync.redis_url`.
    """
    source = read_yaml(file) if file else None
    content = source.content if source else {}
    problems = list(_unknown_environment(os.environ))

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, _Environment(settings_cls), _FileSource(settings_cls, content))

    try:
        loaded = Loaded(**(flags or {}))
    except ValidationError as error:
        for item in error.errors():
            location = tuple(part for part in item["loc"] if part != "[key]")
            place = _flag(location, flags or {}, flag_names or {})
            place = place or _place(location, item["type"], flags or {}, source)
            reason = _reason(location, item, place)
            if item["type"] == "literal_error":
                reason += _suggest_word(item["input"], reason)
            problems.append(f"{place}: {reason}")
        raise SettingsError(problems) from None
    if problems:
        raise SettingsError(problems)
    return Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})


class _Environment(EnvSettingsSource):
    """Environment variables; what should be JSON and is not is left to validation, which reports it with the rest."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _place(location: tuple[int | str, ...], kind: str, flags: Mapping[str, Any], source: YamlFile | None) -> str:
    """Where the value at fault came from: its variable, its file and line, or else its path alone."""
    # What stands in the place of a name may be a value, as a URL before a colon is.
    path = ".".join(str(part) if re.fullmatch(r"[\w.\[\] -]*", str(part)) else "(no name)" for part in location)
    if kind == "missing":
        location = location[:-1]
    if _holds(flags, location):
        return path
    names = {name.upper(): name for name in os.environ}
    for depth in range(len(location), 0, -1):
        name = (PREFIX + NESTED.join(str(part) for part in location[:depth])).upper()
        if name in names:
            return names[name]
    if source is None or not _holds(source.content, location):
        return path
    line = source.line(location)
    return f"{source.path}, line {line}: {path}" if line else f"{source.path}: {path}"


def _flag(location: tuple[int | str, ...], flags: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """The flag that a value came from, and which one of several."""
    if not _holds(flags, location):
        return None
    for depth in range(len(location), 0, -1):
        flag = names.get(".".join(str(part) for part in location[:depth]))
        if flag is None:
            continue
        number = location[depth] if len(location) > depth else None
        several = isinstance(number, int) and len(flags[str(location[0])]) > 1
        return f"{flag} (number {int(number or 0) + 1})" if several else flag
    return None


def _holds(data: Any, location: Iterable[int | str]) -> bool:
    for part in location:
        if not isinstance(data, Mapping | list | tuple):
            # A scalar where a group should be stands for all of it.
            return True
        inside = data if isinstance(data, Mapping) else dict(enumerate(data))
        if part not in inside:
            return False
        data = inside[part]
    return True


def _reason(location: tuple[int | str, ...], item: ErrorDetails, place: str) -> str:
    """What is wrong with a value, without the value, which may be secret."""
    kind = item["type"]
    if kind not in ("extra_forbidden", "model_type"):
        inside = bool(location) and isinstance(location[-1], int)
        return words.reason(kind, item["msg"], item.get("ctx", {}), item["input"], inside=inside)
    group: object = Settings
    for part in location if kind == "model_type" else location[:-1]:
        group = _inside(group, part)
    if kind == "model_type":
        # The framework's own message names a class.
        what = (
            "a URL is expected here, or a group" if group is WorkerSettings else "a group of settings is expected here"
        )
        return f"{what}: {', '.join(_fields(group))}"
    return f"unknown setting{_suggest(str(location[-1]), group, place)}"


def _unknown_environment(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that pydantic would not look at; it reports unknown names within a group itself."""
    for name in environ:
        if not name.upper().startswith(PREFIX):
            continue
        kind: object = Settings
        for part in name[len(PREFIX) :].lower().split(NESTED):
            inside = _inside(kind, part)
            if inside is None:
                if kind is Settings or not _fields(kind):
                    yield f"{name}: unknown setting{_suggest_nested(name) or _suggest(part, kind, name)}"
                break
            kind = inside


def _fields(kind: object) -> Mapping[str, FieldInfo]:
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _inside(kind: object, part: int | str) -> object:
    """The type of what stands under a name of a group, a mapping or a list; None where nothing can."""
    if field := _fields(kind).get(str(part)):
        return field.annotation
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    return get_args(kind)[0] if get_origin(kind) is tuple and isinstance(part, int) else None


def _suggest(key: str, group: object, place: str) -> str:
    close = difflib.get_close_matches(key, list(_fields(group)), n=1)
    if not close:
        return ""
    if place.upper().startswith(PREFIX) and place.lower().endswith(key.lower()):
        return f" (did you mean {place[: -len(key)].upper()}{close[0].upper()}?)"
    return f" (did you mean {close[0]}?)"


def _suggest_nested(name: str) -> str:
    """A variable whose groups are set off by one underscore where two are needed."""
    rest = name[len(PREFIX) :]
    for position in (found.start() for found in re.finditer("(?<!_)_(?!_)", rest)):
        kind: object = Settings
        for part in f"{rest[:position]}_{rest[position:]}".lower().split(NESTED):
            kind = _inside(kind, part)
        if kind is not None:
            return f" (did you mean {name[: len(PREFIX)]}{rest[:position]}_{rest[position:]}, with two underscores?)"
    return ""


def _suggest_word(value: object, message: str) -> str:
    """The allowed word that is closest; the message quotes all of them."""
    close = difflib.get_close_matches(value, re.findall("'([^']*)'", message), n=1) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""

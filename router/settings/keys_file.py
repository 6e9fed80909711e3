"""The file of clients' keys: a tenant's name and a key in each line, `#` begins a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

DEFAULT_TENANT = "default"
TENANT_NAME = re.compile("[A-Za-z0-9_.-]{1,64}")
# Tenants are label values and limits of their own.
MAX_TENANTS = 1_000


@dataclass(frozen=True, slots=True)
class KeysFile:
    """What stood in the file when it was read: pairs of a tenant and one of its keys."""

    path: Path
    keys: tuple[tuple[str, SecretStr], ...]

    def __str__(self) -> str:
        return str(self.path)

    @property
    def tenants(self) -> frozenset[str]:
        return frozenset(tenant for tenant, _ in self.keys)


def read_keys_file(path: Path) -> KeysFile:
    """Read the file; ValueError names every line that is wrong, and shows nothing of it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file in UTF-8") from None
    keys: list[tuple[str, SecretStr]] = []
    problems = list(_read(text, keys))
    if len({tenant for tenant, _ in keys}) > MAX_TENANTS:
        problems.append(f"more than {MAX_TENANTS} tenants")
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    return KeysFile(path, tuple(keys))


def _read(text: str, keys: list[tuple[str, SecretStr]]) -> Iterator[str]:
    """Fill `keys`; yields what is wrong."""
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            yield f"line {number}: expected a tenant's name and a key"
        elif not TENANT_NAME.fullmatch(words[0]):
            yield f"line {number}: a tenant's name has up to 64 letters, digits, dots, dashes and underscores"
        elif not re.fullmatch("[!-~]+", words[1]):
            yield f"line {number}: a key consists of visible ASCII characters"
        elif words[1] in seen:
            yield f"line {number}: the key of line {seen[words[1]]} again"
        else:
            seen[words[1]] = number
            keys.append((words[0], SecretStr(words[1])))

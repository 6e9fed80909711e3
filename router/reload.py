"""Settings that change while the router serves: read again on a signal or when their file does, and taken over whole.

A file that is wrong changes nothing: the settings before it stay, every problem is logged, and the attempt is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.errors import SettingsError
from router.settings import Group, Settings, cautions

log = logging.getLogger("router")

POLL_SECONDS: Final = 1.0
RESULTS: Final = ("ok", "unchanged", "refused")
# What takes effect at once; everything else needs a restart.
LIVE: Final = frozenset(
    {
        *("workers", "models", "tenants", "decision_headers", "policy", "retry", "health", "auth", "tenancy"),
        *("affinity.max_blocks", "affinity.ttl_seconds", "affinity.tentative_seconds"),
        *("limits.body_bytes", "limits.media_body_bytes", "limits.total_body_bytes", "limits.header_bytes"),
        *("limits.header_count", "limits.queue_per_worker", "limits.default_slots", "limits.connections_per_worker"),
        *("limits.client_connections", "limits.choices"),
        *("timeouts.header", "timeouts.body", "timeouts.queue", "timeouts.connect", "timeouts.first_byte"),
        *("timeouts.stream_idle", "timeouts.write_stall", "timeouts.upstream_keep_alive", "timeouts.keep_alive"),
        "timeouts.drain_delay",
    }
)


def changes(before: Settings, after: Settings) -> list[str]:
    """Paths of the settings that differ, a list or table as one."""
    return [path for path, one, other in _pairs(before, after) if one != other]


def takes_effect(path: str) -> bool:
    """Whether a change of this setting needs no restart."""
    return path in LIVE or path.partition(".")[0] in LIVE


def merged(before: Settings, after: Settings) -> Settings:
    """What is in force after a reload: the new settings where they take effect, the old ones elsewhere."""
    update: dict[str, object] = {}
    for name in Settings.model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if name in LIVE or not isinstance(one, Group):
            update[name] = other if name in LIVE else one
        else:
            live = {leaf: getattr(other, leaf) for leaf in type(one).model_fields if f"{name}.{leaf}" in LIVE}
            update[name] = one.model_copy(update=live)
    return before.model_copy(update=update)


def _pairs(before: Settings, after: Settings) -> Iterator[tuple[str, object, object]]:
    for name in Settings.model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, Group):
            for leaf in type(one).model_fields:
                yield f"{name}.{leaf}", getattr(one, leaf), getattr(other, leaf)
        else:
            yield name, one, other


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the settings of a process come from: `load` reads all of it again, and raises SettingsError."""

    load: Callable[[], Settings]
    files: tuple[Path, ...] = ()


class Reloader:
    """Follows the settings' files from `run` until it is cancelled.

    `apply` takes settings over in one step. Without sources there is nothing to follow.
    """

    def __init__(self, sources: Sources | None, apply: Callable[[Settings], None], settings: Settings) -> None:
        self.results = dict.fromkeys(RESULTS, 0)
        self._sources = sources or Sources(lambda: settings)
        self._apply = apply
        # In force, and as last read: they differ in what needs a restart.
        self._settings = self._read = settings
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the settings again soon, though no file seems to have changed."""
        self._asked.set()

    async def run(self, *, late: bool = False) -> None:
        """Reload when asked to, and when one of the files, or the file of keys, is another one and stands still.

        A process that is `late` has been given settings that may have changed since they were read.
        """
        if late:
            await self._attempt(quiet=True)
        seen = pending = self._signature()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._asked.wait()
            found = self._signature()
            if self._asked.is_set() or (found == pending != seen):
                self._asked.clear()
                await self.reload()
                # The settings may name another file of keys now.
                seen = pending = self._signature() if found == self._signature() else found
            else:
                pending = found

    async def reload(self) -> str:
        """Read, check and take over; the result."""
        result = await self._attempt()
        self.results[result] += 1
        return result

    async def _attempt(self, *, quiet: bool = False) -> str:
        try:
            # Reading YAML takes tens of milliseconds, in which nobody would be served.
            read = await asyncio.to_thread(self._sources.load)
        except SettingsError as error:
            for problem in error.problems:
                log.error("settings not taken over, those before stay: %s", problem)
            return "refused"
        changed = changes(self._read, read)
        if not changed:
            log.log(logging.DEBUG if quiet else logging.INFO, "settings read again: nothing has changed")
            return "unchanged"
        fixed = [path for path in changed if not takes_effect(path)]
        settings = merged(self._settings, read)
        self._apply(settings)
        self._settings, self._read = settings, read
        effective = ", ".join(path for path in changed if path not in fixed) or "nothing"
        log.info("settings read again; changed: %s", effective)
        if fixed:
            log.warning("changed, and in force after a restart: %s", ", ".join(fixed))
        for line in cautions(settings):
            log.warning("%s", line)
        return "ok"

    def _signature(self) -> tuple[object, ...]:
        keys = self._settings.auth.keys_file
        files = self._sources.files if keys is None else (*self._sources.files, keys.path)
        return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, ...]:
    """What differs when a file's content does; a link that leads elsewhere counts too."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

"""The objects of one cache form: their own slots, their own order of eviction, their own pins. Pure.

A table says which slot holds an object, the slot says whose it is. The two agree unless an eviction was interrupted
midway: then the table still promises what the slot no longer holds, and only a read that looks at the slot can tell.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


class Form(enum.StrEnum):
    """What the layers of a hybrid keep of a prefix; a hit needs all that the model has."""

    COMPRESSED_KV = "compressed_kv"  # whole blocks of history
    UNCOMPRESSED_TAIL = "uncompressed_tail"  # what lies between the last whole block and where a hit lands
    SWA_WINDOW = "swa_window"  # the last tokens of sliding-window layers
    INDEXER_STATE = "indexer_state"  # the index over the blocks, of the same version as they
    ON_DISK_PREFIX = "on_disk_prefix"  # blocks that the GPU had no room for
    RECURRENT_STATE = "recurrent_state"  # what recurrent layers were at one token


@dataclass(slots=True, eq=False)
class Entry:
    """One object: `epoch` is that of its writing, `shared` whether a later prompt came back to it."""

    key: int
    slot: int
    epoch: int
    version: int
    shared: bool = False
    pins: int = 0


class Store:
    """At most `capacity` objects, counting those set aside for running requests.

    Objects nobody came back to are evicted before those that were used again, each in the order of their last use.
    Pinned ones stay. `on_evict` is told of what goes.
    """

    def __init__(self, form: Form, capacity: int, on_evict: Callable[[Entry], None] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"{form} needs room for at least one object")
        self.form = form
        self.capacity = capacity
        self.evicted = 0
        self.refused = 0
        self.pinned = 0
        self.reserved = 0
        self._on_evict = on_evict
        self._entries: dict[int, Entry] = {}
        self._once: OrderedDict[int, Entry] = OrderedDict()
        self._again: OrderedDict[int, Entry] = OrderedDict()
        self._slots: dict[int, tuple[int, int]] = {}
        self._free: list[int] = []
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def get(self, key: int) -> Entry | None:
        """What the table says, true or not."""
        return self._entries.get(key)

    def sound(self, entry: Entry) -> bool:
        """Whether the slot still holds what the table promises."""
        return self._slots.get(entry.slot) == (entry.key, entry.epoch)

    def owner(self, entry: Entry) -> int | None:
        """Whose data a read of the entry's slot gives."""
        held = self._slots.get(entry.slot)
        return None if held is None else held[0]

    def put(self, key: int, version: int = 0, *, shared: bool = False) -> Entry | None:
        """Keep an object as the one used last; None if everything else here is pinned."""
        entry = self._entries.get(key)
        if entry is not None and not self.sound(entry):
            self.drop(entry)
            entry = None
        if entry is None:
            if not self._make_room(1):
                self.refused += 1
                return None
            entry = self._new(key)
        entry.version = version
        self.touch(entry, shared=shared)
        return entry

    def touch(self, entry: Entry, *, shared: bool = False) -> None:
        """Note a use of an object."""
        entry.shared = entry.shared or shared
        if not entry.pins:
            self._once.pop(entry.key, None)
            self._again.pop(entry.key, None)
            self._line(entry)[entry.key] = entry

    def pin(self, entry: Entry) -> None:
        """Keep an object from being evicted until as many `unpin`."""
        if not entry.pins:
            self.pinned += 1
            self._once.pop(entry.key, None)
            self._again.pop(entry.key, None)
        entry.pins += 1

    def unpin(self, entry: Entry) -> None:
        entry.pins -= 1
        if not entry.pins:
            self.pinned -= 1
            if self._entries.get(entry.key) is entry:
                self._line(entry)[entry.key] = entry

    def take(self, count: int) -> bool:
        """Set room aside; False, and nothing changed, if pinned objects and other requests leave too little."""
        if self.pinned + self.reserved + count > self.capacity:
            return False
        self._make_room(count)
        self.reserved += count
        return True

    def give_back(self, count: int) -> None:
        self.reserved -= count

    def drop(self, entry: Entry) -> None:
        """Forget an object; its slot is freed only if it is still its own."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._once.pop(entry.key, None)
        self._again.pop(entry.key, None)
        if self.sound(entry):
            self._release(entry.slot)

    def interrupt(self, entry: Entry) -> None:
        """An eviction that frees the slot and does not come to the table."""
        if self.sound(entry):
            self._release(entry.slot)

    def clear(self) -> None:
        """Forget all; nothing is pinned or set aside then."""
        self._entries.clear()
        self._once.clear()
        self._again.clear()
        self._slots.clear()
        self._free.clear()

    def _line(self, entry: Entry) -> OrderedDict[int, Entry]:
        return self._again if entry.shared else self._once

    def _new(self, key: int) -> Entry:
        self._epoch += 1
        slot = self._free.pop() if self._free else len(self._slots)
        entry = self._entries[key] = Entry(key, slot, self._epoch, 0)
        self._slots[slot] = (key, self._epoch)
        return entry

    def _release(self, slot: int) -> None:
        del self._slots[slot]
        self._free.append(slot)

    def _make_room(self, count: int) -> bool:
        while len(self._slots) + self.reserved + count > self.capacity:
            line = self._once or self._again
            if not line:
                return False
            _, entry = line.popitem(last=False)
            sound = self.sound(entry)
            self.drop(entry)
            if sound:
                self.evicted += 1
                if self._on_evict is not None:
                    self._on_evict(entry)
        return True

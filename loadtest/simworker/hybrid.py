"""The cache of a hybrid engine: several forms of objects, of which a hit needs all. Pure.

Whole blocks are kept as they are computed. The other forms are kept at *marks*: the last boundary of a prompt, the
place where it was seen to branch off an earlier one, every `retention` tokens, the end of every scheduler step. A hit
lands at the deepest boundary at which every form has what it needs: the intersection. It is then read with care: all
that it needs is pinned, looked at again, loaded from disk where it lies there, and given up for a shorter hit, down to
computing everything, if one object is not what the table promised. Such a fallback is counted for its form.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.simworker.cache import Hold
from loadtest.simworker.shape import HybridShape
from loadtest.simworker.stores import Entry, Form, Store
from loadtest.simworker.tokens import Prompt

FAULTS: Mapping[str, Form | None] = {
    "eviction_interrupted": None,  # of any form
    "load_failure": Form.ON_DISK_PREFIX,
    "version_mismatch": Form.INDEXER_STATE,
}
_MAX_TRIES = 8  # readings of one hit, each shorter than the one before


@dataclass(slots=True)
class HybridHold(Hold):
    """What a running request keeps: its blocks, and the marks it has yet to pass, in units; `state` of its own."""

    pinned: list[Entry] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    branch: int = 0
    state: int = 0
    read: tuple[int | None, ...] = ()  # whose data the slots held that the hit was read from


@dataclass(slots=True)
class _Plan:
    """A hit as the tables promise it: where it lands, in units, and what must be read for that."""

    landing: int = 0
    needs: list[tuple[Store, Entry]] = field(default_factory=list)
    on_disk: list[Entry] = field(default_factory=list)
    read: tuple[int | None, ...] = ()


class HybridCache:
    """A `PrefixCache` of several forms. `fallbacks` counts hits that were promised and could not be read, by form."""

    def __init__(self, shape: HybridShape, *, enabled: bool = True) -> None:
        self.shape = shape
        self.enabled = enabled
        self.fallbacks: Counter[Form] = Counter()
        self.limited: Counter[Form] = Counter()  # which form kept a hit from reaching what was shared
        self.loaded_blocks = 0
        self.stores = {
            form: Store(form, size, self._spill if form is Form.COMPRESSED_KV else None)
            for form, size in shape.capacity.items()
        }
        self._kv = self.stores[Form.COMPRESSED_KV]
        self._tail = self.stores.get(Form.UNCOMPRESSED_TAIL)
        self._window = self.stores.get(Form.SWA_WINDOW)
        self._index = self.stores.get(Form.INDEXER_STATE)
        self._disk = self.stores.get(Form.ON_DISK_PREFIX)
        self._state = self.stores.get(Form.RECURRENT_STATE)
        self._ratio = shape.block // shape.unit
        self._window_units = -(-(shape.window - 1) // shape.unit) if shape.window > 1 else 0
        self._armed: Counter[str] = Counter()
        self._versions = 0
        # Prefixes computed lately, to see where prompts branch: as many as the blocks have boundaries.
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._seen_limit = self._kv.capacity * self._ratio

    # -- the protocol

    def match(self, prompt: Prompt) -> int:
        """What the tables promise; reading it may give less."""
        return self._plan(prompt).landing * self.shape.unit

    def reserve(self, prompt: Prompt, total_tokens: int) -> HybridHold | None:
        blocks = -(-total_tokens // self.shape.block)
        if not self._fits(self._plan(prompt), blocks):
            return None  # before anything is read in vain
        plan = self._acquire(prompt)
        depth = plan.landing // self._ratio
        pinned = [entry for store, entry in plan.needs if store is self._kv]
        private = max(blocks - depth, 0)
        if not self._kv.take(private):
            self._unpin(pinned)
            return None
        state = 0
        if self._state is not None and not self._state.take(state := 1):
            self._kv.give_back(private)
            self._unpin(pinned)
            return None
        hold = HybridHold(plan.landing * self.shape.unit, private, pinned=pinned, state=state)
        hold.load_seconds = len(plan.on_disk) * self.shape.block / self.shape.load_tokens_per_second
        hold.blocks = [entry.key for entry in pinned]
        hold.read = plan.read
        if self.enabled:
            self._set_marks(hold, prompt, plan.landing)
        return hold

    def commit(self, hold: Hold, hashes: Sequence[int]) -> None:
        assert isinstance(hold, HybridHold)
        if not self.enabled:
            return
        self._see(hashes)
        whole = hashes[self._ratio - 1 :: self._ratio]
        for key in whole[len(hold.blocks) :]:
            if not hold.private:
                break
            hold.private -= 1
            self._kv.give_back(1)
            self._keep_block(hold, key)
        while hold.marks and hold.marks[0] <= len(hashes):
            mark = hold.marks.pop(0)
            self._keep_mark(hashes, mark, shared=mark == hold.branch)

    def release(self, hold: Hold) -> None:
        assert isinstance(hold, HybridHold)
        self._kv.give_back(hold.private)
        hold.private = 0
        if self._state is not None:
            self._state.give_back(hold.state)
        hold.state = 0
        self._unpin(hold.pinned)
        hold.pinned.clear()
        hold.blocks.clear()
        hold.marks.clear()

    def clear(self) -> bool:
        if any(store.pinned or store.reserved for store in self.stores.values()):
            return False
        for store in self.stores.values():
            store.clear()
        self._seen.clear()
        return True

    @property
    def usage(self) -> float:
        return (self._kv.pinned + self._kv.reserved) / self._kv.capacity

    @property
    def resident(self) -> int:
        return len(self._kv)

    # -- faults

    def inject(self, kind: str, times: int = 1) -> None:
        """Let the next hits meet a fault between being promised and being read. Raises ValueError if none can."""
        if kind not in FAULTS or times < 1:
            raise ValueError(f"a cache fault is one of {', '.join(FAULTS)}, one time or more")
        form = FAULTS[kind]
        if form is not None and form not in self.stores:
            raise ValueError(f"{kind} needs the form {form}, which this cache lacks")
        self._armed[kind] += times

    def _strike(self, plan: _Plan) -> None:
        """Apply armed faults to a hit that has been promised and not been read."""
        if self._armed["eviction_interrupted"]:
            idle = [(store, entry) for store, entry in plan.needs if not entry.pins]
            if idle:
                self._armed["eviction_interrupted"] -= 1
                idle[-1][0].interrupt(idle[-1][1])
        if self._armed["load_failure"] and plan.on_disk and self._disk is not None:
            self._armed["load_failure"] -= 1
            self._disk.interrupt(plan.on_disk[-1])
        if self._armed["version_mismatch"]:
            blocks = [entry for store, entry in plan.needs if store is self._kv]
            if blocks:
                self._armed["version_mismatch"] -= 1
                self._versions += 1
                blocks[-1].version = self._versions  # the blocks move on, their index does not

    # -- a hit

    def _plan(self, prompt: Prompt) -> _Plan:
        if not self.enabled:
            return _Plan()
        bound = min(self._last(prompt), len(prompt.hashes))
        depth = self._depth(prompt.hashes, bound)
        for landing in range(min(bound, (depth + 1) * self._ratio - 1), 0, -1):
            if self._lacking(prompt.hashes, landing) is None:
                return self._needs(prompt.hashes, landing)
        return _Plan()

    def _last(self, prompt: Prompt) -> int:
        """The last boundary at which a hit may land, in units: one token is always left to compute."""
        return max((prompt.tokens - 1) // self.shape.unit - self.shape.held_back, 0)

    def _depth(self, hashes: Sequence[int], bound: int) -> int:
        """Whole blocks in a row, on the GPU or on disk, with their index."""
        depth = 0
        for key in hashes[self._ratio - 1 : bound : self._ratio]:
            if key not in self._kv and (self._disk is None or key not in self._disk):
                break
            if self._index is not None and key not in self._index:
                break
            depth += 1
        return depth

    def _lacking(self, hashes: Sequence[int], landing: int) -> Form | None:
        """The first form, beside the blocks, that does not have what a hit at this boundary needs."""
        key = hashes[landing - 1]
        if self._state is not None and key not in self._state:
            return Form.RECURRENT_STATE
        if landing % self._ratio and (self._tail is None or key not in self._tail):
            return Form.UNCOMPRESSED_TAIL
        window = self._window
        # The last one first: it alone settles nearly every boundary that is no mark.
        if window is not None and (key not in window or any(u not in window for u in self._windowed(hashes, landing))):
            return Form.SWA_WINDOW
        return None

    def _windowed(self, hashes: Sequence[int], landing: int) -> Sequence[int]:
        return hashes[max(landing - self._window_units, 0) : landing]

    def _needs(self, hashes: Sequence[int], landing: int) -> _Plan:
        plan = _Plan(landing)
        key = hashes[landing - 1]
        for block in hashes[self._ratio - 1 : landing : self._ratio]:
            kept = self._kv.get(block)
            if kept is None and self._disk is not None:
                plan.on_disk += _found(self._disk, (block,))
            plan.needs += [] if kept is None else [(self._kv, kept)]
            if self._index is not None:
                plan.needs += [(self._index, entry) for entry in _found(self._index, (block,))]
        if self._window is not None:
            plan.needs += [(self._window, entry) for entry in _found(self._window, self._windowed(hashes, landing))]
        if self._tail is not None and landing % self._ratio:
            plan.needs += [(self._tail, entry) for entry in _found(self._tail, (key,))]
        if self._state is not None:
            plan.needs += [(self._state, entry) for entry in _found(self._state, (key,))]
        return plan

    def _fits(self, plan: _Plan, blocks: int) -> bool:
        """Whether a request of so many blocks has room beside those that run."""
        kept = [entry for store, entry in plan.needs if store is self._kv]
        waking = sum(1 for entry in kept if not entry.pins)
        more = max(blocks - len(kept), 0)
        return self._kv.pinned + self._kv.reserved + waking + more <= self._kv.capacity

    def _acquire(self, prompt: Prompt) -> _Plan:
        """The deepest hit that can be read; its blocks are pinned, and everything else has been copied."""
        for _ in range(_MAX_TRIES):
            plan = self._plan(prompt)
            if not plan.landing:
                return plan
            self._strike(plan)
            failed = self._read(plan)
            if failed is None:
                return plan
            self.fallbacks[failed] += 1
        return _Plan()

    def _read(self, plan: _Plan) -> Form | None:
        """Pin, then look again, then read; the form that was not as promised, its object dropped, or None."""
        for store, entry in plan.needs:
            store.pin(entry)
        # What is evicted to make room for loaded blocks goes to disk: it must not push out what is to be loaded.
        for entry in plan.on_disk:
            assert self._disk is not None
            self._disk.pin(entry)
        failed = self._validate(plan)
        if failed is None and plan.on_disk:
            failed = self._load(plan)
        plan.read = tuple(store.owner(entry) for store, entry in plan.needs)
        for store, entry in plan.needs:
            if failed is not None or store is not self._kv:
                store.unpin(entry)
                if failed is None:
                    store.touch(entry, shared=True)
        for entry in plan.on_disk:
            assert self._disk is not None
            self._disk.unpin(entry)
        if failed is not None:
            for store, entry in plan.needs:
                if not store.sound(entry):
                    store.drop(entry)
        return failed

    def _validate(self, plan: _Plan) -> Form | None:
        versions = {entry.key: entry.version for store, entry in plan.needs if store is self._kv}
        versions |= {entry.key: entry.version for entry in plan.on_disk}
        for store, entry in plan.needs:
            if not store.sound(entry):
                return store.form
            if store is self._index and entry.version != versions.get(entry.key, entry.version):
                store.interrupt(entry)  # of no use any more: it is built anew with the blocks
                return store.form
        return None

    def _load(self, plan: _Plan) -> Form | None:
        """Bring blocks back from disk; those that were loaded stay, whatever becomes of the rest."""
        assert self._disk is not None
        for entry in plan.on_disk:
            if not self._disk.sound(entry):
                self._disk.drop(entry)
                return Form.ON_DISK_PREFIX
            self._disk.touch(entry, shared=True)
            loaded = self._kv.put(entry.key, entry.version, shared=True)
            assert loaded is not None, "_fits has seen to the room"
            self._kv.pin(loaded)
            plan.needs.append((self._kv, loaded))
            self.loaded_blocks += 1
        return None

    # -- what is kept

    def _set_marks(self, hold: HybridHold, prompt: Prompt, landing: int) -> None:
        shape, last = self.shape, min(self._last(prompt), len(prompt.hashes))
        marks = {last}
        branch = 0
        for key in prompt.hashes[:last]:
            if key not in self._seen:
                break
            branch += 1
        if branch > landing:
            marks.add(branch)
            hold.branch = branch
            depth = self._depth(prompt.hashes, last)
            lacking = Form.COMPRESSED_KV if depth < branch // self._ratio else self._lacking(prompt.hashes, branch)
            if lacking is not None:
                self.limited[lacking] += 1
        if shape.retention:
            marks.update(range(shape.retention // shape.unit, last, shape.retention // shape.unit))
        if shape.step:
            begun = landing * shape.unit
            marks.update(end // shape.unit for end in range(begun + shape.step, prompt.tokens, shape.step))
        hold.marks = sorted(mark for mark in marks if landing < mark <= last)

    def _see(self, hashes: Iterable[int]) -> None:
        for key in hashes:
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._seen_limit:
            self._seen.popitem(last=False)

    def _keep_block(self, hold: HybridHold, key: int) -> None:
        entry = self._kv.put(key, self._versions)
        assert entry is not None, "its room was set aside"
        self._kv.pin(entry)
        hold.pinned.append(entry)
        hold.blocks.append(key)
        if self._index is not None:
            self._index.put(key, self._versions)

    def _keep_mark(self, hashes: Sequence[int], mark: int, *, shared: bool) -> None:
        key = hashes[mark - 1]
        if self._window is not None:
            for unit in self._windowed(hashes, mark):
                self._window.put(unit, shared=shared)
        if self._tail is not None and mark % self._ratio:
            self._tail.put(key, shared=shared)
        if self._state is not None:
            self._state.put(key, shared=shared)

    def _spill(self, entry: Entry) -> None:
        """A block that the GPU evicts goes to disk, if there is one."""
        if self._disk is not None:
            self._disk.put(entry.key, entry.version)

    def _unpin(self, entries: Sequence[Entry]) -> None:
        # Deepest first, so that the end of a prompt is evicted before its beginning.
        for entry in reversed(entries):
            self._kv.unpin(entry)


def _found(store: Store, keys: Iterable[int]) -> list[Entry]:
    return [entry for entry in map(store.get, keys) if entry is not None]

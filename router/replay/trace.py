"""Recorded requests: who came when, with a prompt of which blocks.

A request names its prompt by ids, one for each 512 tokens, the last one for what remains; equal ids mean prompts that
are equal up to there. Read from Mooncake's JSON lines or from the router's own decision log.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from xxhash import xxh3_64_intdigest

from router.hashing import boundaries

ID_TOKENS = 512
BYTES_PER_TOKEN = 4
MAX_REQUESTS = 1_000_000
MAX_LINE = 4 << 20
MOST_TOKENS = 10_000_000
# Tokens a second that an answer is taken to have had where the log does not say how long it was.
ANSWER_RATE = 40.0
EXPECTED = (
    "expected JSON lines, a request in each: Mooncake's (timestamp, input_length, output_length, hash_ids), or those "
    "of a decision file"
)
# Mean gaps between arrivals by which a seed may move one.
JITTER_GAPS = 4.0


class TraceError(Exception):
    """A trace that can't be used, with the reason for its reader."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `at` in seconds from the trace's begin, or after the end of request number `after`.

    `opening` is the position of the first block behind the system text, as far as that is known.
    """

    at: float
    ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    after: int | None = None
    opening: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, those that follow another one behind it.

    `jitter`: arrivals may be moved by up to so many seconds, which makes another trace of the same traffic.
    """

    name: str
    requests: tuple[Request, ...]
    jitter: float = 0.0

    @property
    def seconds(self) -> float:
        """When the last request arrives that follows no other."""
        return max(request.at for request in self.requests if request.after is None)


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The trace in a file of JSON lines, of either kind; raises TraceError."""
    try:
        with path.open(encoding="utf-8") as lines:
            return parse_trace(path.stem, lines, limit)
    except TraceError as error:
        raise TraceError(f"{path}, {error}" if str(error).startswith("line") else f"{path}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: {error}") from None


def parse_trace(name: str, lines: Iterable[str], limit: int | None = None) -> Trace:
    """The trace in these lines."""
    found: list[Request] = []
    places: dict[str, int] = {}  # of requests by their id
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if limit is not None and len(found) >= limit:
            break
        if len(found) >= MAX_REQUESTS:
            raise TraceError(f"the trace has more than {MAX_REQUESTS:,} requests")
        if found and not line.endswith("\n") and not line.rstrip().endswith("}"):
            break  # the file is still being written
        fields = _fields(line, number)
        if "hash_ids" in fields:
            found.append(_of_mooncake(fields, number))
        elif not {"prompt_tokens", "hashes"} & fields.keys():
            raise TraceError(f"line {number}: neither hash_ids nor the fields of a decision; {EXPECTED}")
        else:
            _add_decision(found, places, fields, number)
    if not found:
        raise TraceError("the trace holds no request")
    found.sort(key=lambda request: request.at)
    begin = found[0].at
    opening = common_blocks(found)
    requests = tuple(
        Request(request.at - begin, request.ids, request.prompt_tokens, request.output_tokens, None, opening)
        for request in found
    )
    return Trace(name, requests, jitter_of([request.at for request in requests]))


def common_blocks(requests: Sequence[Request]) -> int:
    """How many leading blocks most requests share: taken for system text."""
    depth = 0
    while True:
        counts = Counter(request.ids[depth] for request in requests if len(request.ids) > depth)
        if not counts or counts.most_common(1)[0][1] * 2 <= len(requests):
            return depth
        depth += 1


def jitter_of(times: Sequence[float]) -> float:
    """How far arrivals may be moved: a few mean gaps, or the step in which the times were recorded."""
    if len(times) < 2:
        return 0.0
    distinct = sorted(set(times))
    gaps = sorted(later - earlier for earlier, later in pairwise(distinct))
    step = gaps[len(gaps) // 2] if gaps and 2 * len(distinct) < len(times) else 0.0
    return max(step, JITTER_GAPS * (times[-1] - times[0]) / len(times))


def block_count(tokens: int) -> int:
    """Ids that a prompt of so many tokens has."""
    return -(-tokens // ID_TOKENS)


def _fields(line: str, number: int) -> Mapping[str, object]:
    if len(line) > MAX_LINE:
        raise TraceError(f"line {number}: longer than {MAX_LINE:,} characters")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"line {number}: not JSON; {EXPECTED}") from None
    if not isinstance(value, dict):
        raise TraceError(f"line {number}: not an object; {EXPECTED}")
    return value


def _of_mooncake(fields: Mapping[str, object], number: int) -> Request:
    tokens = _whole(fields, "input_length", number)
    ids = _ids(fields["hash_ids"], number)
    if len(ids) != block_count(tokens):
        raise TraceError(f"line {number}: {tokens} tokens need {block_count(tokens)} hash_ids, not {len(ids)}")
    return Request(_seconds(fields, "timestamp", number) / 1000, ids, tokens, _whole(fields, "output_length", number))


def _add_decision(found: list[Request], places: dict[str, int], fields: Mapping[str, object], number: int) -> None:
    """A further request, or the same one asked again of another worker: what the last one said of it counts."""
    request = _of_decision(fields, number)
    name, attempt = str(fields.get("request_id")), fields.get("attempt")
    place = places.get(name) if isinstance(attempt, int) and attempt > 1 else None
    if place is None:
        places[name] = len(found)
        found.append(request)
    else:
        found[place] = replace(request, at=found[place].at)


def _of_decision(fields: Mapping[str, object], number: int) -> Request:
    """A line of the decision file; `hashes` and `prompt_bytes` stand beside the fields of a decision."""
    reported = fields.get("reported_prompt_tokens")
    tokens = _size(fields, "prompt_tokens" if reported is None else "reported_prompt_tokens", number)
    if "hashes" not in fields:
        raise TraceError(f"line {number}: no hashes: a log written without them does not say what prompts share")
    hashes = _ids(fields["hashes"], number)
    size = fields.get("prompt_bytes")
    size = _size(fields, "prompt_bytes", number) if size is not None else tokens * BYTES_PER_TOKEN
    output = fields.get("output_tokens")
    answer = _size(fields, "output_tokens", number) if output is not None else _estimated_output(fields)
    return Request(_seconds(fields, "at", number), ids_of_hashes(hashes, tokens, size, number), tokens, answer)


def ids_of_hashes(hashes: Sequence[int], tokens: int, size: int, own: int) -> tuple[int, ...]:
    """Ids for each 512 tokens from the hashes of a prompt's boundaries; what lies behind the last is `own` alone."""
    ends = boundaries(size)[: len(hashes)]
    ids = []
    for block in range(1, block_count(tokens) + 1):
        last = min(block * ID_TOKENS, tokens) * size // tokens
        position = bisect_left(ends, last)
        source = hashes[position] if position < len(ends) else -1 - own
        ids.append(xxh3_64_intdigest(source.to_bytes(16, "little", signed=True), block))
    return tuple(ids)


def _estimated_output(fields: Mapping[str, object]) -> int:
    total, first = fields.get("total_seconds"), fields.get("first_byte_seconds")
    if isinstance(total, int | float) and isinstance(first, int | float) and total > first:
        return min(MOST_TOKENS, 1 + int((total - first) * ANSWER_RATE))
    return 1


def _ids(value: object, number: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 1 << 64 for item in value):
        raise TraceError(f"line {number}: ids and hashes must be whole numbers of up to 64 bits")
    return tuple(value)


def _size(fields: Mapping[str, object], name: str, number: int) -> int:
    """A size that may have been rounded to nothing, where the replay needs at least one."""
    return 1 if type(fields.get(name)) is int and fields[name] == 0 else _whole(fields, name, number)


def _whole(fields: Mapping[str, object], name: str, number: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 < value <= MOST_TOKENS:
        raise TraceError(f"line {number}: {name} must be a whole number from 1 to {MOST_TOKENS:,}")
    return value


def _seconds(fields: Mapping[str, object], name: str, number: int) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise TraceError(f"line {number}: {name} must be a time from 0 on")
    return float(value)

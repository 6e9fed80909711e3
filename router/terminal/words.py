"""What the router would do with a request, in words: who wins, why and by how much, and all terms. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from router.terminal.style import Style, plain, table

Json = Mapping[str, Any]
REMOVED: Final = {
    "model": "does not serve the model",
    "draining": "is being drained",
    "ejected": "was taken out for failing requests",
    "probation": "is on probation, and one request decides it already",
    "window": "has a window that is too small",
    "slots": "has no free slot",
    "not_ready": "is not ready",
}
WITHHELD: Final = {
    "cache_disabled": "its engine runs without prefix caching",
    "below_block_floor": "what is shared is less than its smallest resumable piece",
}


def lines(said: Json, style: Style) -> list[str]:
    """The answer of `/router/explain` for people."""
    made = [_prompt(said), *_chosen(said, style), ""]
    return [*made, *_table(said, style), *_notes(said)]


def _prompt(said: Json) -> str:
    prompt = said["prompt"]
    exact = "" if prompt["tokens_exact"] else "about "
    extra = [
        word
        for word, there in (("salted", prompt["salted"]), ("continues a stored response", prompt["continues_response"]))
        if there
    ]
    return (
        f"{said['endpoint']}, model {plain(said['model'])}, policy {said['policy']}: a prompt of {prompt['bytes']:,} "
        f"bytes, {prompt['blocks']} blocks, {exact}{_tokens(prompt['tokens'])}{''.join(', ' + word for word in extra)}."
    )


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count != 1)}"


def _chosen(said: Json, style: Style) -> Iterator[str]:
    refusal = said.get("refusal")
    if refusal is not None:
        yield style.paint(
            f"It would be refused: {refusal['status']} {refusal['code']}: {plain(refusal['message'])}", "red"
        )
        return
    yield f"{style.paint(plain(said['chosen']), 'bold', 'green')} would be chosen: {said['reason']}."
    for sentence in _why(said):
        yield f"  {sentence}"
    if said["would_wait"]:
        yield "  All slots are taken, so the request would wait for one, and the choice be made again then."
    if said["reuse"] != "on":
        yield f"  Reuse is set to {said['reuse']} for this model, so caches do not steer."


def _why(said: Json) -> Iterator[str]:
    own, others = _stands(said)
    if own is None:
        return
    if not others:
        yield "It is the only candidate."
        return
    if own.get("work") is not None:
        yield from _why_work(own, others)
    elif own["resumable_tokens"] > 0 and said["reason"] in ("hit", "spill"):
        yield from _why_match(said, own, others)
    else:
        yield from _why_load(said, own, others)


def _stands(said: Json) -> tuple[Json | None, list[Json]]:
    """The chosen one, and the other candidates."""
    own = next((row for row in said["workers"] if row["worker"] == said["chosen"]), None)
    others = [row for row in said["workers"] if row["removed_by"] is None and row is not own]
    return own, others


def _why_work(own: Json, others: Sequence[Json]) -> Iterator[str]:
    scores = [row for row in others if row.get("work") is not None]
    if not scores:
        return
    best = min(scores, key=lambda row: float(row["work"]["score"]))
    mine, theirs = float(own["work"]["score"]), float(best["work"]["score"])
    if theirs - mine < 0.5:
        yield f"It and {best['worker']} have equally little to compute: {_tokens(round(mine))} of work."
    else:
        yield (
            f"It has the least to compute: {_tokens(round(mine))} of work against {theirs:,.0f} on {best['worker']}, "
            f"{theirs - mine:,.0f} fewer."
        )
    if own["resumable_tokens"]:
        yield f"It can resume {own['resumable_tokens']:,} tokens of the prompt ({own['matched_blocks']} blocks)."


def _why_match(said: Json, own: Json, others: Sequence[Json]) -> Iterator[str]:
    tokens = said["prompt"]["tokens"]
    near = [row for row in others if row["within_slack"] is not False]
    best = max(near, key=lambda row: (row["resumable_tokens"], row["matched_blocks"]), default=None)
    yield f"It can resume {own['resumable_tokens']:,} of {tokens:,} tokens ({own['matched_blocks']} blocks match)."
    if best is None or not best["resumable_tokens"]:
        yield "Nobody else within reach can resume any of them."
    elif best["resumable_tokens"] < own["resumable_tokens"]:
        ahead = own["resumable_tokens"] - best["resumable_tokens"]
        yield f"That is {ahead:,} more than {best['worker']}, the next within reach."
    else:
        how = "it carries less" if own["load"] < best["load"] else "it comes first in the order that replicas share"
        yield f"{best['worker']} can resume as much; {how}."
    yield (
        f"It has {own['load']} in flight and the freest candidate {said['min_load']}; a prompt of this size may find "
        f"{said['slack']} more."
    )
    yield from _too_busy(said, own, others)


def _too_busy(said: Json, own: Json, others: Sequence[Json]) -> Iterator[str]:
    for row in others:
        if row["within_slack"] is False and row["resumable_tokens"] > own["resumable_tokens"]:
            yield (
                f"{row['worker']} could resume {row['resumable_tokens']:,}, but has {row['load']} in flight, and the "
                f"limit is {said['min_load'] + said['slack']}."
            )


def _why_load(said: Json, own: Json, others: Sequence[Json]) -> Iterator[str]:
    yield from {
        "miss": ["No candidate within reach gains from what it holds of this prompt, so load decides."],
        "short": ["The prompt is shorter than one block, so there is nothing to look for, and load decides."],
        "bypass": ["Requests of this kind have nothing to resume, so load decides."],
        "cache_disabled": ["The engine runs without prefix caching, so load decides."],
        "below_block_floor": ["What is shared is less than the engine's smallest resumable piece, so load decides."],
    }.get(str(said["reason"]), [])
    yield from _too_busy(said, own, others)
    least = min(int(row["load"]) for row in others)
    if own["load"] < least:
        yield f"It has {own['load']} in flight, the next {least}."
    elif own["load"] == least:
        equal = sum(row["load"] == least for row in others)
        first = " and comes first in the order that all replicas share for this beginning" * (
            own["rendezvous_rank"] == 1
        )
        yield f"It has {own['load']} in flight, as few as {equal} other{'s' * (equal != 1)}{first}."
    else:
        yield f"It has {own['load']} in flight and the freest {least}; this policy does not look for the freest alone."


# -- everybody's terms -----------------------------------------------------------------------------------------


def _table(said: Json, style: Style) -> list[str]:
    rows = sorted(said["workers"], key=lambda row: (row["worker"] != said["chosen"], row["removed_by"] is not None))
    worked = any(row.get("work") is not None for row in rows)
    head = ["worker", "state", "match", "resumable", "load", *(["work"] if worked else ["in slack"]), "window", ""]
    return table(head, [_row(row, said, style, worked=worked) for row in rows], style, right=(2, 3, 4, 5, 6))


def _row(row: Json, said: Json, style: Style, *, worked: bool) -> list[str]:
    state = "draining" if row["draining"] else str(row["state"])
    if worked:
        term = f"{row['work']['score']:,.0f}" if row.get("work") is not None else "-"
    else:
        term = {True: "yes", False: "no", None: "-"}[row["within_slack"]]
    note = "chosen" if row["worker"] == said["chosen"] else ""
    if row["removed_by"] is not None:
        note = REMOVED.get(str(row["removed_by"]), plain(row["removed_by"]))
    elif row["withheld"] is not None:
        note = ", ".join(part for part in (note, WITHHELD.get(str(row["withheld"]), plain(row["withheld"]))) if part)
    if row["last_resort"]:
        note = ", ".join(part for part in (note, "asked although it is not well, since nobody is") if part)
    return [
        plain(row["worker"]),
        style.state(state),
        f"{row['matched_blocks']}/{said['prompt']['blocks']}",
        f"{row['resumable_tokens']:,}",
        f"{row['load']}/{row['slots']}",
        term,
        f"{row['window']:,}" if row["window"] else "-",
        note,
    ]


def _notes(said: Json) -> Iterator[str]:
    removed = [row for row in said["workers"] if row["removed_by"] is not None]
    if removed and len(removed) == len(said["workers"]) and said["chosen"] is None:
        yield "No worker passed the filters."

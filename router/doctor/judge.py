"""What a probe shows: hit or flat, by which evidence, and how sure that is. Pure."""

from __future__ import annotations

import enum
import statistics
from dataclasses import dataclass

from router.doctor.facts import Probe, Sent

# Which text each prompt of the probe carries: one three times, another, the first again.
PLAN = (0, 0, 0, 1, 0)
# Time says something only where computing the prompt takes longer than the noise of a request.
_SHORTEST_SECONDS = 0.03
_HIT_SHARE = 0.7
_FLAT_SHARE = 0.85
_SAME_TOKENS = 0.02  # by how much the worker's count of looked-up tokens may differ from what was sent


class Verdict(enum.StrEnum):
    """Whether repeated prompts were cheaper than new ones."""

    HIT = "hit"
    FLAT = "flat"
    UNCLEAR = "unclear"


class Confidence(enum.StrEnum):
    """Counted tokens are certain; times that agree by a wide margin are likely; anything else is weak."""

    CERTAIN = "certain"
    LIKELY = "likely"
    WEAK = "weak"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict with its evidence in words; `share` is the time of a repeat over that of a new prompt."""

    verdict: Verdict
    confidence: Confidence
    evidence: tuple[str, ...]
    share: float | None = None


def judge(probe: Probe) -> Judgement | None:
    """What a probe shows; None if not all of its prompts were answered."""
    if len(probe.sent) != len(PLAN):
        return None
    new, repeated = _split(probe.sent)
    share = _share(new, repeated)
    by_time = _by_time(new, repeated)
    counted = [found for found in (_by_usage(repeated), _by_counters(probe)) if found is not None]
    evidence = [text for _, text in counted]
    if share is not None:
        evidence.append(f"a repeat took {share:.0%} of the time of a new prompt")
    verdicts = {verdict for verdict, _ in counted}
    if len(verdicts) == 1:
        return Judgement(verdicts.pop(), Confidence.CERTAIN, tuple(evidence), share)
    if verdicts:
        return Judgement(Verdict.UNCLEAR, Confidence.WEAK, (*evidence, "usage and counters disagree"), share)
    if share is None:
        evidence.append("the prompts were computed too fast for their times to tell")
    if probe.busy:
        evidence.append("other requests ran meanwhile")
    sure = Confidence.LIKELY if by_time is not Verdict.UNCLEAR and not probe.busy else Confidence.WEAK
    return Judgement(by_time, sure, tuple(evidence), share)


def _split(sent: tuple[Sent, ...]) -> tuple[list[Sent], list[Sent]]:
    seen: set[int] = set()
    new: list[Sent] = []
    repeated: list[Sent] = []
    for one in sent:
        (repeated if one.text in seen else new).append(one)
        seen.add(one.text)
    return new, repeated


def _share(new: list[Sent], repeated: list[Sent]) -> float | None:
    # The fastest new one: the first request after a start often pays for more than its prompt.
    cold = min(one.seconds for one in new)
    if cold < _SHORTEST_SECONDS:
        return None
    return statistics.median(one.seconds for one in repeated) / cold


def _by_time(new: list[Sent], repeated: list[Sent]) -> Verdict:
    cold = min(one.seconds for one in new)
    share = _share(new, repeated)
    if share is None:
        return Verdict.UNCLEAR
    if max(one.seconds for one in repeated) < _HIT_SHARE * cold:
        return Verdict.HIT
    return Verdict.FLAT if share > _FLAT_SHARE else Verdict.UNCLEAR


def _by_usage(repeated: list[Sent]) -> tuple[Verdict, str] | None:
    counts = [one.cached_tokens for one in repeated if one.cached_tokens is not None]
    if not counts:
        return None
    tokens = max((one.tokens or 0 for one in repeated), default=0)
    if not any(counts):
        return Verdict.FLAT, f"answers report 0 of {tokens:,} tokens cached on every repeat"
    shown = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return Verdict.HIT, f"answers report {shown} of {tokens:,} tokens cached on a repeat"


def _by_counters(probe: Probe) -> tuple[Verdict, str] | None:
    """The worker's own counters, if nothing but the probe moved them."""
    sizes = [one.tokens for one in probe.sent if one.tokens is not None]
    if probe.counted_queries is None or probe.counted_hits is None or len(sizes) != len(probe.sent):
        return None
    asked = sum(sizes)
    if probe.busy or not asked or abs(probe.counted_queries - asked) > _SAME_TOKENS * asked:
        return None
    verdict = Verdict.HIT if probe.counted_hits > 0 else Verdict.FLAT
    return verdict, f"the worker counted {probe.counted_hits:,.0f} of {asked:,} tokens as hits"

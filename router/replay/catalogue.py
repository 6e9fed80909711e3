"""Every rule by name: the product's policies, other routers' rules, and perfect knowledge."""

from __future__ import annotations

from router.policy import POLICIES
from router.replay import peers
from router.replay.perfect import PerfectKnowledge
from router.replay.product import HORIZONS, product
from router.replay.rules import MakeRule

WORK = "work"
OWN = (WORK, *POLICIES)
PERFECT = "perfect"
PEERS: dict[str, MakeRule] = {
    "sglang": peers.SglangCacheAware,
    "smg_events": peers.SmgEvents,
    "aibrix": peers.AIBrixPrefixCache,
    "dynamo": peers.DynamoCost,
    "llm_d_sum": peers.LlmDSum,
    "llm_d_filter": peers.LlmDAffinityFilter,
    "ray": peers.RayPrefixAffinity,
    "bounded_hashing": peers.BoundedHashing,
}
GROUPS: dict[str, tuple[str, ...]] = {
    "own": OWN,
    "peers": tuple(PEERS),
    "all": (*OWN, *PEERS, PERFECT),
}


class UnknownRule(Exception):
    """A name that stands for no rule, or a horizon where none applies."""


def names_of(given: str) -> list[str]:
    """The rules that a comma-separated list names, groups taken apart; raises UnknownRule."""
    found: list[str] = []
    for name in (part.strip() for part in given.split(",")):
        found.extend(GROUPS.get(name, (name,)))
    for name in found:
        rule_of(name)
    return list(dict.fromkeys(found))


def rule_of(name: str) -> MakeRule:
    """The rule of a name; `@dense`, `@ladder` or `@whole` behind a product policy sets its horizon."""
    base, _, horizon = name.partition("@")
    if horizon and horizon not in HORIZONS:
        raise UnknownRule(f"{name!r}: the horizon is one of {', '.join(HORIZONS)}")
    if base in OWN:
        return product(base, horizon or None)
    if horizon:
        raise UnknownRule(f"{name!r}: only the product's policies have a horizon")
    if base == PERFECT:
        return PerfectKnowledge
    if base in PEERS:
        return PEERS[base]
    raise UnknownRule(f"{name!r} is no rule; there are {', '.join(GROUPS['all'])}, and {', '.join(GROUPS)} for groups")

"""Which settings a reload takes over, and which wait for a restart."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.reload import LIVE, changes, merged, takes_effect
from router.settings import Group, Settings


def of(**settings: Any) -> Settings:
    return Settings.model_validate(settings)


def test_a_change_is_named_by_its_path() -> None:
    before = of(workers=["http://a"], health={"fall": 3})
    after = of(workers=["http://a", "http://b"], health={"fall": 4}, models={"m": {"reuse": "off"}}, port=1)
    assert changes(before, after) == ["port", "workers", "health.fall", "models"]
    assert changes(before, before) == []


def test_what_needs_a_restart_stays_as_it_was() -> None:
    before = of(port=1, affinity={"hash_secret": "a", "max_blocks": 10}, limits={"decisions": 5, "choices": 1})
    after = of(port=2, affinity={"hash_secret": "b", "max_blocks": 20}, limits={"decisions": 6, "choices": 2})
    now = merged(before, after)
    assert changes(before, now) == ["affinity.max_blocks", "limits.choices"]
    assert changes(now, after) == ["port", "affinity.hash_secret", "limits.decisions"]
    assert isinstance(now, Settings)


def test_every_path_that_takes_effect_exists() -> None:
    for path in LIVE:
        name, _, leaf = path.partition(".")
        default = Settings.model_fields[name].default
        assert not leaf or (isinstance(default, Group) and leaf in type(default).model_fields)


@given(
    st.sets(
        st.sampled_from(["port", "health.fall", "limits.decisions", "timeouts.drain", "timeouts.queue", "log.level"])
    )
)
def test_what_is_in_force_differs_in_live_settings_alone(paths: set[str]) -> None:
    values: dict[str, Any] = {"port": 9, "fall": 9, "decisions": 9, "drain": 9.0, "queue": 9.0, "level": "debug"}
    changed: dict[str, Any] = {}
    for path in paths:
        group, _, leaf = path.rpartition(".")
        if group:
            changed.setdefault(group, {})[leaf] = values[leaf]
        else:
            changed[leaf] = values[leaf]
    before, after = of(), of(**changed)
    assert set(changes(before, after)) == paths
    now = merged(before, after)
    assert set(changes(before, now)) == {path for path in paths if takes_effect(path)}
    assert merged(now, now) == now

"""One tenant's flood leaves the others' blocks where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import AffinityMap
from router.dataplane.tenancy import Tenancy
from router.quota import SLICES, Quota
from router.settings import Settings

WINDOW = 600.0


def half(tenant: str) -> float:
    return 0.5


def test_while_there_is_room_anybody_may_use_it() -> None:
    quota = Quota(1_000, WINDOW, half)
    quota.count("a", 900, 0)
    assert quota.admits("a", 900, 0)
    assert not quota.admits("a", 950, 0)
    assert quota.admits("b", 1_000, 0)


def test_a_share_comes_back_as_the_window_slides() -> None:
    quota = Quota(1_000, WINDOW, half)
    for step in range(SLICES):
        quota.count("a", 100, step * WINDOW / SLICES)
    assert quota.used("a", WINDOW - 1) == 600
    assert not quota.admits("a", 1_000, WINDOW - 1)
    assert quota.used("a", WINDOW) == 500
    assert not quota.admits("a", 1_000, WINDOW)
    assert quota.admits("a", 1_000, WINDOW * (1 + 1 / SLICES))
    assert quota.used("a", 10 * WINDOW) == 0


def test_a_whole_share_is_no_limit() -> None:
    quota = Quota(10, WINDOW, lambda tenant: 1.0)
    quota.count("a", 1_000, 0)
    assert quota.admits("a", 10, 0)


def test_other_limits_count_what_is_there_already() -> None:
    quota = Quota(1_000, WINDOW, half)
    quota.count("a", 300, 0)
    quota.reconfigure(1_000, WINDOW, lambda tenant: 0.25)
    assert not quota.admits("a", 1_000, 1)
    quota.keep(["b"])
    assert quota.admits("a", 1_000, 1)


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(0, 50)), max_size=60))
def test_what_is_counted_is_what_came_within_the_window(uses: list[tuple[float, int]]) -> None:
    quota = Quota(1_000, WINDOW, half)
    now, came = 0.0, []
    for pause, blocks in uses:
        now += pause
        came.append((now, blocks))
        quota.count("a", blocks, now)
        step = WINDOW / SLICES
        assert quota.used("a", now) == sum(count for at, count in came if at // step > now // step - SLICES)


@pytest.mark.parametrize("back", [1.0, 10 * WINDOW])
def test_a_clock_that_goes_back_does_no_harm(back: float) -> None:
    quota = Quota(1_000, WINDOW, half)
    quota.count("a", 10, 20 * WINDOW)
    quota.count("a", 10, 20 * WINDOW - back)
    assert quota.used("a", 20 * WINDOW) == 20


def tenancy(place: Path, replicas: int, share: float, tenants: int) -> Tenancy:
    keys = place / "keys"
    keys.write_text("".join(f"t{number} key-of-tenant-{number}\n" for number in range(tenants)))
    settings = Settings.model_validate({"auth": {"keys_file": str(keys)}, "tenancy": {"index_share": share}})
    return Tenancy(settings, lambda: replicas)


@pytest.mark.parametrize(
    ("replicas", "share", "tenants", "part"), [(1, 0.6, 2, 0.6), (3, 0.6, 2, 0.2), (3, 1.0, 2, 1.0), (3, 0.6, 1, 1.0)]
)
def test_replicas_divide_a_share(tmp_path: Path, replicas: int, share: float, tenants: int, part: float) -> None:
    assert tenancy(tmp_path, replicas, share, tenants).share("t0") == pytest.approx(part)


def survives_a_flood(share: float) -> bool:
    """Three replicas that tell each other what they serve; whether a block outlives a tenant's flood of all of them."""
    maps = [AffinityMap(1_000, WINDOW, 10.0) for _ in range(3)]
    quotas = [Quota(1_000, WINDOW, lambda tenant: share) for _ in range(3)]
    for index in maps:
        index.set_epoch("w", 1.0)

    def serve(tenant: str, blocks: list[int], replica: int) -> None:
        if not quotas[replica].admits(tenant, len(maps[replica]), 1.0):
            return
        delta = maps[replica].record("w", 1.0, blocks, 1.0)
        assert delta is not None
        quotas[replica].count(tenant, len(delta.new), 1.0)
        for other in maps:
            if other is not maps[replica]:
                other.apply(delta, 1.0)

    serve("quiet", [1, 2, 3], 0)
    for number in range(1_000):
        serve("loud", [10 * number + step for step in range(10, 20)], number % 3)
    return all(index.match([1, 2, 3], 2.0) for index in maps)


def test_a_flood_of_several_replicas_stays_within_one_share() -> None:
    assert survives_a_flood(0.5 / 3)
    assert not survives_a_flood(0.5), "each replica gives away a whole share"

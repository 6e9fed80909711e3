"""Whose a request is, how many a tenant may have under way, what of the map is its share, and which salt it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.dataplane.tenancy import Tenancy, describe_tenancy
from router.errors import BadRequest, TenantLimit, Unauthorized
from router.metrics import Metrics
from router.prompt import Form, read_prompt
from router.prompt.salting import tenant_salt
from router.quota import Quota
from router.settings import DEFAULT_TENANT, Settings, load

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("blue blue-key\nblue blue-other-key\nred red-key\n")
    return file


def settings(keys: Path | None = None, **more: Any) -> Settings:
    return load(None, {**more, **({"auth": {"keys_file": str(keys)}} if keys else {})})


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key.encode()}


def runs(tenancy: Tenancy, tenant: str, most: int = 10) -> int:
    """How many may begin at once, up to so many; they end again."""
    begun = 0
    try:
        for _ in range(most):
            tenancy.enter(tenant)
            begun += 1
    except TenantLimit:
        pass
    for _ in range(begun):
        tenancy.leave(tenant)
    return begun


def test_a_key_says_whose_a_request_is(keys: Path) -> None:
    tenancy = Tenancy(settings(keys))
    assert [tenancy.tenant(bearer(key)) for key in ("blue-key", "blue-other-key", "red-key")] == ["blue", "blue", "red"]
    assert tenancy.tenant({b"x-api-key": b"red-key"}) == "red"
    for fields in ({}, bearer("green-key"), bearer("")):
        with pytest.raises(Unauthorized):
            tenancy.tenant(fields)
    assert tenancy.tenants == {"blue", "red", DEFAULT_TENANT}


def test_without_keys_all_requests_are_of_one_tenant() -> None:
    tenancy = Tenancy(settings())
    assert tenancy.tenant({}) == tenancy.tenant(bearer("whatever")) == DEFAULT_TENANT
    assert tenancy.tenants == {DEFAULT_TENANT}


def test_a_tenant_has_its_own_limit_or_that_of_all_or_none(keys: Path) -> None:
    assert runs(Tenancy(settings(keys)), "blue") == 10
    limited = Tenancy(settings(keys, tenancy={"max_requests": 3}, tenants={"red": {"max_requests": 2}}))
    assert [runs(limited, tenant) for tenant in ("blue", "red")] == [3, 2]
    own = Tenancy(settings(keys, tenants={"red": {"max_requests": 2}}))
    assert [runs(own, tenant) for tenant in ("blue", "red")] == [10, 2]


def test_what_is_beyond_the_limit_is_refused_counted_and_harms_nobody(keys: Path) -> None:
    tenancy = Tenancy(settings(keys, tenancy={"max_requests": 2}))
    tenancy.enter("blue")
    tenancy.look("blue")
    tenancy.enter("blue")
    for refused in (tenancy.look, tenancy.enter):
        with pytest.raises(TenantLimit, match="No more than 2 ") as error:
            refused("blue")
        assert (error.value.status, error.value.retry_after) == (429, 1)
    assert (tenancy.running, tenancy.refused) == ({"blue": 2}, {"blue": 2})
    tenancy.enter("red")
    tenancy.leave("blue")
    tenancy.enter("blue")
    for tenant in ("blue", "blue", "red"):
        tenancy.leave(tenant)
    assert tenancy.running == {}


def test_other_settings_count_what_runs_and_forget_who_is_no_tenant_any_more(keys: Path) -> None:
    before = settings(keys, tenancy={"max_requests": 1})
    tenancy = Tenancy(before)
    for tenant in ("blue", "red"):
        tenancy.enter(tenant)
        with pytest.raises(TenantLimit):
            tenancy.look(tenant)
    keys.write_text("blue blue-key\n")
    tenancy.reconfigure(settings(keys, tenancy={"max_requests": 2}))
    assert tenancy.refused == {"blue": 1}
    assert tenancy.running == {"blue": 1, "red": 1}
    tenancy.enter("blue")
    with pytest.raises(TenantLimit):
        tenancy.look("blue")
    with pytest.raises(Unauthorized):
        tenancy.tenant(bearer("red-key"))


def test_a_share_of_the_map_counts_from_two_tenants_on(keys: Path) -> None:
    shares: dict[str, Any] = {"tenancy": {"index_share": 0.25}, "tenants": {"red": {"index_share": 0.75}}}
    tenancy = Tenancy(settings(keys, **shares))
    assert [tenancy.share(tenant) for tenant in ("blue", "red", DEFAULT_TENANT)] == [0.25, 0.75, 0.25]
    keys.write_text("red red-key\nred red-other-key\n")
    assert Tenancy(settings(keys, **shares)).share("red") == 1.0
    assert Tenancy(settings(**shares)).share(DEFAULT_TENANT) == 1.0


def test_what_one_replica_gives_away_of_a_share_is_its_part_of_it(keys: Path) -> None:
    tenancy = Tenancy(settings(keys, tenancy={"index_share": 0.5}, tenants={"red": {"index_share": 1}}), lambda: 4)
    assert (tenancy.share("blue"), tenancy.share("red")) == (0.125, 1.0)


def test_each_tenant_gets_a_salt_of_its_own_where_that_is_on(keys: Path) -> None:
    plain, salted = Tenancy(settings(keys)), Tenancy(settings(keys, tenancy={"salt_secret": "s" * 32}))
    prompt = read_prompt(Form.CHAT, BODY)
    assert plain.prepare("blue", prompt, BODY) == BODY
    assert prompt.salt is None or not prompt.salt
    bodies = {tenant: salted.prepare(tenant, prompt, BODY) for tenant in ("blue", "red")}
    for tenant, body in bodies.items():
        salt = tenant_salt(b"s" * 32, tenant, None)
        assert body == b'{"cache_salt":"%b",%b' % (salt.encode(), BODY[1:])
    assert prompt.salt == tenant_salt(b"s" * 32, "red", None)
    other = read_prompt(Form.OTHER, BODY)
    assert salted.prepare("blue", other, BODY) == BODY


@pytest.mark.parametrize("secret", [None, "s" * 32])
def test_more_choices_than_allowed_are_refused(secret: str | None) -> None:
    tenancy = Tenancy(settings(limits={"choices": 4}, tenancy={"salt_secret": secret}))
    for number, fine in ((4, True), (5, False)):
        body = BODY[:-1] + b', "n": %d}' % number
        prompt = read_prompt(Form.CHAT, body)
        if fine:
            tenancy.prepare(DEFAULT_TENANT, prompt, body)
        else:
            with pytest.raises(BadRequest, match="above 4"):
                tenancy.prepare(DEFAULT_TENANT, prompt, body)


def test_metrics_name_each_tenant(keys: Path) -> None:
    tenancy, metrics, quota = (
        Tenancy(settings(keys, tenancy={"max_requests": 1})),
        Metrics(),
        Quota(10, 60.0, lambda _: 1.0),
    )
    describe_tenancy(metrics, tenancy, quota, lambda: 1.0)
    tenancy.enter("blue")
    with pytest.raises(TenantLimit):
        tenancy.look("blue")
    quota.count("red", 7, 0.0)
    page = metrics.render().decode().splitlines()
    assert 'router_tenant_requests{tenant="blue"} 1.0' in page
    assert 'router_tenant_refused_total{tenant="blue"} 1.0' in page
    blocks = [line for line in page if line.startswith("router_tenant_blocks{")]
    assert blocks == [
        f'router_tenant_blocks{{tenant="{name}"}} {n}' for name, n in (("blue", 0.0), ("default", 0.0), ("red", 7.0))
    ]

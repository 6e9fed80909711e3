"""The news between replicas breaks in every way it can: no client notices, and the maps agree again within ten seconds.

Two replicas behind nginx, a real Redis, and conversations all along, as in the table of docs/reliability.md.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import find_nginx, find_redis
from loadtest.sync_faults import Result, deployed, row, run
from tests.whole.conftest import require

pytestmark = [pytest.mark.redis, pytest.mark.nginx]
LANES = 6
AGREE_SECONDS = 10.0


@pytest.fixture
def place() -> Iterator[Path]:
    require(find_nginx(), "nginx")
    require(find_redis(), "redis-server")
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        place = Path(name)
        place.chmod(0o711)  # nginx, started as root, works as another user
        yield place


async def suffer(place: Path, fault: str) -> Result:
    async with deployed(place, lanes=LANES) as rig:
        await asyncio.sleep(0.5)
        result = await run(rig, fault, seconds=2.0, calm_seconds=1.5)
        assert all(replica.alive for replica in rig.replicas)
        return result


def check(result: Result) -> None:
    assert result.before.requests > 10
    assert result.after.requests > 10
    assert result.agreement <= AGREE_SECONDS
    assert result.after.known >= 0.95, row(result)
    assert result.before.refused == result.before.broken == result.after.refused == result.after.broken == 0


@pytest.mark.parametrize(
    "fault", ["redis_killed", "redis_stopped", "subscribers_killed", "buffers_overflow", "garbage", "partition"]
)
async def test_no_client_notices_and_maps_agree_soon(place: Path, fault: str) -> None:
    result = await suffer(place, fault)
    check(result)
    assert result.during.refused == result.during.broken == 0
    assert result.during.requests > 0
    if fault in ("subscribers_killed", "buffers_overflow"):
        assert result.counted["resubscribed"] >= 1
    if fault == "garbage":
        assert result.during.known >= 0.95
        assert result.counted["resubscribed"] == 0


async def test_the_death_of_a_replica_breaks_its_streams_alone(place: Path) -> None:
    result = await suffer(place, "replica_killed")
    check(result)
    assert result.during.broken + result.during.refused <= LANES
    assert result.during.known >= 0.95


async def test_a_rolling_restart_loses_no_request_and_keeps_the_hits(place: Path) -> None:
    result = await suffer(place, "rolling_restart")
    check(result)
    assert result.during.refused == result.during.broken == 0
    assert min(result.during.known, result.after.known) >= result.before.known - 0.05, row(result)

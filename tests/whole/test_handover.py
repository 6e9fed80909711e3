"""A conversation that goes on through another replica: the comparison with other routers, played with our own."""

from __future__ import annotations

import pytest

from loadtest import handover
from loadtest.fleet import find_redis
from tests.whole.conftest import require


@pytest.mark.redis
def test_the_other_replica_knows_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require(find_redis(), "redis-server")
    # One at a time, so that no worker is too busy to be worth waiting for.
    monkeypatch.setattr(handover, "AT_ONCE", 1)
    assert handover.main(["--systems", "ours", "--conversations", "6", "--workers", "3"]) == 0
    assert "| prefix-router | 6 of 6 | 6 |" in capsys.readouterr().out

"""A server of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.edges.server.rig import Rig, serving


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as rig:
        yield rig

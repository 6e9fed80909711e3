"""What all tests have in common: after each case of the catalogue the invariants are looked at, by whoever can.

Cases are found by the catalogue's list and ids, so none has to ask for it. What was looked at stands in the report.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest

from router.build import compiled
from tests import invariants
from tests.catalogue import is_case
from tests.invariants.parts import Parts, check_tasks

# How long an example takes, or making it, says how busy the machine is and not whether the code is right.
# On a build server the inputs are always the same, so that a failure there is owed to the change that is tested; new
# ones are tried wherever else the tests run, and by scripts/fuzz.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
hypothesis.settings.load_profile("suite")


def _is_case(request: pytest.FixtureRequest) -> bool:
    name = request.node.originalname if isinstance(request.node, pytest.Function) else request.node.name
    return is_case(request.path, name)


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around everything else that belongs to one test, its event loop included."""
    invariants.taken()
    if not _is_case(request):
        yield
        return
    # Objects that compiled code makes can't be followed.
    if "edges" in request.path.parts and not compiled():
        with pytest.MonkeyPatch.context() as patch:
            parts = Parts(patch)
            yield
            parts.check()
    else:
        yield
    looked_at = " ".join(map(str, sorted(invariants.taken())))
    request.node.user_properties.append(("invariants", looked_at))


@pytest.fixture(autouse=True)
def _invariants_of_tasks(request: pytest.FixtureRequest, _invariants: None) -> None:
    """Around all that needs the event loop."""
    if "edges" in request.path.parts and inspect.iscoroutinefunction(request.function) and _is_case(request):
        request.getfixturevalue("_tasks_at_rest")


@pytest.fixture
async def _tasks_at_rest() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    check_tasks({task.get_name() for task in left if task is not None})

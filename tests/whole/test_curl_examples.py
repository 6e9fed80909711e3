"""The examples with curl in the documentation do what they say, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.whole.conftest import require
from tests.whole.rig import Rig, RigBuilder, group

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
MODEL = "my-model"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SETTING, *EXAMPLES = BLOCKS
# What each of them shows, in their order.
SHOWN = (
    r'"id": ?"my-model"',
    r"(?s)HTTP/1.1 200 OK.*x-router-worker: [0-9a-f]{8}\r\n.*x-router-decision: .*\"finish_reason\"",
    r"(?s)data: \{.*\"usage\".*data: \[DONE\]",
    r'"request_id":"my-first-request".*"why"',
    r'"status": ?"completed"',
    r'"type": ?"message"',
    r'(?s)"embedding".*"embedding"',
    r'"code": ?"model_not_found"',
    r'"chosen":"[0-9a-f]{8}"',
    r"(?s)\"workers\".*router_affinity_decisions_total\{.*\} \d",
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require(shutil.which("curl"), "curl")
    with ExitStack() as stack:
        # Without an admin key, as the page has it.
        yield RigBuilder(tmp_path_factory.mktemp("curl"), stack)(
            group(MODEL, 2), settings={"ROUTER_AUTH__ADMIN_KEY": ""}
        )


def test_the_page_sets_what_its_examples_use() -> None:
    assert SETTING == "export ROUTER=http://localhost:8080 MODEL=my-model\n"
    assert len(EXAMPLES) == len(SHOWN)
    assert set(re.findall(r"\$([A-Z_]+)", "".join(EXAMPLES))) == {"ROUTER", "MODEL"}


@pytest.mark.parametrize(("example", "shown"), list(zip(EXAMPLES, SHOWN, strict=True)), ids=range(len(SHOWN)))
def test_an_example_shows_what_the_page_says(rig: Rig, example: str, shown: str) -> None:
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example],
        env={"PATH": os.environ["PATH"], "ROUTER": rig.front, "MODEL": MODEL},
        capture_output=True,
        timeout=40,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert re.search(shown, run.stdout.decode())

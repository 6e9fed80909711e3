"""guidellm as a load tool: conversations of four turns, streamed, with a tokenizer that is made on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.clients.programs.aiperf_load import make_tokenizer
from loadtest.clients.programs.saying import KEY, MODEL, URL, check

SECONDS, STREAMS, TURNS = 30, 4, 4
RUN_SECONDS = 240


def load(folder: Path) -> str:
    """One run; its own account of it."""
    make_tokenizer(folder / "tokenizer")
    words = ["--backend", f"kind=openai_http,target={URL},model={MODEL},api_key={KEY}"]
    words += ["--profile", f"kind=concurrent,streams={STREAMS}"]
    words += ["--constraint", f"kind=max_duration,seconds={SECONDS}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens=4000,output_tokens=16,turns={TURNS}"]
    words += ["--output", f"kind=json,path={folder / 'out.json'}", "--disable-console"]
    run = subprocess.run(
        [str(Path(sys.executable).parent / "guidellm"), "run", *words],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"exit code {run.returncode}: {(run.stdout + run.stderr)[-300:]}")
    (found,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    totals, first = found["metrics"]["request_totals"], found["metrics"]["time_to_first_token_ms"]["successful"]["mean"]
    assert totals["errored"] == 0, f"{totals['errored']} of {totals['total']} requests failed"
    return f"{totals['successful']} requests, first token after {first:.0f} ms"


def main() -> None:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        check("load", lambda: load(Path(folder)))


if __name__ == "__main__":
    main()

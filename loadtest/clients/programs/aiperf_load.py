"""aiperf as a load tool: conversations of three turns, streamed, with a tokenizer that is made on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.clients.programs.saying import KEY, MODEL, URL, check

CONVERSATIONS, TURNS = 12, 3
RUN_SECONDS = 240


def make_tokenizer(folder: Path) -> None:
    """A small byte-level tokenizer; those of models would have to be downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(["some words that come again and again in what people ask " * 20], trainer)
    whole = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    whole.save_pretrained(folder)


def load(folder: Path) -> str:
    """One run; its own account of it."""
    make_tokenizer(folder / "tokenizer")
    words = ["--model", MODEL, "--url", URL, "--api-key", KEY, "--endpoint-type", "chat", "--streaming"]
    words += ["--tokenizer", str(folder / "tokenizer"), "--use-server-token-count", "--concurrency", "4"]
    words += ["--conversation-num", str(CONVERSATIONS), "--conversation-turn-mean", str(TURNS)]
    words += ["--conversation-turn-stddev", "0", "--synthetic-input-tokens-mean", "600", "--output-tokens-mean", "16"]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "aiperf",
            "profile",
            *words,
            "--ui",
            "none",
            "--output-artifact-dir",
            str(folder / "out"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    found = sorted((folder / "out").rglob("profile_export_aiperf.json"))
    if run.returncode or not found:
        raise RuntimeError(f"exit code {run.returncode}: {(run.stdout + run.stderr)[-300:]}")
    figures = json.loads(found[0].read_text())
    count, first = int(figures["request_count"]["avg"]), figures["time_to_first_token"]["avg"]
    assert count == CONVERSATIONS * TURNS, f"{count} requests"
    return f"{count} requests, first token after {first:.0f} ms"


def main() -> None:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        check("load", lambda: load(Path(folder)))


if __name__ == "__main__":
    main()

"""LiteLLM's proxy in front of the router, and the openai client in front of that."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai

from loadtest.clients.programs.saying import KEY, MODEL, TURNS, URL, check, question, refusal

START_SECONDS = 90.0
MASTER = f"sk-{secrets.token_hex(32)}"
HELLO: list[Any] = [{"role": "user", "content": "Hello there."}]


def configuration() -> str:
    """One model, which is the router's."""
    place = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
    return json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": place}]})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the proxy answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the proxy did not start")


def play(url: str) -> None:
    """Everything, the conversation last."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER)

    def chat() -> str:
        made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
        return f"{made.choices[0].finish_reason}"

    def stream() -> str:
        chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True))
        return f"{len(chunks)} events"

    def conversation() -> str:
        messages: list[Any] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": question(turn)})
            made = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
            messages.append({"role": "assistant", "content": made.choices[0].message.content})
        assert made.usage is not None
        assert made.usage.prompt_tokens_details is not None
        return f"{made.usage.prompt_tokens_details.cached_tokens} tokens cached in the last turn"

    check("chat", chat)
    check("stream", stream)
    check(
        "unknown model",
        lambda: refusal(lambda: client.chat.completions.create(model="nobody", messages=HELLO), openai.BadRequestError),
    )
    check("conversation", conversation)


def main() -> None:
    """Start the proxy, play, and end it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(configuration())
        port = free_port()
        words = [str(Path(sys.executable).parent / "litellm"), "--config", str(file), "--host", "127.0.0.1"]
        # It does not start without a key. Its table of prices is shipped with it, and would be downloaded all the same.
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": MASTER}
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *words, "--port", str(port)], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        try:
            wait(f"http://127.0.0.1:{port}", process)
            play(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()

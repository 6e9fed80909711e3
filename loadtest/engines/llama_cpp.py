"""Real llama.cpp servers as workers: an engine that reuses prefixes and was not written for these tests.

The model is tiny and its weights are random, so its answers mean nothing, but its prefill costs what a prefill costs
and its prefix cache is the real one: it keeps the last prompt it computed and resumes from the longest common
beginning. Needs the extra `llama-cpp`; importing this module does not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf import GGUFWriter

MODEL_NAME = "tiny-llama"
CONTEXT_TOKENS = 32_768
START_SECONDS = 90.0
STOP_SECONDS = 10.0

_LAYERS = 4
_WIDTH = 512
_HEADS = 8
_KV_HEADS = 4
_FEED_FORWARD = 1_376
_SPECIAL = ("<unk>", "<s>", "</s>")
_WEIGHT_SEED = 20_251
# Part of the file name: a change to the weights or the vocabulary must not find the old file in a cache.
_MODEL_VERSION = 1

# Each turn is rendered after the one before, so that a longer chat begins with the shorter one.
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '[' + message['role'] + ']' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)

# The server reads each of its settings from the environment as well (MODEL, PORT, API_KEY, CACHE, ...), so it gets only
# what an interpreter needs.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")


class EngineError(RuntimeError):
    """A server that ended, or did not answer in time; carries the end of its log."""


def installed() -> bool:
    """Whether the packages of the extra `llama-cpp` are there."""
    return all(importlib.util.find_spec(name) is not None for name in ("llama_cpp", "sse_starlette", "gguf", "numpy"))


def cached_model(directory: Path) -> Path:
    """The model file in `directory`, written there the first time."""
    path = directory / f"{MODEL_NAME}-{_MODEL_VERSION}.gguf"
    if not path.exists():
        write_model(path)
    return path


def write_model(path: Path) -> None:
    """Write the model (24 MB), the same bytes each time; appears under `path` only when complete."""
    from gguf import GGUFWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    writer = GGUFWriter(partial, "llama")
    try:
        _add_shape(writer)
        _add_vocabulary(writer)
        _add_weights(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)


def _add_shape(writer: GGUFWriter) -> None:
    from gguf import LlamaFileType

    writer.add_name(MODEL_NAME)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(_SPECIAL) + 256)


def _add_vocabulary(writer: GGUFWriter) -> None:
    """One token per byte, so that a text has as many tokens as bytes."""
    from gguf import TokenType

    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    # The tokenizer turns a blank into this sign of three bytes first: as a token of its own it stays one token.
    blank = len(_SPECIAL) + ord(" ")
    tokens[blank], types[blank] = "\u2581", TokenType.NORMAL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_CHAT_TEMPLATE)


def _add_weights(writer: GGUFWriter) -> None:
    import numpy as np

    random = np.random.default_rng(_WEIGHT_SEED)
    vocabulary = len(_SPECIAL) + 256
    key_width = _WIDTH // _HEADS * _KV_HEADS

    def matrix(name: str, rows: int, columns: int) -> None:
        scale = columns**-0.5
        writer.add_tensor(name, (random.standard_normal((rows, columns), dtype=np.float32) * scale).astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(_WIDTH, dtype=np.float32))

    matrix("token_embd.weight", vocabulary, _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        matrix(f"{block}.attn_q.weight", _WIDTH, _WIDTH)
        matrix(f"{block}.attn_k.weight", key_width, _WIDTH)
        matrix(f"{block}.attn_v.weight", key_width, _WIDTH)
        matrix(f"{block}.attn_output.weight", _WIDTH, _WIDTH)
        norm(f"{block}.ffn_norm.weight")
        matrix(f"{block}.ffn_gate.weight", _FEED_FORWARD, _WIDTH)
        matrix(f"{block}.ffn_up.weight", _FEED_FORWARD, _WIDTH)
        matrix(f"{block}.ffn_down.weight", _WIDTH, _FEED_FORWARD)
    norm("output_norm.weight")
    # Only lower-case letters get a say in the next token. An answer is then plain text of one byte per token, comes
    # back in the next turn as the very tokens the engine computed, and never ends before max_tokens.
    output = np.zeros((vocabulary, _WIDTH), dtype=np.float32)
    first = len(_SPECIAL) + ord("a")
    output[first : first + 26] = random.standard_normal((26, _WIDTH), dtype=np.float32) * 0.25
    writer.add_tensor("output.weight", output.astype(np.float16))


class LlamaServer:
    """One `llama_cpp.server` process on a free loopback port; a context manager that ends what it began.

    `threads` are used for prefill. One is the default because the engine's threads wait for each other at every step:
    beside other work on two cores, two threads took twice as long as one. The output goes to a log file in `directory`.
    """

    def __init__(self, directory: Path, *, threads: int = 1, python: str = sys.executable) -> None:
        self._directory = directory
        self._threads = threads
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "llama.log"
        self.url = ""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EngineError("the server has not been started")
        return self._process.pid

    def __enter__(self) -> LlamaServer:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin the process; returns at once."""
        if self._process is not None:
            raise EngineError("the server was started before")
        model = cached_model(self._directory)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = self._directory / f"llama-{port}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "llama_cpp.server", *_arguments(model, port, self._threads)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when the server lists its model; raise `EngineError` when it ended or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise EngineError(f"the server ended while starting:\n{self.log_tail()}")
            if MODEL_NAME in _listed_models(self.url):
                return
            time.sleep(0.1)
        raise EngineError(f"the server did not answer within {seconds:g} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the process; it gets some seconds to do so by itself."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def log_tail(self, size: int = 2_000) -> str:
        """The last `size` bytes the process wrote."""
        try:
            return self._log.read_bytes()[-size:].decode(errors="replace")
        except OSError:
            return ""


@contextlib.contextmanager
def start_llama_workers(count: int, directory: Path, *, threads: int = 1) -> Iterator[list[LlamaServer]]:
    """`count` ready servers that share one model file; all are ended at the end of the block."""
    servers = [LlamaServer(directory, threads=threads) for _ in range(count)]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start()
        for server in servers:
            server.wait_ready()
        yield servers


def _arguments(model: Path, port: int, threads: int) -> list[str]:
    settings = {
        "model": model,
        "model_alias": MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
        "n_ctx": CONTEXT_TOKENS,
        "n_threads": 1,
        "n_threads_batch": threads,
        # By default any other request, even a look at the model list, cuts a running stream short.
        "interrupt_requests": "false",
        "logits_all": "false",
        "verbose": "false",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listed_models(url: str) -> list[str]:
    """Names in the model list; none while nothing, or something else, answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=2.0) as answer:
            return [str(model["id"]) for model in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        return []

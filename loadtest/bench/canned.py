"""Ready-made answers of the fast workers: what a vLLM server would answer or refuse, with nothing computed. Pure."""

from __future__ import annotations

import re
from zlib import crc32

from loadtest.bench.bodies import MODEL

# Where a body's options are looked for; a proxy that writes bodies anew may move them to either end.
MARGIN = 512
CHECKED = 160  # bytes at the beginning that tell conversations apart and are the same in all their turns
TOKEN_WIDTH = 6  # a token id of five digits and a comma
MOST_TOKENS = 400_000
BYTES_PER_TOKEN = 4
TOKENS_PER_BLOCK = 16
ENVELOPE_BYTES = 100  # of a body, beside its messages

_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_TOKENS = b"".join(b"%d," % (10_000 + (7919 * n) % 90_000) for n in range(4096)) * (MOST_TOKENS // 4096 + 1)
_JSON = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"

_CHAT = (
    b'{"id":"chatcmpl-2f1c7d7f0a3b4c5d8e9f00112233aabb","object":"chat.completion","created":1790000000,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"Let me see.","refusal":null,"tool_calls":[]},'
    b'"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":%d,"total_tokens":%d,'
    b'"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":%d}}}'
)
_CHUNK = (
    b'data: {"id":"chatcmpl-2f1c7d7f0a3b4c5d8e9f00112233aabb","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"bench","choices":[{"index":0,"delta":{"content":" evening"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-2f1c7d7f0a3b4c5d8e9f00112233aabb","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"bench","choices":[],"usage":{"prompt_tokens":24,"total_tokens":224,"completion_tokens":200,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n'
)
_MODELS = (
    b'{"object":"list","data":[{"id":"%b","object":"model","created":1790000000,"owned_by":"vllm","root":"%b",'
    b'"parent":null,"max_model_len":1048576,"permission":[]}]}'
) % (MODEL.encode(), MODEL.encode())
_METRICS = (
    "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n"
    'vllm:num_requests_running{{engine="0",model_name="bench"}} 0.0\n'
    'vllm:num_requests_waiting{{engine="0",model_name="bench"}} 0.0\n'
    'vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="100000"}} 1.0\n'
)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
CHUNK = _framed(_CHUNK)
LAST = _framed(_LAST) + b"0\r\n\r\n"


def whole(status: bytes, body: bytes) -> bytes:
    """An answer with a length."""
    return _JSON % (status, len(body), body)


def refusal(status: int, reason: bytes, kind: bytes) -> bytes:
    """An error in the form of the OpenAI API."""
    body = b'{"error":{"message":"%b","type":"%b","param":null,"code":%d}}' % (reason, kind, status)
    return whole(b"%d %b" % (status, reason), body)


NOT_FOUND = whole(b"404 Not Found", b'{"detail":"Not Found"}')
# vLLM has the render routes, but not open to everyone unless it is told so.
NO_RENDER = refusal(403, b"Forbidden", b"PermissionDeniedError")
EMPTY_OK = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 0\r\n\r\n"


def fixed_answers(started: float) -> dict[bytes, bytes]:
    """Answers that do not depend on the body, by path; `started` is the start of the process, in Unix seconds."""
    metrics = _METRICS.format(started=started).encode()
    return {
        b"/health": EMPTY_OK,
        b"/ping": EMPTY_OK,
        b"/v1/models": whole(b"200 OK", _MODELS),
        b"/version": whole(b"200 OK", b'{"version":"0.33.0"}'),
        b"/load": whole(b"200 OK", b'{"server_load":0}'),
        b"/metrics": whole(b"200 OK", metrics).replace(b"application/json", b"text/plain; version=0.0.4"),
        b"/v1/chat/completions/render": NO_RENDER,
        b"/v1/completions/render": NO_RENDER,
        b"/v1/responses/render": NO_RENDER,
        b"/v1/messages/render": NO_RENDER,
    }


def chat_answer(size: int, held: int) -> bytes:
    """The answer to a request whose body has this many bytes, so many of which an engine would hold from before."""
    tokens = max(1, size // BYTES_PER_TOKEN)
    cached = max(0, min(held, size) - ENVELOPE_BYTES) // BYTES_PER_TOKEN // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
    return whole(b"200 OK", _CHAT % (tokens, tokens + 16, cached))


def stream_chunks(start: bytes, end: bytes) -> int:
    """How many chunks a request asks for, by its body's first and last bytes; 0 when it does not stream."""
    ends = start + end
    if b'"stream":true' not in ends and b'"stream": true' not in ends:
        return 0
    found = _MAX_TOKENS.search(ends)
    return int(found[1]) if found else 16


def tokenize_answer(start: bytes, size: int) -> bytes:
    """Token ids of a prompt: as many as its size suggests, the same for the same beginning, others for another one.

    The beginning's checksum stands for the first tokens, which is all that a tree of prefixes needs to tell prompts
    apart; what follows is the same for all, and costs no more than a copy.
    """
    count = min(MOST_TOKENS, max(2, size // BYTES_PER_TOKEN))
    first = crc32(start[:CHECKED]) % 90_000 + 10_000
    tokens = b"%d,%b" % (first, _TOKENS[: (count - 1) * TOKEN_WIDTH - 1])
    answer = b'{"count":%d,"max_model_len":1048576,"tokens":[%b],"token_strs":null}' % (count, tokens)
    return whole(b"200 OK", answer)

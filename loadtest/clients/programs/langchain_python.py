"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

from typing import Any

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from loadtest.clients.programs.saying import KEY, MODEL, TURNS, URL, check, question, refusal

client = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_tokens=8, stream_usage=True)


def invoke() -> str:
    made = client.invoke("Hello there.")
    return f"{made.usage_metadata['output_tokens']} tokens, {made.response_metadata['finish_reason']}"


def stream() -> str:
    chunks = list(client.stream("Hello there."))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return f"{len(chunks)} chunks, {whole.usage_metadata['output_tokens']} tokens"


def embeddings() -> str:
    # Else it would cut texts into token ids, with a vocabulary that it downloads.
    made = OpenAIEmbeddings(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False)
    return f"{len(made.embed_documents(['one', 'two']))} vectors"


def conversation() -> str:
    messages: list[Any] = []
    for turn in range(TURNS):
        messages.append(("human", question(turn)))
        made = client.invoke(messages)
        messages.append(("ai", made.content))
    cached = made.usage_metadata["input_token_details"].get("cache_read", 0)
    return f"{cached} tokens cached in the last turn"


def main() -> None:
    """Everything, the conversation last."""
    check("invoke", invoke)
    check("stream", stream)
    check("batch", lambda: f"{len(client.batch(['One.', 'Two.', 'Three.']))} answers")
    check("embeddings", embeddings)
    check(
        "unknown model",
        lambda: refusal(lambda: client.bind(model="nobody").invoke("Hello."), openai.NotFoundError),
    )
    check("conversation", conversation)


if __name__ == "__main__":
    main()

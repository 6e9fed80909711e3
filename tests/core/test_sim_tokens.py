"""The simulated tokenizer and the rendering of requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simworker import render
from loadtest.simworker.render import AnthropicMessage, ChatBody, Message, MessagesBody, ResponsesBody
from loadtest.simworker.tokens import Tokenizer, chain_start, split
from loadtest.simworker.vocabulary import Vocabulary

TOKENIZER = Tokenizer(16)
ENGLISH = (
    "A person runs several workers behind a router, and every worker that has already computed the beginning of a "
    "prompt answers the follow-up sooner. The router remembers which worker served which beginning; it never queues. "
)


def test_english_is_about_six_bytes_a_token() -> None:
    data = (ENGLISH * 50).encode()
    assert 5.2 < len(data) / TOKENIZER.count(data) < 6.8


@given(st.binary(max_size=2000))
def test_tokens_lose_no_byte(data: bytes) -> None:
    pieces = split(data)
    assert b"".join(pieces) == data
    assert all(1 <= len(piece) <= 24 for piece in pieces)


@given(st.binary(max_size=3000))
def test_blocks_are_cut_where_the_tokens_are(data: bytes) -> None:
    """The fast way over whole blocks counts as the slow one over tokens."""
    prompt = TOKENIZER.text(data, 0)
    pieces = split(data)
    assert prompt.tokens == len(pieces)
    assert len(prompt.hashes) == len(pieces) // 16
    assert prompt.tail == b"".join(pieces[len(prompt.hashes) * 16 :])


@given(st.binary(max_size=1500), st.binary(max_size=1500))
def test_more_text_leaves_earlier_blocks_alone_after_a_boundary(data: bytes, more: bytes) -> None:
    short = TOKENIZER.text(data + b"\x02", 0)
    long = TOKENIZER.text(data + b"\x02" + more, 0)
    assert long.hashes[: len(short.hashes)] == short.hashes


@given(st.binary(max_size=1500), st.text(max_size=300))
def test_generated_text_hashes_as_if_it_had_been_in_the_prompt(data: bytes, text: str) -> None:
    generated = text.encode()
    prompt = TOKENIZER.text(data + b"\x03", 7)
    assert TOKENIZER.extended(prompt, generated, 7) == TOKENIZER.text(data + b"\x03" + generated, 7).hashes


WORDS = st.lists(
    st.sampled_from([b"word", b" ", b"\n", b"\x01", b"long" * 400, "\u00e9t\u00e9".encode()]), max_size=400
)


def _ids(vocabulary: Vocabulary, text: bytes) -> list[int]:
    count, ids = vocabulary.encoded(text)
    found: list[int] = json.loads(bytes(ids))
    assert count == len(found)
    return found


@given(WORDS.map(b"".join), WORDS.map(b"".join), WORDS.map(b"".join))
def test_ids_agree_exactly_as_far_as_tokens_do(shared: bytes, first: bytes, second: bytes) -> None:
    """What was seen before, in whatever order, changes no id: segments are cut where tokens end."""
    vocabulary = Vocabulary()
    texts = [shared + first, shared + second, shared + first]
    ids = [_ids(vocabulary, text) for text in texts]
    pieces = [split(text) for text in texts]
    assert ids[0] == ids[2] == _ids(Vocabulary(), texts[0])
    assert [len(one) for one in ids] == [len(one) for one in pieces]
    assert _common(ids[0], ids[1]) == _common(pieces[0], pieces[1])
    assert vocabulary.text(ids[1]) == texts[1]


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


def test_a_vocabulary_is_bounded_and_knows_what_it_named_last() -> None:
    vocabulary = Vocabulary(pieces=50, segments=50)
    words = [b" w%d" % number for number in range(1000)]
    first = _ids(vocabulary, words[0])
    for word in words:
        assert vocabulary.text(_ids(vocabulary, word)) == word
    assert vocabulary.text(first) == b"<%d>" % first[0]
    assert _ids(vocabulary, words[0]) == first


def test_adapter_and_salt_start_chains_of_their_own() -> None:
    data = ENGLISH.encode()
    starts = [chain_start("", ""), chain_start("a", ""), chain_start("", "a"), chain_start("a", "s")]
    assert len({TOKENIZER.text(data, start).hashes[0] for start in starts}) == 4


def test_token_ids_are_cut_into_blocks() -> None:
    ids = list(range(40))
    prompt = TOKENIZER.ids(ids, 0)
    assert (prompt.tokens, len(prompt.hashes)) == (40, 2)
    assert TOKENIZER.ids([*ids, 1, 2], 0).hashes == prompt.hashes
    assert TOKENIZER.ids([1, *ids], 0).hashes[0] != prompt.hashes[0]


def _chat(*messages: Message, **fields: object) -> bytes:
    body = ChatBody(messages=list(messages))
    for name, value in fields.items():
        setattr(body, name, value)
    return render.chat(body)


def test_text_parts_render_as_their_text() -> None:
    plain = _chat(Message(role="user", content="hello"))
    assert _chat(Message(role="user", content=[{"type": "text", "text": "hello"}])) == plain


def test_images_enter_by_digest() -> None:
    def with_image(data: str) -> bytes:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return _chat(Message(role="user", content=[{"type": "text", "text": "look"}, image]))

    first, second = with_image("A" * 10_000), with_image("B" * 10_000)
    assert first != second
    assert len(first) < 100


def test_a_turn_begins_with_the_turn_before_and_its_answer() -> None:
    first = _chat(Message(role="user", content="one"))
    second = _chat(
        Message(role="user", content="one"),
        Message(role="assistant", content="answer"),
        Message(role="user", content="two"),
    )
    assert second.startswith(first + b"answer")


@pytest.mark.parametrize(
    "field", [{"tools": [{"type": "function"}]}, {"chat_template_kwargs": {"x": 1}}, {"documents": [{"text": "d"}]}]
)
def test_tools_and_template_settings_come_first(field: dict[str, object]) -> None:
    user = Message(role="user", content="one")
    assert not _chat(user, **field).startswith(_chat(user)[:10])
    assert _chat(user, **field).endswith(_chat(user))


def test_anthropic_billing_blocks_are_dropped() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: changes"},
        {"type": "text", "text": "be brief"},
    ]
    turn = [AnthropicMessage(role="user", content="hi")]
    assert render.messages(MessagesBody(messages=turn, system=system)) == render.messages(
        MessagesBody(messages=turn, system="be brief")
    )


def test_responses_continue_an_earlier_conversation() -> None:
    first = ResponsesBody(input="one")
    history = render.conversation(first) + render.answer(b"reply")
    second = render.responses(ResponsesBody(input=[{"role": "user", "content": "two"}]), history)
    assert second.startswith(render.responses(first) + b"reply")


def test_half_a_surrogate_pair_is_no_error() -> None:
    assert _chat(Message(role="user", content="\ud800"))

"""What read_prompt finds in forms with files."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt import MEDIA_BYTES, Form, Prompt, read_prompt
from tests.core.prompt_hostile_rig import BOUNDARY, fuzz, read_any, seconds


def multipart(*parts: tuple[bytes, bytes], boundary: bytes = b"XX") -> bytes:
    lines = b"".join(b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary, head, value) for head, value in parts)
    return lines + b"--%s--\r\n" % boundary


def field(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return b'Content-Disposition: form-data; name="%s"' % name, value


SOUND = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
    b"\x00\r\nRIFF" * 5000,
)


def read_form(body: bytes, content_type: bytes = BOUNDARY) -> Prompt:
    return read_prompt(Form.MULTIPART, body, content_type)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_fields_are_found_before_and_behind_the_sound(order: tuple[int, ...]) -> None:
    parts = [field(b"model", b"whisper"), field(b"stream", b"true"), SOUND]
    prompt = read_form(multipart(*(parts[number] for number in order)))
    assert (prompt.form, prompt.model, prompt.stream) == (Form.MULTIPART, "whisper", True)
    assert (prompt.prefix, prompt.size) == (b"", MEDIA_BYTES)


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="file"; filename="model"',
        b'Content-Disposition: form-data; filename="model"; name="file"',
        b"Content-Disposition: form-data; name=file; filename=model",
    ],
)
def test_a_file_called_model_is_not_the_model(head: bytes) -> None:
    assert read_form(multipart((head, b"not this"), field(b"model", b"whisper"))).model == "whisper"
    assert read_form(multipart((head, b"not this"))).model == ""


def test_what_looks_like_a_field_inside_a_file_is_not_one() -> None:
    inside = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nfake\r\n'
    assert read_form(multipart((SOUND[0], inside), field(b"model", b"real"))).model == "real"


@pytest.mark.parametrize("stream", [b"true", b"True", b"1"])
def test_a_stream_may_be_asked_for_in_words(stream: bytes) -> None:
    assert read_form(multipart(field(b"stream", stream))).stream
    assert not read_form(multipart(field(b"stream", b"false"))).stream


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="XX"',
        b"multipart/form-data; charset=utf-8; BOUNDARY=XX",
        b"multipart/form-data;boundary=XX;charset=utf-8",
    ],
)
def test_the_boundary_is_found(content_type: bytes) -> None:
    assert read_form(multipart(field(b"model", b"m")), content_type).model == "m"


@pytest.mark.parametrize("content_type", [b"", b"multipart/form-data", b"multipart/form-data; boundary=", b"boundary"])
def test_a_form_without_a_boundary_is_refused(content_type: bytes) -> None:
    with pytest.raises(BadRequest):
        read_form(multipart(field(b"model", b"m")), content_type)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b"", ""),
        (b"--XX", ""),
        (b"--XX--\r\n", ""),
        (multipart(field(b"model", b"")), ""),
        (multipart(field(b"model", b"  m ")), "m"),
        (multipart(field(b"model", b"x" * 5000)), ""),
        (multipart((b"Content-Disposition: form-data; name=model", b"m")), "m"),
        (multipart((b"content-disposition:form-data;NAME=model", b"m")), "m"),
        (multipart((b"X: " + b"y" * 10_000, b"z"), field(b"model", b"m")), ""),
        (multipart(field(b"model", b"m"))[:-8], ""),
        (multipart(field(b"model", b"\xff\xfe")), "\ufffd\ufffd"),
        (multipart(field(b"model", b"m"), boundary=b"YY"), ""),
        (multipart(*[field(b"other", b"x")] * 100, field(b"model", b"m")), ""),
    ],
)
def test_odd_forms(body: bytes, model: str) -> None:
    assert read_form(body).model == model


def test_a_form_as_a_client_makes_it() -> None:
    request = httpx.Request(
        "POST",
        "http://router/v1/audio/transcriptions",
        data={"model": "openai/whisper-large-v3", "stream": "true", "language": "fr"},
        files={"file": ("model", b"RIFF" * 10_000, "audio/wav")},
    )
    prompt = read_form(request.read(), request.headers["content-type"].encode())
    assert (prompt.model, prompt.stream) == ("openai/whisper-large-v3", True)


@fuzz
@given(st.lists(st.sampled_from([b"--XX", b"--XX--", b"\r\n", b"\r\n\r\n", b'name="model"', b"name=", b"m", b'"'])))
def test_any_pieces_of_a_form_give_a_prompt(pieces: list[bytes]) -> None:
    assert read_any(Form.MULTIPART, b"".join(pieces)) is not None


def test_a_form_of_boundaries_is_read_in_bounded_time() -> None:
    for body in (b"--XX\r\n" * 2_000_000, b"--XX\r\n\r\n\r\n" * 1_000_000, b"\r\n--XX" * 2_000_000):
        assert seconds(Form.MULTIPART, body) < 0.5

"""Questions to name servers and their answers, byte by byte; whatever comes, nothing but Malformed is raised."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.workers.dns_wire import AAAA, MAX_ADDRESSES, NXDOMAIN, A, Malformed, answer, question
from tests.dns_server import response

NAME = "vllm.default.svc.cluster.local"


def test_a_question_is_what_the_standard_says() -> None:
    asked = question(0x1234, "gpu.example", A)
    assert asked[:12] == bytes.fromhex("1234 0100 0001 0000 0000 0001")
    assert asked[12:29] == b"\x03gpu\x07example\0" + b"\0\x01\0\x01"
    # An option that allows longer datagrams follows.
    assert asked[29:] == b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)


def test_addresses_of_the_kind_that_was_asked_for_are_found() -> None:
    addresses = ["10.0.0.1", "10.0.0.2", "fd00::1"]
    four, six = (question(7, NAME, kind) for kind in (A, AAAA))
    assert answer(response(four, addresses), 7, NAME, A).addresses == ("10.0.0.1", "10.0.0.2")
    assert answer(response(six, addresses), 7, NAME, AAAA).addresses == ("fd00::1",)


def test_an_alias_is_followed_and_a_name_may_end_with_a_dot_and_have_capitals() -> None:
    asked = question(7, f"{NAME}.", A).replace(b"vllm", b"VLLM")
    assert answer(response(asked, ["10.0.0.1"], alias="pool.example"), 7, f"{NAME}.", A).addresses == ("10.0.0.1",)


def test_no_such_name_and_what_was_cut_off_are_told_apart() -> None:
    asked = question(7, NAME, A)
    nobody = answer(response(asked, None, code=NXDOMAIN), 7, NAME, A)
    assert (nobody.code, nobody.truncated, nobody.addresses) == (NXDOMAIN, False, ())
    cut = answer(response(asked, ["10.0.0.1"], truncated=True), 7, NAME, A)
    assert (cut.truncated, cut.addresses) == (True, ())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (response(question(8, NAME, A), []), "not the answer"),
        (question(7, NAME, A), "not the answer"),
        (response(question(7, "other.example", A), []), "another question"),
        (response(question(7, NAME, AAAA), []), "another question"),
        (response(question(7, NAME, A), ["10.0.0.1"])[:-1], "cut off"),
        (response(question(7, NAME, A), ["10.0.0.1"])[:-14], "cut off"),
        (bytes.fromhex("0007 8180 0001 0000 0000 0000 c00c") + bytes(8), "without an end"),
        (bytes.fromhex("0007 8180 0001 0000 0000 0000 4000") + bytes(8), "unknown kind"),
        (
            response(question(7, NAME, A), [f"10.{n >> 8}.{n & 255}.1" for n in range(MAX_ADDRESSES + 1)]),
            "more than 1000 addresses",
        ),
    ],
)
def test_anything_else_is_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        answer(data, 7, NAME, A)


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64 + ".example", ".".join(["x" * 60] * 5), "bücher.example"])
def test_what_is_no_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match=r"not a host name|ordinal not in range"):
        question(7, name, A)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_noise_raises_nothing_else(noise: bytes, kept: int) -> None:
    whole = response(question(7, NAME, A), ["10.0.0.1", "10.0.0.2"], alias="pool.example")
    for data in (noise, whole[:kept] + noise, whole[:kept] + noise + whole[kept + len(noise) :]):
        with contextlib.suppress(Malformed):
            assert len(answer(data, 7, NAME, A).addresses) <= 100

"""The tenant's salt in a body: nobody else's, in every place where an engine might look, and nothing else changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt import Form, read_prompt
from router.prompt.fields import MAX_FIELDS
from router.prompt.salting import tenant_salt, with_salt

SALT = "f" * 64


def salted(body: bytes) -> tuple[bytes, list[str | None]]:
    """The body with a salt, and what the client's own was."""
    own: list[str | None] = []

    def salt_for(given: str | None) -> str:
        own.append(given)
        return SALT

    changed, salt = with_salt(body, salt_for)
    assert salt == SALT
    return changed, own


def pairs_of(body: bytes) -> list[tuple[str, Any]]:
    """The fields of the outer object in order, those that stand twice too, as Python's reader finds them."""
    found: list[list[tuple[str, Any]]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(pairs)
        return dict(pairs)

    json.loads(body, object_pairs_hook=keep)
    return found[-1]


@pytest.mark.parametrize(
    ("body", "expected", "own"),
    [
        (b'{"model":"m"}', b'{"cache_salt":"%b","model":"m"}', None),
        (b' \n{ "model" : "m" }\n', b' \n{"cache_salt":"%b", "model" : "m" }\n', None),
        (b"{}", b'{"cache_salt":"%b"}', None),
        (b" { \t } ", b' {"cache_salt":"%b" \t } ', None),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"cache_salt":"%b","a":1}', None),
        (b'{"cache_salt":"mine","a":1}', b'{"cache_salt":"%b","a":1}', "mine"),
        (b'{"a":1, "cache_salt" :\t"mine" }', b'{"a":1, "cache_salt" :\t"%b" }', "mine"),
        (b'{"cache_salt":null}', b'{"cache_salt":"%b"}', None),
        (b'{"cache_\\u0073alt":"a\\u0062"}', b'{"cache_\\u0073alt":"%b"}', "ab"),
        (b'{"\\u0063\\u0061che_salt":"x","a":[1]}', b'{"\\u0063\\u0061che_salt":"%b","a":[1]}', "x"),
        (
            b'{"cache_salt":"first","a":"cache_salt","cache_salt":"last"}',
            b'{"cache_salt":"%b","a":"cache_salt","cache_salt":"%b"}',
            "last",
        ),
        (b'{"cache_salt":"x","cache_salt":null}', b'{"cache_salt":"%b","cache_salt":"%b"}', None),
        (b'{"cache_salt":[1,{"a":2}],"cache_salt":"y"}', b'{"cache_salt":"%b","cache_salt":"%b"}', "y"),
        (b'{"Cache_Salt":"x"}', b'{"cache_salt":"%b","Cache_Salt":"x"}', None),
        (b'{"cache_salt ":"x"}', b'{"cache_salt":"%b","cache_salt ":"x"}', None),
        (b'{"a":{"cache_salt":"x"}}', b'{"cache_salt":"%b","a":{"cache_salt":"x"}}', None),
        (
            b'{"messages":[{"content":"\\"cache_salt\\":\\"x\\""}]}',
            b'{"cache_salt":"%b","messages":[{"content":"\\"cache_salt\\":\\"x\\""}]}',
            None,
        ),
        (b'{"\\"cache_salt":"x","b\\\\":{"}":1}}', b'{"cache_salt":"%b","\\"cache_salt":"x","b\\\\":{"}":1}}', None),
        (b'{"\xc3\xa4\\u00e4":"cache_salt"}', b'{"cache_salt":"%b","\xc3\xa4\\u00e4":"cache_salt"}', None),
    ],
)
def test_where_the_salt_goes(body: bytes, expected: bytes, own: str | None) -> None:
    changed, given = salted(body)
    assert changed == expected.replace(b"%b", SALT.encode())
    assert given == [own]


@pytest.mark.parametrize("value", [b"5", b'""', b"true", b"[]", b"{}", b"0.5", b'["x"]'])
def test_a_salt_that_an_engine_would_refuse_is_refused_here(value: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        salted(b'{"model":"m","cache_salt":%b}' % value)
    assert caught.value.param == "cache_salt"


def test_an_object_of_very_many_fields_is_not_read_field_by_field() -> None:
    fields = b",".join(b'"%d":1' % number for number in range(MAX_FIELDS))
    assert salted(b'{"cache_salt":"x",%b}' % fields[: fields.rindex(b",")])
    with pytest.raises(BadRequest):
        salted(b'{"cache_salt":"x",%b}' % fields)


@pytest.mark.parametrize("name", [b"\xff", b"a\xed\xa0\x80", b"\xc3"])
def test_a_name_that_is_no_text_is_refused_though_routing_passes_over_it(name: bytes) -> None:
    body = b'{"model":"m","prompt":"x","%b":1}' % name
    read_prompt(Form.COMPLETIONS, body)
    with pytest.raises(BadRequest):
        salted(body)


def test_a_salt_is_the_tenants_and_depends_on_all_that_it_is_made_of() -> None:
    parts = [
        (b"s", "a", None),
        (b"s", "a", "b"),
        (b"s", "ab", None),
        (b"t", "a", None),
        (b"s", "a", ""),
        (b"s", "b", "a"),
    ]
    salts = {tenant_salt(*part) for part in parts}
    assert len(salts) == len(parts)
    assert all(len(salt) == 64 and int(salt, 16) for salt in salts)
    assert tenant_salt(b"s", "a", "b") == tenant_salt(b"s", "a", "b")


NAMES = st.sampled_from(
    ["cache_salt", "model", "a", "", '"', "\\", "cache_salt\0", "{", "}:", "ä", "\u2028"]
) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("cache_salt"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BLANKS = st.sampled_from(["", " ", "\n", "\t \r\n"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object with any fields, names written in any way, blanks anywhere, and fields that stand twice."""

    def name(text: str) -> str:
        written = json.dumps(text, ensure_ascii=draw(st.booleans()))
        if draw(st.booleans()) and text.isalnum():
            written = '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'
        return written

    def blank() -> str:
        return draw(BLANKS)

    fields = draw(st.lists(st.tuples(NAMES.filter(lambda text: text.isprintable()), VALUES), max_size=6))
    written = [
        f"{blank()}{name(key)}{blank()}:{blank()}{json.dumps(value, indent=draw(st.sampled_from([None, 1])))}{blank()}"
        for key, value in fields
        if key != "cache_salt" or value is None or (isinstance(value, str) and value)
    ]
    return f"{blank()}{{{','.join(written) or blank()}}}{blank()}".encode()


@settings(max_examples=300)
@given(bodies())
def test_any_body_has_the_tenants_salt_alone_and_is_otherwise_as_it_was(body: bytes) -> None:
    changed, own = salted(body)
    before, after = pairs_of(body), pairs_of(changed)
    assert [value for name, value in after if name == "cache_salt"] != []
    assert {value for name, value in after if name == "cache_salt"} == {SALT}
    assert [pair for pair in after if pair[0] != "cache_salt"] == [pair for pair in before if pair[0] != "cache_salt"]
    assert own == [dict(before).get("cache_salt")]
    assert len(changed) - len(body) <= 64 + len('"cache_salt":"",') + 64 * len(before)

"""What is led by coverage: which inputs are kept, and what is found. The fuzzer itself is not needed for that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzzing import guided
from tests.fuzzing.guided import Watcher, arcs_of, lacking, main, offer, seed_of
from tests.fuzzing.targets import TARGETS

# Lines of what was compiled can't be followed.
pytestmark = pytest.mark.interpreted

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
OTHER_CHAT = CHAT.replace(b"hello", b"other")


def test_what_an_input_does_is_known_by_the_lines_it_crosses() -> None:
    bodies = TARGETS["bodies"]
    arcs = arcs_of(bodies, CHAT)
    assert arcs == arcs_of(bodies, CHAT)
    assert {file.rpartition("/")[2] for file, _, _ in arcs} >= {"reader.py", "canonical.py"}
    assert arcs_of(bodies, b"[") < arcs | arcs_of(bodies, b"[")


def test_only_what_does_something_new_is_lacking_and_the_smallest_of_it() -> None:
    bodies = TARGETS["bodies"]
    images = CHAT.replace(b'"hello"', b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]')
    padded = images.replace(b"AAAA", b"AAAA" * 9)
    assert lacking(bodies, [CHAT], [OTHER_CHAT]) == []
    assert lacking(bodies, [CHAT], [padded, OTHER_CHAT, images]) == [images]


def test_files_are_offered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, kept = tmp_path / "work", tmp_path / "corpus" / "bodies"
    work.mkdir()
    kept.mkdir(parents=True)
    (kept / "chat.json").write_bytes(CHAT)
    (work / "1").write_bytes(OTHER_CHAT)
    (work / "2").write_bytes(b"[")
    (work / "3").write_bytes(b"[" * (guided.LARGEST + 1))
    monkeypatch.setattr(guided, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(guided, "corpus", lambda name: {path.name: path.read_bytes() for path in kept.iterdir()})
    assert offer("bodies", work) == 1
    assert sorted(path.read_bytes() for path in kept.iterdir()) == [b"[", CHAT]
    assert offer("bodies", work) == 0


def test_findings_are_said_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(rng: random.Random, data: bytes) -> None:
        if data.startswith(b"!"):
            raise KeyError("fragile")

    monkeypatch.setitem(TARGETS, "sync", fragile)
    watch = Watcher("sync", 60.0, tmp_path)
    for data in (b"fine", b"!1", b"!2"):
        watch(data)
    watch.sum_up()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert "KeyError at test_fuzzing_guided.py" in said[0]
    assert said[1].startswith("sync: 3 inputs")
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"!1", b"!2"}
    assert list(watch.findings.values()) == [2]


def test_an_input_always_draws_the_same() -> None:
    assert seed_of(b"input") == seed_of(b"input") != seed_of(b"other")


def test_targets_are_named_rightly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such target: nothing" in capsys.readouterr().err

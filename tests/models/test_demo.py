from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from safetensors import safe_open

from holdfast.models import demo
from holdfast.text import Tokenizer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    return tmp_path


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        demo.write_demo_model(tmp_path / name)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_made_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = demo.demo_model_dir()
    assert [path.name for path in cache.iterdir()] == [directory.name]  # no scratch is left behind
    monkeypatch.setattr(demo, "write_demo_model", lambda _: pytest.fail("made again"))
    assert demo.demo_model_dir() == directory


def test_a_broken_attempt_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(directory: Path) -> None:
        (directory / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo, "write_demo_model", break_off)
        demo.demo_model_dir()
    assert list(cache.iterdir()) == []
    assert (demo.demo_model_dir() / "model.safetensors").is_file()


def test_the_quicker_of_two_processes_wins(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = demo.write_demo_model

    def write_while_another_finishes(directory: Path) -> None:
        other = cache / f"demo-{demo.VERSION}"
        other.mkdir()
        write(other)
        write(directory)

    monkeypatch.setattr(demo, "write_demo_model", write_while_another_finishes)
    directory = demo.demo_model_dir()
    assert [path.name for path in cache.iterdir()] == [directory.name]


def test_transformers_loads_every_tensor(cache: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = demo.demo_model_dir()
    model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    with safe_open(directory / "model.safetensors", "np") as weights:
        assert set(weights.keys()) == set(model.state_dict())
    assert model.config.layer_types == demo.CONFIG["layer_types"]


def test_one_token_for_each_byte(cache: Path) -> None:
    tokenizer = Tokenizer.from_dir(demo.demo_model_dir())
    text = "Hi, 世界!\n"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.vocab_size == demo.CONFIG["vocab_size"]
    assert tokenizer.eos_token_ids == {demo.IM_END, demo.ENDOFTEXT}


def test_chat(cache: Path) -> None:
    tokenizer = Tokenizer.from_dir(demo.demo_model_dir())
    ids = tokenizer.apply_chat([{"role": "user", "content": "Hi"}])
    assert ids[0] == demo.IM_START
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )

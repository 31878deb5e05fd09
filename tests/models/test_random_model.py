from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from safetensors import safe_open
from tests import random_model

from holdfast.text import Tokenizer


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        random_model.write_random_model(tmp_path / name)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_transformers_loads_every_tensor() -> None:
    transformers = pytest.importorskip("transformers")
    directory = random_model.random_model()
    model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    with safe_open(directory / "model.safetensors", "np") as weights:
        assert set(weights.keys()) == set(model.state_dict())
    assert model.config.layer_types == random_model.CONFIG["layer_types"]


def test_one_token_for_each_byte() -> None:
    tokenizer = Tokenizer.from_dir(random_model.random_model())
    text = "Hi, 世界!\n"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.vocab_size == random_model.CONFIG["vocab_size"]
    assert tokenizer.eos_token_ids == {random_model.IM_END, random_model.ENDOFTEXT}


def test_chat() -> None:
    tokenizer = Tokenizer.from_dir(random_model.random_model())
    ids = tokenizer.apply_chat([{"role": "user", "content": "Hi"}])
    assert ids[0] == random_model.IM_START
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )

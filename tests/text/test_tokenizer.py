from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.text import Tokenizer, TokenizerError, eos_token_ids

TEXTS = [
    "",
    " ",
    "the quick",
    "Größe 数学 😀👩‍🚀",
    "  two  spaces ",
    "a<|im_end|>b",
    "line\nline\n",
    "x\ufffdy",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_encode_and_decode_agree_with_transformers(any_dir: Path, text: str, special: bool) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoTokenizer.from_pretrained(any_dir)
    tokenizer = Tokenizer.from_dir(any_dir)
    ids = tokenizer.encode(text, add_special_tokens=special)
    assert ids == oracle.encode(text, add_special_tokens=special)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == oracle.decode(ids, skip_special_tokens=skip)


def test_a_text_begins_as_the_tokenizer_says(any_dir: Path) -> None:
    tokenizer = Tokenizer.from_dir(any_dir)
    begins_with_bos = tokenizer.encode("the") != tokenizer.encode("the", add_special_tokens=False)
    assert begins_with_bos == (any_dir.name.startswith("byte_fallback"))


def test_nothing_is_cut_or_padded(byte_level_dir: Path) -> None:
    path = byte_level_dir / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer.from_dir(byte_level_dir)
    assert (
        tokenizer.decode(tokenizer.encode("a text of more than four tokens"))
        == "a text of more than four tokens"
    )
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, set()),
        ({"config.json": {"eos_token_id": 7}}, {7}),
        ({"config.json": {"text_config": {"eos_token_id": [7, 8]}}}, {7, 8}),
        ({"config.json": {"eos_token_id": 7}, "generation_config.json": {"eos_token_id": [1, 2]}}, {1, 2}),
        ({"config.json": {"eos_token_id": 0}, "generation_config.json": {"eos_token_id": None}}, {0}),
    ],
)
def test_eos_ids(tmp_path: Path, files: dict[str, object], expected: set[int]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert eos_token_ids(tmp_path) == expected


def test_the_tokenizers_own_eos_ends_an_answer_too(any_dir: Path) -> None:
    tokenizer = Tokenizer.from_dir(any_dir)
    [eos] = tokenizer.eos_token_ids
    assert tokenizer.decode([eos], skip_special_tokens=False) == tokenizer.special_tokens["eos_token"]


def test_special_tokens_may_be_named_in_their_own_file(byte_level_dir: Path) -> None:
    (byte_level_dir / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    tokenizer = Tokenizer.from_dir(byte_level_dir)
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>"}


def test_a_named_token_is_special_even_if_it_is_an_ordinary_word(byte_level_dir: Path) -> None:
    (byte_level_dir / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    tokenizer = Tokenizer.from_dir(byte_level_dir)
    [eos] = tokenizer.eos_token_ids
    assert tokenizer.decode([eos]) == ""


def test_missing_and_broken_files_are_named(byte_level_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"nowhere/tokenizer\.json does not exist"):
        Tokenizer.from_dir(tmp_path / "nowhere")
    (byte_level_dir / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer.from_dir(byte_level_dir)
    (byte_level_dir / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match="should hold a JSON object"):
        Tokenizer.from_dir(byte_level_dir)
    (byte_level_dir / "tokenizer_config.json").unlink()
    (byte_level_dir / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_dir(byte_level_dir)

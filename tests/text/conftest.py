"""Small tokenizers of the kinds that models come with, written to directories as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import holdfast.text

CORPUS = [
    "The quick brown fox jumps over the lazy dog; ships wait, the tide does not.",
    "Größe, façade, naïve, 数学 и поэзия, मानक हिन्दी, 😀👩‍🚀🇫🇮",
    "def fold(checkpoint, journal):\n    return checkpoint + sum(journal)\n",
    "1234567890 + 42 == 1234567932  \t  end",
] * 4
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """As GPT-2, Qwen and LFM2: bytes, merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|pad|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Jamba: words that begin with a mark for their space, and bytes for what has no word."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzT.,;", "▁t", "he", "▁the", "qu", "ic"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("q", "u"), ("i", "c")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="session", params=KINDS)
def any_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one of the tokenizers and a chat template."""
    directory = tmp_path_factory.mktemp(request.param)
    KINDS[request.param]().save(str(directory / "tokenizer.json"))
    named = {
        "byte_level": {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"},
        "byte_fallback": {
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>"},
            "unk_token": "<unk>",
        },
    }[request.param]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML, **named}
    write_json(directory / "tokenizer_config.json", config)
    return directory


@pytest.fixture(scope="session")
def merged_bytes(tmp_path_factory: pytest.TempPathFactory) -> holdfast.text.Tokenizer:
    directory = tmp_path_factory.mktemp("merged_bytes")
    byte_level().save(str(directory / "tokenizer.json"))
    return holdfast.text.Tokenizer.from_dir(directory)


@pytest.fixture
def byte_level_dir(tmp_path: Path) -> Path:
    """A directory with the byte-level tokenizer and nothing else, for a test to add to."""
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path

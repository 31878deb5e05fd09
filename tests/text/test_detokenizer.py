from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.text import Detokenizer, Tokenizer
from holdfast.text.detokenizer import MAX_HELD


def decode_bytes(token_ids: Sequence[int]) -> str:
    """A vocabulary of the 256 bytes: every way to split a character."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def stream(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


@given(st.text())
def test_text_comes_character_by_character(text: str) -> None:
    pieces = stream(Detokenizer(decode_bytes), text.encode())
    by_character = codecs.getincrementaldecoder("utf-8")()
    if "\ufffd" not in text:  # such a character is held for one token, like the bytes it usually stands for
        assert pieces[:-1] == [by_character.decode(bytes([byte])) for byte in text.encode()]
    assert "".join(pieces) == text


@given(st.binary(max_size=200))
def test_noise_gives_the_text_of_the_whole(noise: bytes) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = stream(detokenizer, noise)
    assert "".join(pieces) == detokenizer.text == decode_bytes(noise)


@given(st.lists(st.sampled_from([0xFF, 0x80, 0xC3, 0xF0, 0x9F, 0x98, ord("a")]), max_size=100))
def test_noise_made_of_beginnings_of_characters(noise: list[int]) -> None:
    assert "".join(stream(Detokenizer(decode_bytes), noise)) == decode_bytes(noise)


def test_endless_noise_is_neither_held_back_nor_decoded_again_and_again() -> None:
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return decode_bytes(token_ids)

    detokenizer = Detokenizer(decode)
    for count in range(1, 1000):
        detokenizer.push(0xFF)
        assert len(detokenizer.text) >= count - MAX_HELD
    assert longest <= 2 * MAX_HELD


@pytest.fixture(scope="module")
def tokenizer(any_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(any_dir)


@given(
    text=st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" theqiI.,")))
)
def test_streamed_text_equals_decoded_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer.detokenizer(), ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any(piece.endswith("\ufffd") for piece in pieces if "\ufffd" not in text)


@given(data=st.data(), skip=st.booleans())
def test_streamed_ids_equal_decoded_ids(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Special ids, and ids beyond the vocabulary, too. Bytes that are no text have their own test."""
    words = [
        token_id
        for token_id in range(tokenizer.vocab_size)
        if "\ufffd" not in tokenizer.decode([token_id], skip_special_tokens=False)
    ]
    ids = data.draw(st.lists(st.sampled_from([*words, tokenizer.vocab_size + 5]), max_size=40))
    pieces = stream(tokenizer.detokenizer(skip_special_tokens=skip), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_streamed_noise_of_a_byte_level_tokenizer(merged_bytes: Tokenizer, data: st.DataObject) -> None:
    """Of no other kind: one that falls back to bytes takes characters back when a wrong byte follows."""
    ids = data.draw(st.lists(st.integers(0, merged_bytes.vocab_size - 1), max_size=60))
    assert "".join(stream(merged_bytes.detokenizer(), ids)) == merged_bytes.decode(ids)

"""Texts to token shards: which conversations are kept, the tokenizer, what is held out.

DIR/tokenizer.json, tokenizer_config.json
DIR/{train,heldout}.bin     uint16 tokens, document after document; the highest bit: not learned
DIR/{train,heldout}.idx     uint32 first token of each document, and the end
DIR/{prompts,heldout-prompts}.{bin,idx}
                            questions alone, for drafters to be trained on the model's own answers
DIR/summary.json            how much of what
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .chat import CHAT_TEMPLATE, END_OF_TEXT, IM_END, SPECIAL_TOKENS, Piece, Turn, pieces, question
from .tasks import ADJECTIVES, NAMES, NOUNS

VOCAB, CONTEXT = 4096, 2048
NOT_LEARNED = 1 << 15
VERSE_PIECE = 5000
"""Characters: about what a row holds."""
CURLY = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-"}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m training prepare", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="holds small_talk/, gsm8k/, shakespeare_full/"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the conversations, for a quick try")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.out, options.share)


def prepare(data: Path, out: Path, share: float = 1.0) -> None:
    random, counts = Random(0), Counter[str]()
    talk = [turn for path in sorted((data / "small_talk").glob("train-*")) for turn in _talk(path, counts)]
    talk = random.sample(talk, int(share * len(talk)))
    sums = list(_problems(data / "gsm8k" / "train.jsonl"))
    verse = _verse(data / "shakespeare_full" / "shakespeare.txt")
    verse_heldout = verse[-len(verse) // 20 :]
    train = [*_conversations(talk, random), *([turn] for turn in sums)]

    tokenizer = train_tokenizer(_sample_of_text(talk, sums, verse, random))
    save_tokenizer(tokenizer, out)
    texts = (pieces(turns, learn_questions=True) for turns in train)
    lines = ([Piece(text + END_OF_TEXT, True)] for text in verse[: -len(verse_heldout)])
    counts["train tokens"] = _write(out / "train", tokenizer, _chain(texts, lines))
    heldout = list(_talk(data / "small_talk" / "heldout.jsonl.xz", Counter()))
    counts["heldout tokens"] = _write(
        out / "heldout", tokenizer, (pieces([turn], learn_questions=True) for turn in heldout)
    )
    for name, turns in (
        ("prompts", random.sample(talk, min(len(talk), 40_000))),
        ("heldout-prompts", heldout),
    ):
        _write(out / name, tokenizer, ([Piece(question(turn.user), True)] for turn in turns))
    counts.update({"conversations": len(train), "problems": len(sums), "verse": len(verse)})
    (out / "summary.json").write_text(json.dumps(counts, indent=2) + "\n")
    print(json.dumps(counts, indent=2))


def _chain(*parts: Iterable[list[Piece]]) -> Iterator[list[Piece]]:
    for part in parts:
        yield from part


def _talk(path: Path, counts: Counter[str]) -> Iterator[Turn]:
    """Answers worth learning: they end, do not repeat themselves, and are not too short for what was asked."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            answer = row["response"].strip()
            if not row["whole"]:  # it was cut where a limit was
                answer = answer[: max(answer.rfind(end) for end in (". ", "! ", "? ", ".\n", '."')) + 1]
            reason = _unfit(row["kind"], answer)
            counts[f"{path.name}: {reason or 'kept'}"] += 1
            if reason is None:
                yield Turn(row["prompt"].strip(), answer)


def _unfit(kind: str, answer: str) -> str | None:
    words = answer.lower().split()
    if len(words) < (25 if kind == "story" else 6):
        return "short"
    if len(words) > 500:
        return "long"
    if answer[-1] not in ".!?\"')":
        return "unfinished"
    if repetition(words) > 0.06:
        return "repetitive"
    if len(words) > 60 and len(set(words)) < 0.4 * len(words):
        return "poor in words"
    if not answer.translate(CURLY).isascii():
        return "foreign"
    return None


def repetition(words: Sequence[str], size: int = 4) -> float:
    """The share of runs of `size` words that were said before."""
    runs = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _problems(path: Path) -> Iterator[Turn]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield Turn(row["question"].strip(), re.sub(r"<<.*?>>", "", row["answer"]).strip())


def _verse(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    texts, text = [], ""
    for line in lines:
        text += line
        if len(text) > VERSE_PIECE:
            texts.append(text.strip())
            text = ""
    return texts


def _conversations(talk: list[Turn], random: Random) -> Iterator[list[Turn]]:
    """One turn mostly, then two, then three."""
    shuffled = random.sample(talk, len(talk))
    while shuffled:
        count = random.choices((1, 2, 3), (6, 2, 1))[0]
        yield shuffled[-count:]
        del shuffled[-count:]


def _sample_of_text(talk: list[Turn], sums: list[Turn], verse: list[str], random: Random) -> Iterator[str]:
    for turn in [*random.sample(talk, len(talk) // 4), *random.sample(sums, len(sums) // 2)]:
        yield turn.user
        yield turn.assistant
    yield from verse[::8]
    for _ in range(2000):  # words of the template, and those that stand at the start of a line in the tasks
        yield "user\nassistant\n"
        yield "\n".join(random.sample([*NAMES, *NOUNS, *ADJECTIVES], 20))


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE; each digit is a token, so that sums can be learnt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, document: list[Piece]) -> np.ndarray:
    """uint16, with the highest bit where nothing is to be learnt."""
    parts = []
    for piece in document:
        ids = np.array(tokenizer.encode(piece.text, add_special_tokens=False).ids, np.uint16)
        parts.append(ids if piece.learned else ids | NOT_LEARNED)
    return np.concatenate(parts)


def _write(path: Path, tokenizer: Tokenizer, documents: Iterable[list[Piece]]) -> int:
    ends = [0]
    with path.with_suffix(".bin").open("wb") as file:
        for document in documents:
            tokens = encode(tokenizer, document)
            file.write(tokens.tobytes())
            ends.append(ends[-1] + len(tokens))
    path.with_suffix(".idx").write_bytes(np.array(ends, np.uint32).tobytes())
    return ends[-1]

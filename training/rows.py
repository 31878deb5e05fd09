"""Rows of tokens to train on: documents one after the other, cut where the row is full.

A row starts with a document, in an empty state at position 0, as a request does. The documents behind it see those
before them: nothing is reset between them, and END_OF_TEXT says that what follows is something new.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .chat import pieces
from .prepare import NOT_LEARNED, encode
from .tasks import TASKS, endless


class Batch(NamedTuple):
    tokens: Tensor
    """[B, T]"""
    targets: Tensor
    """[B, T] the token after each, or -100 where nothing is learnt"""


def batch(rows: Tensor) -> Batch:
    """rows [B, T + 1] as they are stored"""
    tokens = rows & ~NOT_LEARNED
    targets = tokens.masked_fill(rows >= NOT_LEARNED, -100)
    return Batch(tokens[:, :-1], targets[:, 1:])


class Documents:
    def __init__(self, path: Path) -> None:
        self.tokens = np.fromfile(path.with_suffix(".bin"), np.uint16)
        self.ends = np.fromfile(path.with_suffix(".idx"), np.uint32)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, number: int) -> np.ndarray:
        return self.tokens[self.ends[number] : self.ends[number + 1]]


class Rows(IterableDataset[Tensor]):
    """Endless batches [batch, length + 1]: a share of tasks, made as they are needed, among the stored texts."""

    def __init__(self, data: Path, *, batch: int, length: int, tasks: float, seed: int) -> None:
        self.data, self.batch, self.length, self.tasks, self.seed = data, batch, length, tasks, seed
        self.texts = Documents(data / "train")

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        random = Random(f"{self.seed} {worker.id if worker else 0}")
        tokenizer = Tokenizer.from_file(str(self.data / "tokenizer.json"))
        texts = _rows(_shuffled(self.texts, random), self.length)
        tasks = _rows(_encoded_tasks(tokenizer, random, self.length), self.length)
        while True:
            sources = [tasks if random.random() < self.tasks else texts for _ in range(self.batch)]
            yield torch.from_numpy(np.stack([next(source) for source in sources]).astype(np.int32))


def loader(rows: Rows, workers: int) -> Iterator[Batch]:
    cuda = torch.cuda.is_available()
    options = {"prefetch_factor": 8} if workers else {}
    for found in DataLoader(rows, batch_size=None, num_workers=workers, pin_memory=cuda, **options):
        yield batch(found.to("cuda" if cuda else "cpu", non_blocking=True).long())


def heldout(data: Path, length: int, most: int) -> Tensor:
    """[rows, length + 1], always the same"""
    documents = Documents(data / "heldout")
    return _stacked(_rows((documents[i] for i in range(len(documents))), length), most)


def heldout_tasks(data: Path, name: str, tokens: int, length: int, most: int) -> Tensor:
    """[rows, length + 1], each one conversation about `tokens` long, of a seed that is never trained on"""
    random = Random(f"heldout {name} {tokens}")
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    made = (
        encode(tokenizer, pieces(TASKS[name](random, tokens), learn_questions=False))
        for _ in range(10 * most)
    )
    filler = np.full(length, NOT_LEARNED, np.uint16)
    fitting = (np.concatenate((it, filler))[: length + 1] for it in made if len(it) <= length + 1)
    return _stacked(fitting, most)


def _stacked(rows: Iterator[np.ndarray], most: int) -> Tensor:
    return torch.from_numpy(
        np.stack([row for row, _ in zip(rows, range(most), strict=False)]).astype(np.int64)
    )


def _rows(documents: Iterator[np.ndarray], length: int) -> Iterator[np.ndarray]:
    row: list[np.ndarray] = []
    missing = length + 1
    for document in documents:
        row.append(document[:missing])
        missing -= len(row[-1])
        if not missing:
            yield np.concatenate(row)
            row, missing = [], length + 1


def _shuffled(documents: Documents, random: Random) -> Iterator[np.ndarray]:
    order = list(range(len(documents)))
    while True:
        random.shuffle(order)
        yield from (documents[i] for i in order)


def _encoded_tasks(tokenizer: Tokenizer, random: Random, length: int) -> Iterator[np.ndarray]:
    """Whole ones that fit a row: a question whose list is cut away teaches nothing."""
    for turns in endless(random, longest=length):
        document = encode(tokenizer, pieces(turns, learn_questions=False))
        if len(document) <= length:
            yield document

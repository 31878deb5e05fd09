"""What a drafter would draft if it kept nothing: the whole text as one run, in pools of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.config import Limits
from holdfast.ids import Page, Row, Slot
from holdfast.layers.batch import Batch
from holdfast.memory.kv_pool import KVPool
from holdfast.memory.state_pool import StatePool
from holdfast.plan import PageMap, RowStart
from holdfast.request import SamplingParams
from holdfast.spec.ensemble import Ensemble

LIMITS = Limits(
    max_num_seqs=1,
    max_num_batched_tokens=256,
    max_model_len=256,
    vocab_size=0,
    page_size=8,
    num_pages=33,
    num_slots=1,
    fold_every=8,
    max_window=8,
)


def fresh_batch(ensemble: Ensemble, tokens: list[int]) -> Batch:
    """A row that absorbs all of them at once, from nothing."""
    device = torch.device("cpu")
    state, kv = (
        StatePool(ensemble.state_specs(), LIMITS, device),
        KVPool(ensemble.kv_specs(), LIMITS, device),
    )
    state.start((RowStart(Row(1), 1, (), Slot(1), Slot(0), 0, SamplingParams(), 0),))
    kv.map(tuple(PageMap(Row(1), i, Page(i + 1)) for i in range(LIMITS.pages_per_row)), turn=0)
    window = len(tokens) <= LIMITS.max_window
    step = state.begin(
        rows=torch.tensor([1]),
        counts=torch.tensor([len(tokens)]),
        offsets=torch.tensor([0, len(tokens)]),
        num_windows=int(window),
        longest_window=len(tokens) if window else 0,
    )
    return Batch(torch.tensor(tokens), torch.arange(len(tokens)), step, state, kv)


@torch.inference_mode()
def uncached_drafts(model: Any, drafter: Any, text: list[int], depth: int) -> list[int]:
    """Greedy: hidden vectors of the model for the text, and of the head for what it guessed itself."""
    hidden = model(fresh_batch(Ensemble(model), text[:-1]))
    vectors = [torch.zeros_like(hidden[:1]), hidden]
    tokens = list(text)
    for _ in range(depth):
        previous: Tensor = torch.cat(vectors)
        batch = fresh_batch(Ensemble(model, drafter), tokens)
        found = drafter.head(model.embeddings(batch.tokens), previous, batch)
        tokens.append(int(model.logits(found[-1:]).argmax()))
        vectors.append(found[-1:])
    return tokens[len(text) :]

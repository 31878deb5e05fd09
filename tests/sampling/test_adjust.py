"""Bias, penalties and what may not be said yet: as the definitions have them, as transformers has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast import SamplingParams
from holdfast.config import Limits
from holdfast.executor.tables import RowTables
from holdfast.ids import Row, Slot
from holdfast.ops.sampling.reference import adjust
from holdfast.plan import RowStart

from . import oracle

VOCAB = 23
LIMITS = Limits(
    max_num_seqs=6,
    max_num_batched_tokens=64,
    max_model_len=40,
    vocab_size=VOCAB,
    page_size=16,
    num_pages=8,
    num_slots=4,
    fold_every=16,
    max_window=1,
)


def start(
    row: int, prompt: list[int], params: SamplingParams, output: list[int], stops: list[int]
) -> RowStart:
    return RowStart(
        row=Row(row),
        generation=1,
        tokens=(*prompt, *output),
        own_slot=Slot(row),
        read_slot=Slot(0),
        base=0,
        params=params,
        seed=0,
        prompt_len=len(prompt),
        stop_ids=tuple(stops),
    )


def tables_with_old_tenants() -> RowTables:
    """As after long use: tokens and biases of requests that have left."""
    tables = RowTables(LIMITS, torch.device("cpu"))
    tables.tokens.random_(VOCAB, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(min_tokens=9, max_tokens=9, logit_bias=dict.fromkeys(range(VOCAB), 50.0))
    tables.start(tuple(start(row, [1, 2], params, [3], [4, 5]) for row in range(1, 7)))
    return tables


def adjusted(tables: RowTables, logits: Tensor, rows: list[int], position: list[int]) -> Tensor:
    entries = max(tables.num_entries(Row(row)) for row in rows)
    places = torch.tensor(position)
    return adjust(
        logits, tables.adjustments(torch.tensor(rows), places, entries=entries, history=max(position))
    )


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=18)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(30),
    min_tokens=st.integers(0, 20),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=6),
)
ROWS = st.lists(st.tuples(TOKENS.filter(len), TOKENS, PARAMS, TOKENS), min_size=1, max_size=6)


@settings(max_examples=60)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_any_rows_together_equal_the_definitions(
    rows: list[tuple[list[int], list[int], SamplingParams, list[int]]], seed: int
) -> None:
    tables = tables_with_old_tenants()
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    tables.start(tuple(start(i, p, params, out, stops) for i, (p, out, params, stops) in enumerate(rows, 1)))
    got = adjusted(
        tables, logits, list(range(1, len(rows) + 1)), [len(prompt) + len(out) for prompt, out, _, _ in rows]
    )
    wanted = [
        oracle.adjusted(row.numpy(), params, prompt, out, stops)
        for row, (prompt, out, params, stops) in zip(logits, rows, strict=True)
    ]
    np.testing.assert_allclose(got.numpy(), np.stack(wanted), rtol=1e-5, atol=1e-5)


def test_a_row_gets_the_same_bits_in_company() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, VOCAB, generator=generator) * 4
    plain, biased = SamplingParams(), SamplingParams(logit_bias={3: 1.1})
    penalised = SamplingParams(repetition_penalty=1.3, presence_penalty=0.3)
    tables = tables_with_old_tenants()
    tables.start(
        tuple(start(row, [1, 3, 3, 5], p, [7, 7], []) for row, p in enumerate((plain, biased, penalised), 1))
    )
    together = adjusted(tables, logits, [1, 2, 3], [6, 6, 6])
    assert torch.equal(together[0], logits[0])
    for row in (1, 2, 3):
        assert torch.equal(adjusted(tables, logits[row - 1 : row], [row], [6]), together[row - 1 : row])


@pytest.mark.parametrize("penalty", [1.5, 0.6])
def test_repetition_is_transformers_repetition(penalty: float) -> None:
    generator = torch.Generator().manual_seed(4)
    logits, tokens = torch.randn(1, VOCAB, generator=generator) * 4, [3, 3, 9, 1, 9, 20]
    tables = tables_with_old_tenants()
    tables.start((start(1, tokens[:4], SamplingParams(repetition_penalty=penalty), tokens[4:], []),))
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    wanted = processor(torch.tensor([tokens]), logits)
    assert torch.equal(adjusted(tables, logits, [1], [6]), wanted)


def test_bias_is_transformers_bias() -> None:
    logits, bias = torch.randn(1, VOCAB), {0: -7.5, 4: 2.25, 22: 100.0}
    tables = tables_with_old_tenants()
    tables.start((start(1, [1], SamplingParams(logit_bias=bias), [], []),))
    processor = transformers.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    assert torch.equal(adjusted(tables, logits, [1], [1]), processor(torch.tensor([[1]]), logits))


@pytest.mark.parametrize("said", range(6))
def test_min_tokens_is_transformers_min_new_tokens(said: int) -> None:
    logits, stops, tokens = torch.randn(1, VOCAB), [0, 5, 22], [1, 2, 3, *range(said)]
    tables = tables_with_old_tenants()
    params = SamplingParams(min_tokens=3)
    tables.start((start(1, tokens[:3], params, tokens[3:], stops),))
    processor = transformers.MinNewTokensLengthLogitsProcessor(3, 3, stops)
    got = adjusted(tables, logits, [1], [len(tokens)])
    assert torch.equal(got, processor(torch.tensor([tokens]), logits))
    assert got.isinf().any() == (said < 3)


def test_an_end_of_text_token_that_the_model_does_not_have_is_no_harm() -> None:
    logits = torch.randn(1, VOCAB)
    tables = tables_with_old_tenants()
    tables.start((start(1, [1], SamplingParams(min_tokens=3), [], [4, VOCAB, VOCAB + 1000]),))
    forbidden = adjusted(tables, logits, [1], [1]).isinf()
    assert forbidden.nonzero().tolist() == [[0, 4]]


def test_the_tokens_of_a_window_may_stand_in_rows_of_their_own() -> None:
    """As verification will have it: one row, several positions, each knowing what is before it."""
    logits = torch.randn(3, VOCAB)
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, min_tokens=2)
    tables = tables_with_old_tenants()
    tables.start((start(1, [1, 2], params, [7, 7, 8], [0]),))
    got = adjusted(tables, logits, [1, 1, 1], [3, 4, 5])
    for window, output in enumerate(([7], [7, 7], [7, 7, 8])):
        wanted = oracle.adjusted(logits[window].numpy(), params, [1, 2], output, [0])
        np.testing.assert_allclose(got[window].numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_half_precision_is_adjusted_in_float32() -> None:
    logits = torch.full((1, VOCAB), 100.0, dtype=torch.bfloat16)
    tables = tables_with_old_tenants()
    tables.start((start(1, [1], SamplingParams(logit_bias={3: 0.01}), [], []),))
    got = adjusted(tables, logits, [1], [1])
    assert got.dtype == torch.float32
    assert got.argmax() == 3


def test_replacing_params_forgets_what_was_worked_out() -> None:
    params = SamplingParams(temperature=1.0, top_k=3)
    assert params.truncates and not params.adjusts
    assert not replace(params, top_k=0).truncates and replace(params, min_tokens=1).adjusts

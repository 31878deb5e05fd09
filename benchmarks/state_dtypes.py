"""What narrow checkpoints cost in accuracy, on the CPU: the rule over 4,096 tokens, and a model's distributions.

    python benchmarks/state_dtypes.py [--tokens 4096] [--texts 4] [--json FILE]

  rewritten  the state is rounded to its dtype after every token, as read-modify-write does
  journal    it is rounded at the lines of the journal, once in 16 tokens

The rule: four heads of 128 x 128 whose memories reach 10, 100, 1,000 and 10,000 tokens back; the error of the outputs
of the last 256 tokens, relative, against float64. The model: holdfast-small in float32, over conversations laid end
to end, in exact mode, where every token goes through the journal; with a line at every token that is rewriting. Its
perplexity; and how far the distribution of every next token is from the one with a state in float32, in millionths of
a nat (Kullback-Leibler, of the 20 likeliest tokens and all others as one), which averages out less noise.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL
from holdfast.config import STATE_DTYPES
from holdfast.ops.gated_delta.reference import GatedDelta, recurrent
from holdfast.ops.rounding import rounded
from holdfast.params import MAX_LOGPROBS
from holdfast.request import TokenLogprob

HELDOUT = Path(__file__).parent / "data" / "small_talk_heldout.jsonl"
HEADS, WIDTH, LINE, LAST = 4, 128, 16, 256
CONTEXT = 2000
"""Tokens of a text that the model reads."""


# --- the rule ----------------------------------------------------------------------------------------------


def draw(tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "q": F.normalize(normal(tokens, HEADS, WIDTH), dim=-1),
        "k": F.normalize(normal(tokens, HEADS, WIDTH), dim=-1),
        "v": normal(tokens, HEADS, WIDTH),
        "log_g": -2 * 10.0 ** -torch.arange(1, HEADS + 1) * torch.rand(tokens, HEADS, generator=generator),
        "beta": torch.rand(tokens, HEADS, generator=generator),
    }


def through_the_journal(inputs: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    rule, state, outputs = GatedDelta(), torch.zeros(1, HEADS, WIDTH, WIDTH), []
    sees = torch.ones(LINE, LINE, dtype=torch.bool).tril()
    for first in range(0, len(inputs["v"]), LINE):
        window = {name: x[None, first : first + LINE] for name, x in inputs.items()}
        none = {name: x[:, :0] for name, x in (window | {"u": window["v"]}).items()}
        out, entries = rule.attend(state, none, window, sees)
        outputs.append(out[0])
        state = rounded(rule.fold(state, entries), dtype)
    return torch.cat(outputs)


def rewritten(inputs: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    state, outputs = torch.zeros(HEADS, WIDTH, WIDTH), []
    for t in range(len(inputs["v"])):
        out, state = recurrent(state, {name: x[t : t + 1] for name, x in inputs.items()})
        outputs.append(out)
        state = rounded(state, dtype)
    return torch.cat(outputs)


def errors_of_the_rule(tokens: int) -> dict[str, dict[str, float]]:
    inputs = draw(tokens)
    zero = torch.zeros(HEADS, WIDTH, WIDTH, dtype=torch.float64)
    wanted = recurrent(zero, inputs)[0][-LAST:]

    def off(found: Tensor) -> float:
        return float((found[-LAST:].double() - wanted).norm() / wanted.norm())

    return {
        name: {
            "rewritten": off(rewritten(inputs, getattr(torch, name))),
            "journal": off(through_the_journal(inputs, getattr(torch, name))),
        }
        for name in STATE_DTYPES
    }


# --- the model ---------------------------------------------------------------------------------------------


def texts(llm: LLM, count: int) -> list[list[int]]:
    """Conversations laid end to end, each of CONTEXT tokens."""
    assert llm.tokenizer is not None
    end = min(llm.tokenizer.eos_token_ids - {0})
    tokens: list[int] = []
    for line in HELDOUT.read_text(encoding="utf-8").splitlines():
        it = json.loads(line)
        tokens += llm.tokenizer.apply_chat([{"role": "user", "content": it["prompt"]}])
        tokens += [*llm.tokenizer.encode(it["response"], add_special_tokens=False), end]
    cut = [tokens[i : i + CONTEXT] for i in range(0, len(tokens) - CONTEXT, CONTEXT)]
    return cut[:count]


def reading(count: int, dtype: str, fold_every: int) -> list[TokenLogprob]:
    """What the model expected in the place of every token, but the first ones."""
    llm = LLM(
        SMALL, exact=True, dtype="float32", state_dtype=dtype, fold_every=fold_every, max_num_seqs=count
    )
    outputs = llm.generate(texts(llm, count), SamplingParams(max_tokens=1, prompt_logprobs=MAX_LOGPROBS))
    return [it for output in outputs for it in (output.prompt_logprobs or ())[1:] if it is not None]


def perplexity(read: Sequence[TokenLogprob]) -> float:
    return math.exp(-sum(it.logprob for it in read) / len(read))


def divergence(wanted: TokenLogprob, found: TokenLogprob) -> float:
    """Of the likeliest tokens that both name, and of all others as one."""
    pairs = [(dict(wanted.top)[token], q) for token, q in found.top if token in dict(wanted.top)]
    rest = [1 - math.fsum(math.exp(side) for side in sides) for sides in zip(*pairs, strict=True)]
    others = rest[0] * math.log(rest[0] / rest[1]) if min(rest) > 0 else 0.0
    return math.fsum(math.exp(p) * (p - q) for p, q in pairs) + others


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="for the rule")
    parser.add_argument("--texts", type=int, default=4, help="for the model; 0: without it")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures: dict[str, Any] = {"rule": errors_of_the_rule(options.tokens), "perplexity": {}, "apart": {}}
    print(f"{'state':14} {'rewritten':>10} {'journal':>10}   error after {options.tokens} tokens")
    for name, row in figures["rule"].items():
        print(f"{name:14} {row['rewritten']:10.1e} {row['journal']:10.1e}", flush=True)
    if options.texts:
        wanted = reading(options.texts, "float32", LINE)
        print(
            f"{'state':14} {'rewritten':>10} {'journal':>10}   perplexity {'rewritten':>10} {'journal':>10}   apart"
        )
    for name in STATE_DTYPES if options.texts else ():
        read = {
            way: reading(options.texts, name, every) for way, every in (("rewritten", 1), ("journal", LINE))
        }
        row = {way: perplexity(tokens) for way, tokens in read.items()}
        apart = {
            way: 1e6 * sum(map(divergence, wanted, tokens)) / len(tokens) for way, tokens in read.items()
        }
        figures["perplexity"][name], figures["apart"][name] = row, apart
        print(
            f"{name:14} {row['rewritten']:10.5f} {row['journal']:10.5f}              {apart['rewritten']:10.2f} "
            f"{apart['journal']:10.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

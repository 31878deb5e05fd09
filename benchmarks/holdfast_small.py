"""holdfast-small in numbers: perplexity on held-out conversations, and how much its answers repeat themselves.

    python benchmarks/holdfast_small.py --json out.json

What it remembers, `holdfast eval --data recall` tells.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL

HELDOUT = Path(__file__).parent / "data" / "small_talk_heldout.jsonl"
RUN = 4
"""Words."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=SMALL)
    parser.add_argument("--temperature", type=float, help="(default: as the model advises)")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    held_out = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    llm = LLM(options.model, max_num_seqs=32)
    advised = llm.default_params()
    params = SamplingParams(
        max_tokens=256,
        seed=1,
        temperature=advised.temperature if options.temperature is None else options.temperature,
        top_p=advised.top_p if options.top_p is None else options.top_p,
    )
    asked = [[{"role": "user", "content": it["prompt"]}] for it in held_out]
    answers = [output.text.lower().split() for output in llm.chat(asked, params)]
    repeated = [repetition(words) for words in answers]
    numbers = {
        "conversations": len(held_out),
        "perplexity_of_answers": perplexity(llm, held_out),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "words_of_an_answer": sum(map(len, answers)) / len(answers),
        "repetition": sum(repeated) / len(repeated),
        "answers_that_repeat_more_than_5_percent": sum(share > 0.05 for share in repeated),
    }
    print(json.dumps(numbers, indent=2))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


def perplexity(llm: LLM, held_out: Sequence[dict[str, str]]) -> float:
    """Of the answers' tokens, their end included, each given the question and what was said before it."""
    assert llm.tokenizer is not None
    whole, starts = [], []
    for it in held_out:
        question = llm.tokenizer.apply_chat([{"role": "user", "content": it["prompt"]}])
        answer = llm.tokenizer.encode(it["response"], add_special_tokens=False)
        whole.append([*question, *answer, min(llm.tokenizer.eos_token_ids - {0})])
        starts.append(len(question))
    outputs = llm.generate(whole, SamplingParams(max_tokens=1, prompt_logprobs=0))
    found = [
        it.logprob
        for output, start in zip(outputs, starts, strict=True)
        for it in (output.prompt_logprobs or ())[start:]
    ]
    return math.exp(-sum(found) / len(found))


def repetition(words: Sequence[str]) -> float:
    """The share of runs of RUN words that the answer had already."""
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


if __name__ == "__main__":
    main()

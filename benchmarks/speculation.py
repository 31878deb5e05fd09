"""What drafts bring on holdfast-small: every drafter that comes with it, at fixed depths and adaptive, beside none.

    python benchmarks/speculation.py --drafters eagle3 dflash mtp --prompts 8 --learning 16  # an H200: 11 minutes
    python benchmarks/speculation.py --drafters eagle3 dflash mtp --out 96 --learning 10  # two cores: 20

Greedy, in float32, prompts that the model was not trained on, answers of equal length (the model goes on after the
end of an answer as it does in its training text). A rate is tokens a second while all requests of a batch run: from
the step by which each has a token to the first that ends an answer. Medians over --reps; in each all kinds answer one
batch of prompts after the other, in turn, so that a slow moment is slow for all of them, and another begins every
time; on a GPU after a repetition that is not counted. Adaptive depth is compared with whichever of none and the fixed
depths has the better median, in --finals further repetitions of these alone, and in turn: in each by the two rates
there, and of those the median. Few repetitions do not tell 1%: hosts are slow for a tenth of a second now and then.
One engine serves all depths of a drafter; none is an engine without one. A server learns once what steps of each kind
take; here adaptive depth does so in --learning repetitions before the others.

Engines that are made alike differ by where their memory lies: on an H200 by 2% and more in steps of 0.15 ms. So there
are --engines of each kind, and every repetition goes to the next ones.

Every answer is compared with that of no drafts. Where one differs, the two tokens are asked for again: the rule is
that their log-probabilities are then closer than 1e-4.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL, builtin_models
from holdfast.engine import Engine
from holdfast.request import Request, RequestOutput
from holdfast.scheduler.depth import Depth

HELDOUT = Path(__file__).parent / "data" / "small_talk_heldout.jsonl"
DEPTHS = (1, 3, 5, 7)
DRAFTERS: dict[str, dict[str, Any]] = {
    "mtp": {"method": "mtp"},
    "ngram": {"method": "ngram"},
    "dflash": {"method": "dflash", "model": str(builtin_models()["holdfast-small-dflash"])},
    "eagle3": {"method": "eagle", "model": str(builtin_models()["holdfast-small-eagle3"])},
    "standalone": {"method": "standalone", "model": str(builtin_models()["holdfast-tiny-lfm2"])},
}
SCORED = SamplingParams(max_tokens=1, prompt_logprobs=0)
BEGUN = time.perf_counter()


@dataclass(frozen=True)
class Traffic:
    """Batches of prompts, each of which is answered at a time with `out` tokens; all of them `reps` times, and
    `finals` times by those that are compared."""

    batches: list[list[list[int]]]
    out: int
    reps: int
    finals: int
    learning: int
    warms_up: bool
    """In a round that is not counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    there = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if there else "cpu")
    parser.add_argument("--batches", default="1,16,64" if there else "1,8", type=_numbers)
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS), choices=DRAFTERS)
    parser.add_argument("--out", type=int, default=384 if there else 48, help="tokens of every answer")
    parser.add_argument("--prompts", type=int, default=16 if there else 4, help="of a repetition, at least")
    parser.add_argument("--rounds", type=int, default=3, help="batches of a repetition, at least")
    parser.add_argument("--reps", type=int, default=3, help="repetitions of all depths")
    parser.add_argument(
        "--finals", type=int, default=18 if there else 10, help="of none, the best and adaptive depth alone"
    )
    parser.add_argument("--engines", type=int, default=3 if there else 1, help="of each kind, used in turn")
    parser.add_argument(
        "--learning", type=int, default=4 if there else 2, help="repetitions before, of adaptive depth alone"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory", default="6GiB")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin with no drafter after so many")
    parser.add_argument("--json", type=Path, help="write the numbers here as well, as they come")
    args = parser.parse_args()
    plain = [_engine(args) for _ in range(args.engines)]
    asked = [
        Traffic(
            _prompts(plain[0], batch, max(args.prompts, args.rounds * batch)),
            args.out,
            args.reps,
            args.finals,
            args.learning,
            there,
        )
        for batch in args.batches
    ]
    asked_for = {name: value for name, value in vars(args).items() if name != "json"}
    found: dict[str, Any] = {**asked_for, "device": _device(args.device), "rows": []}
    _progress(f"engines without drafts: {args.engines}; {found['device']}")
    for name in args.drafters:
        if time.perf_counter() - BEGUN > args.seconds:
            _progress(f"{name} and what follows it: no time left")
            break
        pairs = [Pair(without, _engine(args, DRAFTERS[name])) for without in plain]
        _progress(f"engines with {name}: {args.engines}, of {len(pairs[0].llm._engine.runner.graphs)} graphs")
        for traffic in asked:
            row = {"drafter": name, "batch": len(traffic.batches[0]), **_measure(pairs, traffic)}
            found["rows"].append(row)
            _progress(_told(row))
            if args.json:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                args.json.write_text(json.dumps(found, indent=1, default=str) + "\n")
        del pairs
        gc.collect()
    if found["rows"]:
        worst = min(row["adaptive_to_better"] for row in found["rows"])
        print(f"adaptive is at least {worst:.1%} of the better of none and the best fixed depth")


def _engine(args: argparse.Namespace, drafter: dict[str, Any] | None = None) -> LLM:
    adaptive = {"candidate_steps": [0, *DEPTHS]}
    drafts = drafter and {**drafter, "num_speculative_tokens": 3, "adaptive": adaptive}
    llm = LLM(
        SMALL,
        device=args.device,
        dtype=args.dtype,
        max_num_seqs=max(args.batches),
        max_model_len=args.out + 128,
        enable_prefix_caching=False,
        memory=args.memory,
        speculative_config=drafts,
    )
    gc.collect()
    gc.freeze()  # as the server does
    return llm


def _prompts(llm: LLM, batch: int, fewest: int) -> list[list[list[int]]]:
    """In batches, and several of them: of few texts chance has its say in which depth is the best."""
    assert llm.tokenizer is not None
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    chats = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines[:fewest]]
    if not 0 < batch <= len(chats) == fewest:
        raise SystemExit(f"{fewest} prompts in batches of {batch}: there are {len(lines)}")
    prompts = [llm.tokenizer.apply_chat(chat) for chat in chats]
    return [prompts[first : first + batch] for first in range(0, len(prompts) - batch + 1, batch)]


class Pair:
    """Two engines, one without drafts and one with them; and by what depth each kind of run is made."""

    def __init__(self, plain: LLM, llm: LLM) -> None:
        self.plain, self.llm = plain, llm
        self.adaptive = llm._engine.scheduler._depth
        fixed = {str(depth): Depth(depth) for depth in (0, *DEPTHS)}
        self.depths: dict[str, Depth | None] = {"none": None, **fixed, "adaptive": self.adaptive}

    def run(self, kind: str, prompts: list[list[int]], out: int) -> tuple[Lap, list[RequestOutput]]:
        """A batch."""
        depth, llm = self.depths[kind], self.llm
        if depth is None:
            llm = self.plain
        else:
            llm._engine.scheduler._depth = depth
        with _while_all_run(llm._engine, len(prompts)) as lap:
            outputs = llm.generate(prompts, SamplingParams(max_tokens=out, ignore_eos=True), progress=False)
        return lap, outputs

    def prepare(self, traffic: Traffic) -> None:
        for _ in range(traffic.learning):
            for prompts in traffic.batches:
                self.run("adaptive", prompts, traffic.out)
        if traffic.warms_up:
            self.repeat(traffic, list(self.depths), 0)

    def repeat(
        self, traffic: Traffic, kinds: Sequence[str], first: int
    ) -> tuple[dict[str, Lap], dict[str, list[RequestOutput]]]:
        """Each of these kinds, of which this one begins, and with the next batch the next."""
        laps = {kind: Lap() for kind in kinds}
        answers: dict[str, list[RequestOutput]] = {kind: [] for kind in kinds}
        for number, prompts in enumerate(traffic.batches, first):
            place = number % len(kinds)
            for kind in [*kinds[place:], *kinds[:place]]:
                lap, outputs = self.run(kind, prompts, traffic.out)
                laps[kind].seconds += lap.seconds
                laps[kind].tokens += lap.tokens
                answers[kind] += outputs
        return laps, answers


def _measure(pairs: Sequence[Pair], traffic: Traffic) -> dict[str, Any]:
    """Rates of every kind, and what became of the answers."""
    for pair in pairs:
        pair.prepare(traffic)
    before = [_steps(pair.adaptive) for pair in pairs]
    found = Found()
    for rep in range(traffic.reps):
        found.add(*pairs[rep % len(pairs)].repeat(traffic, list(pairs[0].depths), rep))
    median = {kind: statistics.median(rates) for kind, rates in found.rates.items()}
    best = max((str(depth) for depth in DEPTHS), key=median.__getitem__)
    finals = Found()
    for rep in range(traffic.finals):
        finals.add(*pairs[rep % len(pairs)].repeat(traffic, ("none", best, "adaptive"), rep))
    better = max(("none", best), key=lambda kind: statistics.median(finals.rates[kind]))
    parts = finals.parts("adaptive", better)
    zero = found.parts("0", "none")
    different = [*found.different(), *finals.different()]
    prompts = [prompt for batch in traffic.batches for prompt in batch]
    gaps = [
        _gap(pairs[0].plain, prompts[place % len(prompts)], right, answer)
        for place, right, answer in different
    ]
    return {
        "tokens_per_second": median,
        "range": {kind: (min(rates), max(rates)) for kind, rates in found.rates.items()},
        "accept_length": found.lengths,
        "best_fixed": best,
        "better": better,
        "finals": {kind: statistics.median(rates) for kind, rates in finals.rates.items()},
        "finals_range": {kind: (min(rates), max(rates)) for kind, rates in finals.rates.items()},
        "adaptive_to_better": statistics.median(parts),
        "adaptive_to_better_range": (min(parts), max(parts)),
        "zero_to_none": statistics.median(zero),
        "adaptive_steps": dict(_made(pairs, before)),
        "adaptive_why": [pair.adaptive.why() for pair in pairs],
        "answers": found.answered + finals.answered,
        "different": len(different),
        "widest_gap": max(gaps, default=0.0),
    }


class Found:
    """By kind: rates of every repetition, its answers, and how many tokens a window gave."""

    def __init__(self) -> None:
        self.rates = defaultdict[str, list[float]](list)
        self.answers = defaultdict[str, list[tuple[int, ...]]](list)
        self.lengths: dict[str, float] = {}

    def add(self, laps: dict[str, Lap], answers: dict[str, list[RequestOutput]]) -> None:
        for kind, lap in laps.items():
            self.rates[kind].append(lap.tokens / lap.seconds)
            self.answers[kind] += [tuple(output.token_ids) for output in answers[kind]]
            self.lengths[kind] = _accept_length(answers[kind])

    def parts(self, one: str, of: str) -> list[float]:
        """Of each repetition, one's rate of the other's."""
        return [mine / theirs for mine, theirs in zip(self.rates[one], self.rates[of], strict=True)]

    @property
    def answered(self) -> int:
        return sum(map(len, self.answers.values()))

    def different(self) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Which answers are not those of none: their place, and both."""
        for answers in self.answers.values():
            for place, (right, answer) in enumerate(zip(self.answers["none"], answers, strict=True)):
                if answer != right:
                    yield place, right, answer


def _made(pairs: Sequence[Pair], before: Sequence[dict[int, int]]) -> Counter[int]:
    """Steps by depth, of the runs that count."""
    made = Counter[int]()
    for pair, earlier in zip(pairs, before, strict=True):
        made.update(_steps(pair.adaptive))
        made.subtract(earlier)
    return made


@dataclass
class Lap:
    seconds: float = 0.0
    tokens: int = 0


@contextmanager
def _while_all_run(engine: Engine, requests: int) -> Iterator[Lap]:
    """From the step by which all have a token to the first that ends an answer."""
    step, lap, seen = engine.step, Lap(), dict[str, Request]()
    begun: float | None = None

    def made() -> int:
        return sum(len(request.tokens) for request in seen.values())

    def watched() -> list[Request]:
        nonlocal begun
        advanced = step()
        if lap.seconds:
            return advanced
        if begun is None:
            seen.update((request.id, request) for request in advanced)
            if len(seen) == requests:
                begun, lap.tokens = time.perf_counter(), -made()
        elif any(request.finish_reason for request in advanced):
            lap.seconds, lap.tokens = time.perf_counter() - begun, lap.tokens + made()
        return advanced

    engine.step = watched  # type: ignore[method-assign]
    try:
        yield lap
    finally:
        engine.step = step  # type: ignore[method-assign]


def _accept_length(outputs: Sequence[RequestOutput]) -> float:
    """Tokens that a window with drafts gave."""
    windows = sum(output.metrics.speculation.windows for output in outputs)
    return 1 + sum(output.metrics.speculation.accepted for output in outputs) / max(1, windows)


def _steps(depth: Depth) -> dict[int, int]:
    return {drafts: sum(reasons.values()) for drafts, reasons in depth.steps.items()}


def _gap(plain: LLM, prompt: list[int], one: Sequence[int], other: Sequence[int]) -> float:
    """Between the log-probabilities of the first tokens that differ."""
    place = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    text = [*prompt, *one[:place]]
    scored = plain.generate([[*text, token] for token in (one[place], other[place])], SCORED, progress=False)
    said = [it.logprob for output in scored if (it := (output.prompt_logprobs or (None,))[-1])]
    return abs(said[0] - said[1])


def _told(row: dict[str, Any]) -> str:
    rates = "  ".join(f"{kind} {rate:,.0f}" for kind, rate in row["tokens_per_second"].items())
    best, (least, most) = row["best_fixed"], row["adaptive_to_better_range"]
    return (
        f"{row['drafter']} batch {row['batch']}: {rates}; adaptive is {row['adaptive_to_better']:.1%} "
        f"({least:.1%} to {most:.1%}) of {row['better']}, {row['adaptive_steps']}; "
        f"0 is {row['zero_to_none']:.1%} of none; "
        f"accept length {row['accept_length'][best]:.2f} at {best}; "
        f"{row['different']} of {row['answers']} answers differ, gap {row['widest_gap']:.1e}"
    )


def _progress(line: str) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f} s] {line}", flush=True)


def _device(name: str) -> str:
    return (
        torch.cuda.get_device_name() if name.startswith("cuda") else f"{torch.get_num_threads()} CPU threads"
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()

"""How many prompt tokens are computed again: the policy of `cache/policy.py` beside the usual one.

    python benchmarks/prefix_reuse.py                                # conversations that branch
    python benchmarks/prefix_reuse.py --mooncake conversation_trace.jsonl

The scheduler and the cache are the real ones; a few lines below stand for the device, so that a million tokens take
seconds and torch is not needed. The usual policy keeps one state, at the end of each request, and gives up the
least recently used one.

branching   200 documents, each with 2 to 6 conversations of 1 to 8 turns at a time; who speaks next is drawn by
            Zipf's law (exponent 1.0) over the documents. When a conversation ends another begins.
mooncake    a trace of real conversations, given as ids of blocks of 512 tokens. Its answers are not in it: if a later
            request continues a prompt, the answer is what it continues it with. Answers of less than a page are drawn
            out to one, so that each request leaves a state at its end.

Answers come 16 tokens a step, as from a drafter that is always right.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.cache import CacheCounters, CacheManager, Policy
from holdfast.config import Limits
from holdfast.ids import Row
from holdfast.plan import Grant, RowWork, StepPlan, StepResult
from holdfast.request import Request, SamplingParams
from holdfast.scheduler import Scheduler

PAGE, BLOCK, ROWS, WINDOW = 64, 512, 8, 16
LEAST_ANSWER = PAGE + 1
"""An answer that passes the end of a page, wherever it begins."""
BUDGETS = (64, 256, 1024)
UNTOLD = 1 << 30
"""From here on: tokens of which a trace does not say what they are."""


@dataclass(frozen=True)
class Turn:
    """Tokens in, tokens out. `after`: the turn of the same conversation that must have ended before."""

    prompt: Sequence[int]
    answer: Sequence[int]
    after: int | None = None


@dataclass(frozen=True)
class OneStateEach(Policy):
    """What most engines do."""

    def prompt_lines(self, *, start: int, kv_len: int, length: int, page_size: int) -> tuple[int, ...]:
        return ()

    def score(self, *, saved: int, age: int, hits: int) -> float:
        return -age


POLICIES: dict[str, Policy] = {
    "one state each": OneStateEach(per_path=1 << 30, worth_waiting=1 << 30),
    "holdfast": Policy(),
}


# --- traces ---


def branching(seed: int, requests: int) -> Iterator[Turn]:
    draw = random.Random(seed)

    def text(least: int, most: int) -> list[int]:
        return [draw.getrandbits(20) for _ in range(draw.randint(least, most))]

    documents = [text(256, 2048) for _ in range(200)]
    weights = [1 / rank for rank in range(1, 201)]
    begun: dict[tuple[int, int], tuple[list[int], int, int]] = {}  # talk so far, turns left, its last turn
    branches = [draw.randint(2, 6) for _ in documents]
    for number in range(requests):
        [document] = draw.choices(range(200), weights)
        branch = draw.randrange(branches[document])
        talk, left, last = begun.pop((document, branch), (documents[document], draw.randint(1, 8), -1))
        prompt, answer = [*talk, *text(16, 256)], text(LEAST_ANSWER, 384)
        yield Turn(prompt, answer, None if last < 0 else last)
        if left > 1:
            begun[document, branch] = [*prompt, *answer], left - 1, number


def mooncake(path: Path, requests: int) -> Iterator[Turn]:
    rows = [json.loads(line) for line in path.read_text().splitlines()[: requests or None]]
    continued = _continuations(rows)
    before = {later: number for number, later in continued.items()}
    for number, row in enumerate(rows):
        length, answer = row["input_length"], max(LEAST_ANSWER, row["output_length"])
        later = continued.get(number)
        whole = _tokens(rows[later]["hash_ids"]) if later is not None else []
        prompt = [*_tokens(row["hash_ids"][:-1]), *whole[(len(row["hash_ids"]) - 1) * BLOCK :]][:length]
        prompt += [UNTOLD + number] * (length - len(prompt))
        said = whole[length : length + answer]
        yield Turn(prompt, [*said, *[UNTOLD + number] * (answer - len(said))], before.get(number))


def _continuations(rows: list[dict[str, list[int]]]) -> dict[int, int]:
    """Request to the first later one that begins with all its whole blocks, if those are more than a greeting."""
    waiting: dict[tuple[int, ...], int] = {}
    found: dict[int, int] = {}
    for number, row in enumerate(rows):
        ids = row["hash_ids"]
        for end in range(len(ids) - 1, 2, -1):
            earlier = waiting.pop(tuple(ids[:end]), None)
            if earlier is not None:
                found[earlier] = number
                break
        if len(ids) > 3:
            waiting[tuple(ids[:-1])] = number
    return found


def _tokens(blocks: Sequence[int]) -> list[int]:
    return [block for block in blocks for _ in range(BLOCK)]


# --- a device that computes nothing ---


@dataclass
class StandInRow:
    prompt_len: int
    answer: Sequence[int]
    position: int
    base: int
    grant: Grant | None = None


@dataclass
class StandIn:
    """Moves cursors as the device does, and says what the trace says."""

    limits: Limits
    turns: Sequence[Turn]
    rows: dict[Row, StandInRow] = field(default_factory=dict)

    def run(self, plan: StepPlan) -> StepResult:
        for start in plan.starts:
            turn = self.turns[start.seed]
            self.rows[start.row] = StandInRow(len(turn.prompt), turn.answer, start.base, start.base)
        for grant in plan.grants:
            self.rows[grant.row].grant = grant
        used = list(plan.exports)
        tokens = [self._advance(work, used) for work in plan.work]
        rows = [self.rows[work.row] for work in plan.work]
        return StepResult(
            plan.step,
            work=plan.work,
            positions=[row.position for row in rows],
            bases=[row.base for row in rows],
            tokens=tokens,
            proposed=[0] * len(rows),
            used=tuple(used),
        )

    def _advance(self, work: RowWork, used: list[Grant]) -> tuple[int, ...]:
        """What it chooses."""
        row, grid = self.rows[work.row], self.limits.fold_every
        start, row.position = row.position, row.position + work.tokens
        if work.tokens > self.limits.max_window:
            row.base = row.position // grid * grid
        elif start - row.base >= grid:
            row.base += grid
        if row.grant and row.grant.line == row.base:
            used.append(row.grant)
            row.grant = None
        window, said = work.window, row.position - row.prompt_len
        return tuple(row.answer[said - window.drafts : said + 1]) if work.sample else ()


@dataclass(frozen=True)
class Outcome:
    counters: CacheCounters
    seconds: float
    trace_tokens: int

    @property
    def recomputed(self) -> int:
        return self.counters.prompt_tokens - self.counters.resumed_tokens


def replay(turns: Sequence[Turn], policy: Policy, checkpoints: int, pages: int) -> Outcome:
    longest = max(len(turn.prompt) + len(turn.answer) for turn in turns)
    limits = Limits(
        max_num_seqs=ROWS,
        max_num_batched_tokens=2048,
        max_model_len=longest + 1,
        vocab_size=1 << 40,
        page_size=PAGE,
        num_pages=max(pages, (ROWS + 1) * (longest // PAGE + 1)),
        num_slots=ROWS + checkpoints,
        fold_every=WINDOW,
        max_window=WINDOW,
        num_checkpoints=checkpoints,
    )
    cache = CacheManager(limits, prefix_reuse=True, policy=policy)
    scheduler, device = Scheduler(limits, cache), StandIn(limits, turns)
    ended: set[int] = set()
    following = 0
    began = time.process_time()
    while following < len(turns) or scheduler.has_work:
        while following < len(turns) and scheduler.num_running + scheduler.num_waiting < ROWS:
            turn = turns[following]
            if turn.after is not None and turn.after not in ended:
                break
            params = SamplingParams(max_tokens=len(turn.answer), ignore_eos=True)
            scheduler.submit(Request(f"{following}", tuple(turn.prompt), params, seed=following))
            following += 1
        plan = scheduler.plan()
        if plan is not None:
            requests = scheduler.collect(device.run(plan))
            ended |= {int(request.id) for request in requests if request.finish_reason}
    assert cache.check().clean
    tokens = sum(len(turn.prompt) + len(turn.answer) for turn in turns)
    return Outcome(cache.counters, time.process_time() - began, tokens)


# --- the tables ---


def compare(name: str, turns: Sequence[Turn], budgets: Sequence[int], pages: int) -> list[dict[str, object]]:
    found = []
    gc.freeze()  # the trace: otherwise it is looked through for garbage, over and over
    for budget in budgets:
        outcomes = {label: replay(turns, policy, budget, pages) for label, policy in POLICIES.items()}
        usual, ours = outcomes["one state each"], outcomes["holdfast"]
        saved = 1 - ours.recomputed / usual.recomputed
        seconds = ours.seconds / (ours.trace_tokens / 1e6)
        print(
            f"{name:14} {budget:6,} {len(turns):8,} {ours.counters.prompt_tokens:12,} {usual.recomputed:12,} "
            f"{ours.recomputed:12,} {saved:8.1%} {seconds:10.2f}",
            flush=True,
        )
        found.append(
            {
                "trace": name,
                "checkpoints": budget,
                "requests": len(turns),
                "fewer": saved,
                "seconds_per_million_tokens": seconds,
                **{label: asdict(outcome.counters) for label, outcome in outcomes.items()},
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1500, help="of each trace; 0: all that mooncake has")
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="of the branching trace"
    )
    parser.add_argument("--budgets", type=int, nargs="*", default=list(BUDGETS), help="checkpoints")
    parser.add_argument("--pages", type=int, default=1 << 16, help="of KV, 64 tokens each")
    parser.add_argument("--mooncake", type=Path, help="a trace in the format of Mooncake's")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    print(
        f"{'trace':14} {'states':>6} {'requests':>8} {'prompt':>12} {'one each':>12} {'holdfast':>12} "
        f"{'fewer':>8} {'s/M tokens':>10}"
    )
    found = []
    if options.mooncake:
        turns = list(mooncake(options.mooncake, options.requests))
        found += compare("mooncake", turns, options.budgets, options.pages)
    for seed in options.seeds:
        turns = list(branching(seed, options.requests or 1500))
        found += compare(f"branching {seed}", turns, options.budgets, options.pages)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

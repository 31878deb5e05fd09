"""Seeded traffic, long enough that everything which can happen does: the counts at the end prove it."""

from __future__ import annotations

from collections import Counter
from random import Random

from holdfast.config import Limits
from holdfast.request import Request, SamplingParams

from .fake import never
from .harness import Harness, make_limits
from .test_properties import KINDS, lossy, most_turns, policy

RUNS = 120


def random_limits(random: Random) -> Limits:
    page_size = random.choice([2, 4, 8])
    fold_every = random.choice([n for n in (1, 2, 4, 8) if n <= page_size])
    sizes = {
        "max_num_seqs": random.randint(1, 5),
        "max_num_batched_tokens": random.choice([1, 4, 9, 16, 64]),
        "max_model_len": random.randint(8, 40),
        "vocab_size": 37,
        "page_size": page_size,
        "num_slots": random.choice([0, 0, 2, 4, 6, 9, 12]),
        "fold_every": fold_every,
        "max_window": random.randint(1, min(5, fold_every)),
    }
    sizes["num_checkpoints"] = random.randint(0, max(0, sizes["num_slots"] - 1))
    longest = make_limits(**sizes).pages_per_row
    return make_limits(**sizes, num_pages=longest + random.choice([0, 1, 3, 8, 30]))


def random_request(random: Random, id_: str, limits: Limits) -> Request:
    stem, length = random.randint(0, 1), random.randint(1, limits.max_model_len)
    tail = [random.randrange(limits.vocab_size) for _ in range(random.randint(0, 3))]
    prompt = [stem, *((i * i) % limits.vocab_size for i in range(1, length)), *tail]
    params = SamplingParams(
        max_tokens=random.randint(1, 40),
        ignore_eos=random.random() < 0.2,
        stop_token_ids=(5,) if random.random() < 0.2 else (),
    )
    eos = frozenset({1} if random.random() < 0.5 else ())
    priority = random.choice([0, 0, 0, 1, -1])
    return Request(
        id_, tuple(prompt[: limits.max_model_len - 1]), params, eos_token_ids=eos, priority=priority
    )


def run(random: Random) -> Counter[str]:
    limits = random_limits(random)
    harness = Harness(
        limits,
        depth=random.randint(0, 3),
        prefix_reuse=random.random() < 0.7,
        policy=policy(random.choice(KINDS), limits.page_size),
        loses=random.choice([never, lossy]),
    )
    requests = [random_request(random, f"r{n}", limits) for n in range(random.randint(2, 14))]
    for request in requests:
        harness.submit(request)
        for _ in range(random.choice([0, 0, 1, 5, 20])):
            harness.turn()
        if random.random() < 0.1:
            harness.cancel(random.choice(requests).id)
    harness.drain(most_turns(harness, len(requests)))
    assert sorted(harness.ended) == sorted(r.id for r in requests)
    return events(harness)


def events(harness: Harness) -> Counter[str]:
    cached = dict(vars(harness.cache.counters))
    seen = Counter(cached.pop("outcomes")) + Counter(vars(harness.scheduler.counters)) + Counter(cached)
    starts = [start for plan in harness.plans for start in plan.starts]
    seen["resumed"] = sum(start.base > 0 for start in starts)
    seen["resumed without state"] = seen["resumed"] if not harness.limits.num_slots else 0
    seen["exports"] = sum(len(plan.exports) for plan in harness.plans)
    seen["mixed steps"] = sum(len({work.tokens > 1 for work in plan.work}) == 2 for plan in harness.plans)
    drafts = harness.scheduler.speculation
    seen["accepted drafts"], seen["rejected drafts"] = drafts.accepted, drafts.drafts - drafts.accepted
    seen["windows after uncertain ones"] = sum(n > 0 for plan in harness.plans for n in plan.uncertain)
    seen["cut runs"] = sum(not work.sample for plan in harness.plans for work in plan.work)
    return seen


def test_soak() -> None:
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        seen += run(Random(seed))
    for event in (
        *("finished", "cancelled", "preempted", "granted", "skipped", "missed", "published", "exports"),
        *(
            "evicted_pages",
            "evicted_checkpoints",
            "resumed",
            "resumed without state",
            "mixed steps",
            "cut runs",
            "accepted drafts",
            "rejected drafts",
            "windows after uncertain ones",
            "no checkpoint in between",
            "as far as the prompt was computed before",
        ),
    ):
        assert seen[event] >= 20, f"{event}: only {seen[event]} times"

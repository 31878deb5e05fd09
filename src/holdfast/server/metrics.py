"""What is charted: counts and times taken here, and the engine's own numbers as it last told them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..request import Request, SpeculationStats
from .logs import LogHandler
from .messages import EngineStats

TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

CACHE_COUNTERS = {
    "resumed_tokens": "prompt tokens that were resumed instead of computed",
    "lost_tokens": "prompt tokens whose KV was there, but no checkpoint so deep",
    "resumed_after_preemption": "tokens resumed by requests that had been pre-empted",
    "waited": "requests that let another compute their common prefix first",
    "granted": "slots promised to folds that were to be kept",
    "published": "checkpoints that were left behind for reuse",
    "missed": "slots granted for a line that the row did not fold",
    "skipped": "checkpoints that were wanted, but no slot could be had",
    "evicted_pages": "pages of KV that made room for others",
    "evicted_checkpoints": "checkpoints that made room for others",
    "lost_checkpoints": "checkpoints evicted together with their page",
    "replaced_checkpoints": "checkpoints given up for a better one on the same path",
    "folds": "times that a row's checkpoint was moved on",
}


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()  # when a counter was made is of no use to anyone
        self.registry = CollectorRegistry()
        self.stats: EngineStats | None = None
        self.tasks = 0
        self._last_token: dict[str, float] = {}  # by request that runs
        self.prompt_tokens = self._counter("prompt_tokens", "tokens of prompts that were answered")
        self.generation_tokens = self._counter("generation_tokens", "tokens of answers")
        self.success = self._counter("request_success", "answers that ended", ["finished_reason"])
        self.responses = self._counter("http_responses", "HTTP responses", ["path", "status"])
        self.rejected = self._counter("requests_rejected", "requests turned away", ["reason"])
        self.engine_deaths = self._counter("engine_deaths", "times that the engine's process died")
        self.ttft = self._histogram("time_to_first_token_seconds", "from arrival to the first token", TTFT)
        self.between = self._histogram("inter_token_latency_seconds", "from token to token", BETWEEN)
        self.whole = self._histogram("e2e_request_latency_seconds", "from arrival to the last token", WHOLE)
        self.queued = self._histogram("request_queue_time_seconds", "from arrival to the first step", TTFT)
        self.prompt_len = self._histogram("request_prompt_tokens", "tokens of a prompt", TOKENS)
        self.answer_len = self._histogram("request_generation_tokens", "tokens of an answer", TOKENS)
        self.registry.register(self)

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def grew(self, request: Request, tokens: int, arrived: float, *, ended: bool) -> None:
        """`arrived` when its HTTP request did. The engine's own times are of the same clock."""
        now, metrics = time.monotonic(), request.metrics
        last = self._last_token.get(request.id)
        if tokens and last is None:
            self.ttft.observe(now - arrived)
            self.prompt_tokens.inc(len(request.prompt))
            self.prompt_len.observe(len(request.prompt))
            self.queued.observe((metrics.first_scheduled or now) - metrics.arrived)
        elif tokens and last is not None:
            for _ in range(tokens):
                self.between.observe((now - last) / tokens)
        self.generation_tokens.inc(tokens)
        if ended:
            self._last_token.pop(request.id, None)
            self.success.labels(str(request.finish_reason or "stop")).inc()
            self.whole.observe(now - arrived)
            self.answer_len.observe(len(request.tokens) - len(request.prompt))
        elif tokens:
            self._last_token[request.id] = now

    def forget(self, request_id: str) -> None:
        """It was cancelled, or its engine died."""
        if self._last_token.pop(request_id, None) is not None:
            self.success.labels("abort").inc()

    def collect(self) -> Iterator[Metric]:
        """The registry asks for these whenever it is scraped."""
        yield _counter("log_lines_dropped", "log lines that could not be written", LogHandler.dropped)
        yield _gauge("asyncio_tasks", "tasks of the server", self.tasks)
        if self.stats is None:
            return
        stats, cache, done = self.stats, self.stats.cache, self.stats.cache.counters
        yield _gauge("num_requests_running", "requests that have a row", stats.running)
        yield _gauge("num_requests_waiting", "requests that wait for one", stats.waiting)
        held = cache.num_pages - cache.free_pages
        yield _gauge(
            "kv_cache_usage_perc", "part of the pages that hold KV, 0 to 1", _part(held, cache.num_pages)
        )
        yield _gauge("pages", "pages of KV", cache.num_pages)
        yield _gauge("pages_free", "pages of KV that hold nothing", cache.free_pages)
        yield _gauge("pages_reusable", "pages that only the prefix tree needs", cache.idle_pages)
        yield _gauge("slots", "slots of recurrent state", cache.num_slots)
        yield _gauge("slots_free", "slots that hold nothing", cache.free_slots)
        yield _gauge("checkpoints", "states kept for reuse", cache.checkpoints)
        yield _gauge("rows_free", "requests that could begin at once", cache.free_rows)
        yield _counter("prefix_cache_queries", "prompt tokens looked up", done.prompt_tokens)
        yield _counter("prefix_cache_hits", "prompt tokens not computed again", done.resumed_tokens)
        yield _outcomes(done.outcomes)
        for name, told in CACHE_COUNTERS.items():
            yield _counter(name, told, getattr(done, name))
        yield _counter(
            "num_preemptions", "times that a request made room for another", stats.counters.preempted
        )
        yield _counter("steps", "steps of the engine", stats.counters.steps)
        yield _counter("step_tokens", "tokens that steps absorbed", stats.counters.planned_tokens)
        yield _counter("sanitizer_findings", "accesses to state that were not as planned", stats.findings)
        yield _counter(
            "structured_masks", "places at which an answer's form was asked", stats.constraints.masks
        )
        yield _counter("structured_mask_seconds", "seconds that this took", stats.constraints.seconds)
        yield from _speculation(stats.speculation)

    def _counter(self, name: str, told: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"holdfast:{name}", told, labels, registry=self.registry)

    def _histogram(self, name: str, told: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"holdfast:{name}", told, buckets=buckets, registry=self.registry)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast:{name}", told, value=value)


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(f"holdfast:{name}", told, value=value)


def _part(held: int, total: int) -> float:
    return held / total if total else 0.0


def _outcomes(requests: dict[str, int]) -> Metric:
    told = "requests, by why not more of their prompt was resumed"
    family = CounterMetricFamily("holdfast:prefix_cache_requests", told, labels=["outcome"])
    for outcome, count in requests.items():
        family.add_metric([outcome], count)
    return family


def _speculation(done: SpeculationStats) -> Iterator[Metric]:
    yield _counter("spec_decode_num_drafts", "windows that drafts were made for", done.windows)
    yield _counter("spec_decode_num_draft_tokens", "drafts", done.drafts)
    yield _counter("spec_decode_num_accepted_tokens", "drafts that were accepted", done.accepted)
    name = "holdfast:spec_decode_num_accepted_tokens_per_pos"
    family = CounterMetricFamily(
        name, "drafts that were accepted, by place in the window", labels=["position"]
    )
    for position, count in enumerate(done.accepted_at):
        family.add_metric([str(position)], count)
    yield family
    yield _gauge("spec_decode_depth", "drafts that a row is given, as last decided", done.depth)
    name, told = "holdfast:spec_decode_steps", "steps, by the drafts made for each row, and why so many"
    steps = CounterMetricFamily(name, told, labels=["depth", "reason"])
    for depth, reasons in done.steps.items():
        for reason, count in reasons.items():
            steps.add_metric([str(depth), reason], count)
    yield steps

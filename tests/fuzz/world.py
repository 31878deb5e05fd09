"""An engine, what was done to it, and what must be true of it after everything.

All that happens is an `Event`, plain data, so a list of them is a script that anybody can run again.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.executor.brief import Brief
from tests.host.restless import Restless
from tests.spec.drafters import correct_drafts, spoil_drafts

from holdfast.config import EngineConfig, SpeculativeConfig, max_window, pages_for
from holdfast.engine import Engine, build_engine
from holdfast.params import Structured
from holdfast.request import FinishReason, Request, SamplingParams, TokenLogprob
from holdfast.verify.rules import compare

from .models import directory, head
from .oracle import MAX_MODEL_LEN, ORACLE, TOP, Setting

MOST_TURNS = 20_000


@dataclass(frozen=True)
class Event:
    """One of: begin, submit, cancel, step, drain; and what it is done with."""

    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Script:
    events: list[Event] = field(default_factory=list)

    def write(self, path: Path) -> None:
        lines = ",\n  ".join(json.dumps(dataclasses.asdict(event)) for event in self.events)
        path.write_text(f"[\n  {lines}\n]\n")

    @staticmethod
    def read(path: Path) -> Script:
        return Script([Event(**event) for event in json.loads(path.read_text())])


def begin(model: str, *, exact: bool, spare_pages: int, brief: bool = False, **options: Any) -> Event:
    """`spare_pages` beside those that one request of full length needs. brief: steps are called so."""
    speculative = options["speculative_config"]
    window = max_window(max(SpeculativeConfig.of(speculative).depths) if speculative else 0)
    pages = pages_for(options["max_model_len"] + window, options["page_size"]) + spare_pages
    given = {"model": model, "options": {**options, "exact": exact, "num_pages": pages}, "brief": brief}
    return Event("begin", given)


@dataclass
class World:
    """Events are applied to the engine; every request's end is held against the oracle."""

    script: Script = field(default_factory=Script)
    covered: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Request] = field(default_factory=dict)
    """All that were ever submitted."""
    ended: dict[str, Request] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        self.script.events.append(event)
        getattr(self, f"_{event.kind}")(**event.given)

    @property
    def unfinished(self) -> list[str]:
        return [id_ for id_ in self.requests if id_ not in self.ended]

    @property
    def running(self) -> list[str]:
        return [seat.request.id for seat in self.engine.scheduler._running.values()]

    # --- events ---

    def _begin(self, model: str, options: Mapping[str, Any], brief: bool = False) -> None:
        assert options["max_model_len"] <= MAX_MODEL_LEN
        exact = options["exact"]
        self.setting = Setting(model, exact, options["fold_every"] if exact else None)
        speculative = options["speculative_config"]
        if speculative and "model" in speculative:
            method, name = speculative["method"], speculative["model"]
            made = directory(name) if method == "standalone" else head(method, name)
            speculative = {**speculative, "model": str(made)}
        config = EngineConfig(**{**options, "speculative_config": speculative})
        self.engine: Engine = build_engine(directory(model), config, weights_of=ORACLE.weights(self.setting))
        if speculative and speculative["method"] in ("ngram", "standalone"):
            spoil_drafts(self.engine)
        elif speculative:
            correct_drafts(self.engine, self._following)
        if speculative and "adaptive" in speculative:
            self.engine.scheduler._depth = Restless(speculative["adaptive"]["candidate_steps"])
        if brief:
            self.engine.runner._laps = Brief()
        self.cache = self.engine.scheduler._cache
        self.max_model_len = self.engine.capacity.limits.max_model_len
        self.grid = self.engine.capacity.limits.fold_every

    def _submit(self, prompt: list[int], priority: int, params: Mapping[str, Any], seed: int) -> None:
        id_ = str(len(self.requests))
        form = {"structured": Structured(**params["structured"])} if "structured" in params else {}
        chosen = SamplingParams(logprobs=TOP, **{**params, **form})
        request = Request(id_, tuple(prompt), chosen, seed=seed, priority=priority)
        self.engine.submit(request)
        self.requests[id_] = request
        self._check()

    def _cancel(self, request: str) -> None:
        self.covered[f"cancelled {self._whereabouts(request)}"] += 1
        goes_on = self.requests[request].finish_reason is None
        assert self.engine.cancel(request) == goes_on
        self._check()

    def _step(self, count: int = 1) -> None:
        for _ in range(count):
            stood = self._positions()
            changed = self.engine.step()
            self.covered["steps"] += 1
            self._note_crossings(stood)
            self._note_ended(request for request in changed if request.finish_reason)
            self._check()

    def _drain(self) -> None:
        turns = 0
        while self.engine.has_work:
            self._step()
            turns += 1
            assert turns < MOST_TURNS, "the engine does not come to an end"
        assert not self.unfinished, f"lost: {self.unfinished}"
        self._check_idle()

    # --- what must be true ---

    def finish(self) -> None:
        """The end of a run: all requests end, all comes back, and what happened is counted."""
        if not hasattr(self, "engine"):
            return
        self._drain()
        self.covered.update(
            {
                "runs": 1,
                f"runs of {self.setting.model}": 1,
                "findings": sum(r.error is not None for r in self.requests.values()),
                "pre-emptions": self.engine.scheduler.counters.preempted,
                "publishes": self.cache.counters.published,
                "evicted pages": self.cache.counters.evicted_pages,
                "evicted checkpoints": self.cache.counters.evicted_checkpoints,
                "accepted drafts": self.engine.scheduler.speculation.accepted,
                "rejected drafts": self._rejected,
                "hits": sum(r.metrics.cached_tokens > 0 for r in self.requests.values()),
            }
        )

    def _check(self) -> None:
        audit = self.cache.check()
        assert audit.clean, audit
        positions = self._positions()
        for seat in self.engine.scheduler._running.values():
            request = seat.request
            assert 0 <= request.planned - positions[seat.row, seat.generation] <= request.uncertain, (
                f"request {request.id}: the device stands elsewhere than {request.planned}"
            )
            assert request.planned <= request.known
        present = set(self.engine.scheduler._requests) | {
            request.id for request in self.engine.scheduler._cancelled
        }
        assert present == set(self.unfinished), "a request was lost, or goes on after its end"

    @property
    def _rejected(self) -> int:
        found = self.engine.scheduler.speculation
        return found.drafts - found.accepted

    def _check_idle(self) -> None:
        audit = self.cache.check()
        for census in (audit.rows, audit.slots, audit.pages):
            assert census.free + census.idle == census.total, f"not everything came back: {audit}"

    def _note_ended(self, requests: Iterable[Request]) -> None:
        for request in requests:
            assert request.id not in self.ended, f"request {request.id} ended twice"
            self.ended[request.id] = request
            self._check_answer(request)
            self.covered[f"ended: {request.finish_reason}"] += 1

    def _check_answer(self, request: Request) -> None:
        """The oracle's tokens, up to where they had to end; a beginning of them if the request was cancelled."""
        assert request.error is None, f"the sanitizer found: {request.error}"
        wanted, reason = self.expected(request)
        if request.finish_reason is FinishReason.CANCELLED:
            wanted, reason = wanted[: len(request.logprobs)], FinishReason.CANCELLED
        found = compare(wanted, request.logprobs, dtype="float32", exact=self.setting.exact)
        assert found.failure is None, f"request {request.id}: {found.failure}"
        assert [scored.token_id for scored in request.logprobs] == request.output
        self.covered["ties"] += found.tie
        self.covered["tokens compared"] += found.positions
        self.covered["tokens of answers with a form"] += found.positions if request.params.structured else 0
        assert found.tie or request.finish_reason is reason, f"request {request.id} ended as {reason}"

    def expected(self, request: Request) -> tuple[tuple[TokenLogprob, ...], FinishReason]:
        params = request.params
        answer = ORACLE.answer(
            self.setting,
            request.prompt,
            min(params.max_tokens, self.max_model_len - len(request.prompt)),
            temperature=params.temperature,
            seed=request.seed,
            structured=params.structured,
        )
        for count, scored in enumerate(answer, 1):
            if scored.token_id in params.stop_token_ids:
                return answer[:count], FinishReason.STOP
        return answer, FinishReason.LENGTH

    def _following(self, row: int, tokens: list[int]) -> Sequence[int]:
        """What the row's request will go on with."""
        for seat in self.engine.scheduler._running.values():
            if seat.row == row:
                answer = [scored.token_id for scored in self.expected(seat.request)[0]]
                text = [*seat.request.prompt, *answer]
                return text[len(tokens) :] if text[: len(tokens)] == tokens else ()
        return ()

    # --- looking on ---

    def _positions(self) -> dict[tuple[int, int], int]:
        """Where each running row stands, as the device has it."""
        cursors = self.engine.runner.state.cursors
        seats = self.engine.scheduler._running.values()
        return {(s.row, s.generation): int(cursors.base[s.row] + cursors.length[s.row]) for s in seats}

    def _note_crossings(self, stood: Mapping[tuple[int, int], int]) -> None:
        """Lines of the fold grid that rows have passed in a step."""
        for row, position in self._positions().items():
            self.covered["grid crossings"] += position // self.grid - stood.get(row, 0) // self.grid

    def _whereabouts(self, request_id: str) -> str:
        if self.requests[request_id].finish_reason is not None:
            return "after its end"
        for seat in self.engine.scheduler._running.values():
            if seat.request.id == request_id:
                return "in flight" if self.cache.in_flight(seat.row) else "running"
        return "waiting"


def replay(script: Script) -> World:
    world = World()
    for event in script.events:
        world.apply(event)
    world.finish()
    return world

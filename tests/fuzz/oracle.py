"""What a request must answer: the model alone, its prompt whole, nothing overlapped or reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.config import EngineConfig
from holdfast.engine import Engine, build_engine
from holdfast.models.base import CausalLM
from holdfast.params import Structured
from holdfast.request import Request, SamplingParams, TokenLogprob

from .models import directory

MAX_MODEL_LEN = 256
TOP = 4


@dataclass(frozen=True)
class Setting:
    """What the numbers depend on. In normal mode another grid is but another rounding; in exact mode, other bits."""

    model: str
    exact: bool
    fold_every: int | None


@dataclass
class Oracle:
    """Answers to the same question are computed once."""

    _engines: dict[Setting, Engine] = field(default_factory=dict)
    _answers: dict[tuple[object, ...], tuple[TokenLogprob, ...]] = field(default_factory=dict)

    def answer(
        self,
        setting: Setting,
        prompt: Sequence[int],
        count: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        structured: Structured | None = None,
    ) -> tuple[TokenLogprob, ...]:
        """`count` tokens, whatever would end the answer earlier; fewer where the context ends."""
        key = (setting, tuple(prompt), temperature, seed, structured)
        count = min(count, MAX_MODEL_LEN - len(prompt))
        if len(self._answers.get(key, ())) < count:
            params = SamplingParams(
                max_tokens=count,
                temperature=temperature,
                ignore_eos=structured is None,
                structured=structured,
                logprobs=TOP,
            )
            self._answers[key] = self._ask(setting, Request("oracle", tuple(prompt), params, seed=seed))
        return self._answers[key][:count]

    def weights(self, setting: Setting) -> CausalLM | None:
        """Of a model that was loaded before, in the order in which its weights lie in memory."""
        wanted = setting.model, setting.exact
        return next((e.runner.model for s, e in self._engines.items() if (s.model, s.exact) == wanted), None)

    def _ask(self, setting: Setting, request: Request) -> tuple[TokenLogprob, ...]:
        engine = self._engines.get(setting)
        if engine is None:
            engine = self._engines[setting] = self._build(setting)
        engine.submit(request)
        while engine.has_work:
            engine.step()
        return tuple(request.logprobs)

    def _build(self, setting: Setting) -> Engine:
        config = EngineConfig(
            exact=setting.exact,
            fold_every=setting.fold_every,
            max_num_seqs=1,
            max_model_len=MAX_MODEL_LEN,
            overlap=False,
            enable_prefix_caching=False,
        )
        return build_engine(directory(setting.model), config, weights_of=self.weights(setting))


ORACLE = Oracle()

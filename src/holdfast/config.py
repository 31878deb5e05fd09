"""Options as the user gives them, and what they resolve to: once, at the edge, then frozen."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from .units import enough_bytes, format_bytes, parse_bytes

CHUNK = 64
"""Prefill's chunk form works on absolute blocks of this many tokens."""

UNBOUNDED_LEN = 131_072
"""max_model_len, if neither the model nor the user bounds it: each row's table of tokens takes 1 MiB then."""

SHORTEST = 2
"""max_model_len must leave room for a token of a prompt and one of an answer."""

TYPICAL_LEN = 2048
"""Memory that is short is divided between slots and pages as requests of this length would use them."""

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
STATE_DTYPES = ("float32", "bfloat16")
BACKENDS = ("reference", "reference_kv")
LOAD_FORMATS = ("auto", "dummy")


class ConfigError(ValueError):
    """An option cannot be used; the message says what was asked, what is possible and what to change."""


@dataclass(frozen=True)
class EngineConfig:
    """What a user may choose, checked for contradictions. None means: decided in `resolve`."""

    device: str = "cpu"
    dtype: str = "float32"
    state_dtype: str = "float32"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    page_size: int = 64
    max_model_len: int | None = None
    num_pages: int | None = None
    num_slots: int | None = None
    memory: int | str | None = None
    """All that the engine may take of its device, such as "80GiB". None: nine tenths of a GPU's free memory;
    on a CPU what one request needs, and a quarter of what is free beside it."""
    load_format: str = "auto"
    """auto: the directory's safetensors. dummy: random weights of the right shapes, no files needed."""
    fold_every: int = 16
    max_draft_tokens: int = 0
    overlap: bool = True
    exact: bool = False
    backend: str = "reference"
    seed: int = 0

    def __post_init__(self) -> None:
        for option in fields(self):
            _check_type(option.name, getattr(self, option.name), str(option.type))
        _check_choice("device", re.sub(r":\d+$", "", self.device), DEVICES)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("state_dtype", self.state_dtype, STATE_DTYPES)
        _check_choice("backend", self.backend, BACKENDS)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        if self.exact and (self.device != "cpu" or self.dtype != "float32"):
            raise ConfigError(
                f"exact=True needs device='cpu' and dtype='float32'; got {self.device!r} and {self.dtype!r}"
            )
        _check_grid(self)
        self.memory_bytes  # noqa: B018  says now what is wrong with it

    @property
    def memory_bytes(self) -> int | None:
        try:
            return None if self.memory is None else parse_bytes(self.memory)
        except ValueError as error:
            raise ConfigError(f"memory={error}") from None


LEAST = dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "page_size", "fold_every"), 1)
LEAST |= {"max_draft_tokens": 0, "max_model_len": SHORTEST, "num_pages": 1, "num_slots": 1}


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of a model to size itself; made from the model's own config."""

    vocab_size: int
    max_positions: int | None
    """None: the model knows no positions, so its context has no bound of its own."""
    recurrent: bool


@dataclass(frozen=True)
class Limits:
    """Every size that a buffer, a pool, a plan or a check may ask for. Nothing else holds one."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    num_slots: int
    fold_every: int
    max_window: int

    @property
    def pages_per_row(self) -> int:
        return pages_for(self.max_model_len + self.max_window, self.page_size)

    @property
    def journal_capacity(self) -> int:
        return journal_capacity(self.fold_every, self.max_window)

    def ring_capacity(self, width: int) -> int:
        return ring_capacity(width, self.max_window)


def max_window(max_draft_tokens: int) -> int:
    """Tokens that one uncertain step may append: the drafts and the token they follow."""
    return max_draft_tokens + 1


def journal_capacity(fold_every: int, window: int) -> int:
    """A step that folds also appends, so a row may hold J - 1 + window entries and then append a window."""
    return fold_every - 1 + 2 * window


def ring_capacity(width: int, window: int) -> int:
    """The inputs a fold needs lie up to a window behind the position, the new ones a window ahead."""
    return width - 1 + 2 * window


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


@dataclass(frozen=True)
class Costs:
    """Bytes, from what the model declares: `memory.sizing` has them."""

    weights: int = 0
    page: int = 0
    slot: int = 0
    fixed: Callable[[Limits], int] = lambda limits: 0
    """All that limits take whatever the pages and slots: weights, journals, tables, activations."""


FREE = Costs()


def resolve(
    config: EngineConfig, facts: ModelFacts, costs: Costs = FREE, available: int | None = None
) -> Limits:
    """Check the options against the model and divide the memory; say what to change when it does not go.

    available  bytes free on the device; None: as many as anybody asks for
    """
    bound = facts.max_positions or config.max_model_len or UNBOUNDED_LEN
    if (config.max_model_len or 0) > bound:
        raise ConfigError(f"max_model_len={config.max_model_len}: the model has {bound} positions")
    frame = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or bound,
        vocab_size=facts.vocab_size,
        page_size=config.page_size,
        num_pages=config.num_pages or 0,
        num_slots=(config.num_slots or 0) if facts.recurrent else 0,
        fold_every=config.fold_every,
        max_window=max_window(config.max_draft_tokens),
    )
    return _Division(config, frame, costs, available, recurrent=facts.recurrent).limits()


class _Division:
    """Slots for the state of as many requests as can run at once, then pages for all that these may hold.

    `frame` has what the options fix; 0 pages or slots are still to be decided.
    """

    def __init__(
        self, config: EngineConfig, frame: Limits, costs: Costs, available: int | None, *, recurrent: bool
    ) -> None:
        self.config, self.frame, self.costs = config, frame, costs
        self.decide_slots = recurrent and not frame.num_slots
        self.page, self.slot = 0 if frame.num_pages else costs.page, costs.slot if self.decide_slots else 0
        self._typical = min(TYPICAL_LEN, frame.max_model_len)
        self.budget = self._budget(available)

    def limits(self) -> Limits:
        slots = self._slots() if self.decide_slots else self.frame.num_slots
        length = self.frame.max_model_len if self.config.max_model_len else self._longest(slots)
        if not self._fits(length, slots):
            raise ConfigError(self._refusal(length))
        useful = self.frame.max_num_seqs * self._pages(length) + 1  # one more, so that the last is admitted
        pages = self.frame.num_pages or _share(self._rest(length) - slots * self.slot, self.page, useful)
        return replace(self.frame, max_model_len=length, num_pages=pages, num_slots=slots)

    def _budget(self, available: int | None) -> int:
        if self.config.memory_bytes is not None:
            return self.config.memory_bytes
        if available is None:
            return 1 << 62
        most = available * 9 // 10
        if self.config.device != "cpu":
            return most
        one_request = self._needed(self.config.max_model_len or self._typical)
        return min(most, one_request + max(0, available - one_request) // 4)

    def _slots(self) -> int:
        rows, typical = self.frame.max_num_seqs, self._typical
        slots = _share(self._rest(typical), self.slot + self._pages(typical) * self.page, rows)
        if length := self.config.max_model_len:
            slots = min(slots, _share(self._rest(length) - self._pages(length) * self.page, self.slot, rows))
        return max(1, slots)

    def _longest(self, slots: int) -> int:
        lengths = range(SHORTEST, self.frame.max_model_len + 1)
        too_long = bisect.bisect_left(lengths, True, key=lambda length: not self._fits(length, slots))
        return lengths[max(0, too_long - 1)]

    def _fits(self, length: int, slots: int) -> bool:
        """Is there room for one request of this length?"""
        enough_pages = not self.frame.num_pages or self.frame.num_pages >= self._pages(length)
        return enough_pages and slots * self.slot + self._pages(length) * self.page <= self._rest(length)

    def _rest(self, length: int) -> int:
        return self.budget - self._fixed(length)

    def _fixed(self, length: int) -> int:
        given = self.frame.num_pages * self.costs.page + self.frame.num_slots * self.costs.slot
        return self.costs.fixed(replace(self.frame, max_model_len=length)) + given

    def _pages(self, length: int) -> int:
        return pages_for(length + self.frame.max_window, self.frame.page_size)

    def _needed(self, length: int) -> int:
        return self._fixed(length) + self._pages(length) * self.page + self.slot

    def _refusal(self, length: int) -> str:
        frame, needed, weights = self.frame, self._needed(length), self.costs.weights
        request = f"one request of {'max_model_len=' if self.config.max_model_len else ''}{length} tokens"
        if frame.num_pages and frame.num_pages < self._pages(length):
            return (
                f"num_pages={frame.num_pages} cannot hold {request}, which takes {self._pages(length)} pages "
                f"of {frame.page_size}; raise num_pages or lower max_model_len"
            )
        slots = 1 if self.decide_slots else frame.num_slots
        shorter = self._longest(slots)
        or_shorter = f", or lower max_model_len to {shorter}" if self._fits(shorter, slots) else ""
        memory = self.config.memory
        given = "nine tenths of what is free" if memory is None else f"memory={memory!r}"
        pools = "num_pages, num_slots, " if frame.num_pages or frame.num_slots else ""
        return (
            f"{request} needs {format_bytes(needed)}: weights take {format_bytes(weights)}; {pools}"
            f"max_num_seqs={frame.max_num_seqs} and max_num_batched_tokens={frame.max_num_batched_tokens} "
            f"{format_bytes(self._fixed(length) - weights)}; its own KV and state the rest. There are only "
            f"{format_bytes(self.budget)}, {given}: give memory='{enough_bytes(needed)}'{or_shorter}, "
            "or lower max_num_seqs, or take a smaller dtype"
        )


def _share(total: int, each: int, most: int) -> int:
    """How many of `each` bytes go into `total`, if `most` are of use."""
    return min(most, total // each) if each else most


def _check_grid(config: EngineConfig) -> None:
    if CHUNK % config.page_size and config.page_size % CHUNK:
        raise ConfigError(f"page_size={config.page_size} must divide {CHUNK} or be a multiple of it")
    if config.page_size % config.fold_every or CHUNK % config.fold_every:
        raise ConfigError(
            f"fold_every={config.fold_every} must divide page_size={config.page_size} and {CHUNK}, "
            "so that every page boundary is a line of the fold grid"
        )
    if (window := max_window(config.max_draft_tokens)) > config.fold_every:
        raise ConfigError(
            f"max_draft_tokens={config.max_draft_tokens} makes windows of {window} tokens, more than "
            f"fold_every={config.fold_every}: a window may pass one line of the fold grid, not two"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")


def _check_type(name: str, value: object, annotation: str) -> None:
    """The annotations of EngineConfig are its rules. A bool is no number here."""
    kinds = {"int": "a whole number", "str": "a string", "bool": "True or False", "None": "None"}
    wanted = annotation.split(" | ")
    if type(value).__name__.replace("NoneType", "None") not in wanted:
        raise ConfigError(f"{name}={value!r} must be {' or '.join(kinds[kind] for kind in wanted)}")

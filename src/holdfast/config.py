"""Options as the user gives them, and what they resolve to: once, at the edge, then frozen."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 64
"""Prefill's chunk form works on absolute blocks of this many tokens."""

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
STATE_DTYPES = ("float32", "bfloat16")
BACKENDS = ("reference", "reference_kv")


class ConfigError(ValueError):
    """An option cannot be used; the message says what was asked, what is possible and what to change."""


@dataclass(frozen=True)
class EngineConfig:
    """What a user may choose. None means: decided in `resolve`."""

    device: str = "cpu"
    dtype: str = "float32"
    state_dtype: str = "float32"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    page_size: int = 64
    max_model_len: int | None = None
    num_pages: int | None = None
    num_slots: int | None = None
    fold_every: int = 16
    max_draft_tokens: int = 0
    overlap: bool = True
    exact: bool = False
    backend: str = "reference"
    seed: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of a model to size itself; made from the model's own config."""

    vocab_size: int
    max_positions: int
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


def resolve(config: EngineConfig, facts: ModelFacts) -> Limits:
    """Check every option against the others and against the model; say what to change when they disagree."""
    _check_choice("device", config.device.split(":")[0], DEVICES)
    _check_choice("dtype", config.dtype, DTYPES)
    _check_choice("state_dtype", config.state_dtype, STATE_DTYPES)
    for name in ("max_num_seqs", "max_num_batched_tokens", "page_size", "fold_every"):
        _check_at_least(name, getattr(config, name), 1)
    _check_at_least("max_draft_tokens", config.max_draft_tokens, 0)
    if config.exact and (config.device != "cpu" or config.dtype != "float32"):
        raise ConfigError(
            f"exact=True needs device='cpu' and dtype='float32'; got {config.device!r} and {config.dtype!r}"
        )
    window = max_window(config.max_draft_tokens)
    _check_grid(config, window)

    max_model_len = config.max_model_len or facts.max_positions
    if not 1 <= max_model_len <= facts.max_positions:
        raise ConfigError(f"max_model_len={max_model_len}: the model has {facts.max_positions} positions")
    longest = pages_for(max_model_len + window, config.page_size)
    num_pages = config.num_pages or _default_pages(config, longest)
    if num_pages < longest:
        raise ConfigError(
            f"num_pages={num_pages} cannot hold one request of max_model_len={max_model_len} tokens, which takes "
            f"{longest} pages of {config.page_size}; raise num_pages or lower max_model_len"
        )
    num_slots = config.num_slots or config.max_num_seqs
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        page_size=config.page_size,
        num_pages=num_pages,
        num_slots=num_slots if facts.recurrent else 0,
        fold_every=config.fold_every,
        max_window=window,
    )


def _default_pages(config: EngineConfig, longest: int) -> int:
    """Room for every row at 4,096 tokens, or for one request of full length, whichever is more."""
    return max(longest, config.max_num_seqs * pages_for(4096, config.page_size))


def _check_grid(config: EngineConfig, window: int) -> None:
    if CHUNK % config.page_size and config.page_size % CHUNK:
        raise ConfigError(f"page_size={config.page_size} must divide {CHUNK} or be a multiple of it")
    if config.page_size % config.fold_every or CHUNK % config.fold_every:
        raise ConfigError(
            f"fold_every={config.fold_every} must divide page_size={config.page_size} and {CHUNK}, "
            "so that every page boundary is a line of the fold grid"
        )
    if window > config.fold_every:
        raise ConfigError(
            f"max_draft_tokens={config.max_draft_tokens} makes windows of {window} tokens, more than "
            f"fold_every={config.fold_every}: a window may pass one line of the fold grid, not two"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}={value} must be at least {least}")

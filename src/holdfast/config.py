"""Options as the user gives them, and the limits that `resolve` makes of them: once, at the edge, then frozen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points

from .adaptive import MAX_DRAFTS, AdaptiveConfig
from .units import parse_bytes

CHUNK = 64
"""Prefill's chunk form works on absolute blocks of this many tokens."""

FOLD_EVERY = 16
"""Tokens from line to line, if neither the user nor the model says otherwise."""

SHORTEST = 2
"""max_model_len must leave room for a token of a prompt and one of an answer."""

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
STATE_DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")
BACKENDS = ("reference", "reference_kv", "triton")
BACKEND_GROUP = "holdfast.backends"
"""Entry points by which other packages bring a backend of their own."""
LOAD_FORMATS = ("auto", "dummy")
SANITIZERS = ("off", "stamps", "full")


class ConfigError(ValueError):
    """An option cannot be used; the message says what was asked, what is possible and what to change."""


@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made. Fields of other methods are at their defaults."""

    method: str
    num_speculative_tokens: int
    """Drafts of a window, the bonus not counted. With an adaptive depth: at first."""
    adaptive: AdaptiveConfig | None = None
    """The number is decided while serving: also as True, a mapping, or the name of a JSON file with one."""
    model: str | None = None
    """The drafter's directory."""
    topk: int = 1
    """Guesses that may be made in the same place. With more than one, drafts are a tree,"""
    num_draft_tokens: int | None = None
    """of so many nodes, the token included that they follow, and num_speculative_tokens deep."""
    prompt_lookup_max: int = 4
    """ngram: so many last tokens are looked for first, in what came before them,"""
    prompt_lookup_min: int = 2
    """then fewer, down to so many."""

    @staticmethod
    def of(given: object) -> SpeculativeConfig:
        """Of a mapping, as users write it."""
        if isinstance(given, SpeculativeConfig):
            return given
        if not isinstance(given, Mapping) or "method" not in given:
            raise ConfigError(
                f"speculative_config={given!r} must be None, or name a method, as in "
                '{"method": "ngram", "num_speculative_tokens": 4}'
            )
        method, name = given["method"], "speculative_config"
        if method not in METHODS:
            raise ConfigError(f"{name}: method={method!r} is not one of {', '.join(METHODS)}")
        allowed = ("method", "num_speculative_tokens", "adaptive", *METHODS[method])
        for key in given:
            if key not in allowed:
                raise ConfigError(f"{name}: {method} has no {key!r}; it has {', '.join(allowed)}")
        for key in ("num_speculative_tokens", *(key for key in METHODS[method] if key == "model")):
            if key not in given:
                raise ConfigError(f"{name}: {method} needs {key!r}")
        return SpeculativeConfig(**given)

    @property
    def depths(self) -> tuple[int, ...]:
        """Every number of drafts that a window may be given."""
        return self.adaptive.all_depths if self.adaptive else (self.most_drafts,)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "adaptive", AdaptiveConfig.of(self.adaptive))
        except ValueError as error:
            raise ConfigError(f"speculative_config: adaptive: {error}") from None
        for option in fields(self):
            _check_type(f"speculative_config: {option.name}", getattr(self, option.name), str(option.type))
        if not 1 <= self.num_speculative_tokens <= MAX_DRAFTS:
            raise ConfigError(
                f"speculative_config: num_speculative_tokens={self.num_speculative_tokens} must be 1 to {MAX_DRAFTS}"
            )
        self._check_tree()
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"speculative_config: prompt_lookup_min={self.prompt_lookup_min} must be 1 to "
                f"prompt_lookup_max={self.prompt_lookup_max}"
            )
        if self.adaptive is not None:
            object.__setattr__(self, "adaptive", self.adaptive.including(self.num_speculative_tokens))

    def _check_tree(self) -> None:
        topk, depth, nodes = self.topk, self.num_speculative_tokens, self.num_draft_tokens
        name = "speculative_config: "
        if topk < 1:
            raise ConfigError(f"{name}topk={topk} must be at least 1")
        if topk > 1 and self.adaptive is not None:
            raise ConfigError(
                f"{name}topk={topk} makes trees, whose size is fixed: leave adaptive out, or use topk=1"
            )
        if topk == 1 and nodes not in (None, depth + 1):
            raise ConfigError(
                f"{name}topk=1 makes chains, so num_draft_tokens={nodes} can only be {depth + 1}: "
                "num_speculative_tokens, and the token that they follow; leave it out"
            )
        if topk > 1 and (nodes is None or not depth < nodes <= min(MAX_DRAFTS, topk * depth) + 1):
            raise ConfigError(
                f"{name}topk={topk} makes trees, so num_draft_tokens={nodes} must be {depth + 1} to "
                f"{min(MAX_DRAFTS, topk * depth) + 1}: nodes, the token included that they follow"
            )

    @property
    def most_drafts(self) -> int:
        """Of a window."""
        return self.num_speculative_tokens if self.num_draft_tokens is None else self.num_draft_tokens - 1


METHODS: dict[str, tuple[str, ...]] = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "mtp": (),
    "eagle": ("model", "topk", "num_draft_tokens"),
    "eagle_multi": ("model",),
    "dflash": ("model",),
    "standalone": ("model",),
}
"""Ways to make drafts, and the options that each has beside their number."""


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
    """Of recurrent state: one for each running request, the others for checkpoints."""
    num_checkpoints: int | None = None
    """How many of the slots are there to keep prefixes; running requests leave them alone."""
    enable_prefix_caching: bool = True
    """Requests that begin like earlier ones resume from what these left behind."""
    memory: int | str | None = None
    """All that the engine may take of its device, such as "80GiB". None: nine tenths of a GPU's free memory;
    on a CPU what one request needs, and a quarter of what is free beside it."""
    load_format: str = "auto"
    """auto: the directory's safetensors. dummy: random weights of the right shapes, no files needed."""
    fold_every: int | None = None
    """Tokens from line to line of the fold grid. None: as the model's mixers like it best."""
    speculative_config: SpeculativeConfig | None = None
    """How drafts are made, also as a mapping: {"method": "mtp", "num_speculative_tokens": 3}. None: none are."""
    overlap: bool = True
    exact: bool = False
    backend: str | None = None
    """Whose operations run. None: Triton's on a GPU, elsewhere the reference."""
    eager: bool = False
    """Nothing is recorded at start: every operation is launched by itself, which takes a small step much longer."""
    sanitizer: str = "off"
    """stamps: every access to state is checked. full: freed state is poisoned, and some is recomputed, as well."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.speculative_config is not None:
            object.__setattr__(self, "speculative_config", SpeculativeConfig.of(self.speculative_config))
        for option in fields(self):
            _check_type(option.name, getattr(self, option.name), str(option.type))
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if name == "backend" and value is None:
                continue
            if name == "backend" and value not in choices:
                choices = backends()
            if (re.sub(r":\d+$", "", value) if name == "device" else value) not in choices:
                raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        if self.exact and (self.device != "cpu" or self.dtype != "float32"):
            raise ConfigError(
                f"exact=True needs device='cpu' and dtype='float32'; got {self.device!r} and {self.dtype!r}"
            )
        _check_tree_alone(self)
        _check_grid(self)
        self.memory_bytes  # noqa: B018  says now what is wrong with it

    @property
    def max_drafts(self) -> int:
        """Of the largest window that a step may have: what every buffer is sized for."""
        return max(self.depths)

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of drafts that a row may be given; a row that has none, or no room, gets none."""
        return self.speculative_config.depths if self.speculative_config else (0,)

    @property
    def chosen_backend(self) -> str:
        if self.backend is not None:
            return self.backend
        return "triton" if self.device.startswith("cuda") and not self.exact else "reference"

    @property
    def memory_bytes(self) -> int | None:
        try:
            return None if self.memory is None else parse_bytes(self.memory)
        except ValueError as error:
            raise ConfigError(f"memory={error}") from None


CHOICES = {
    "device": DEVICES,
    "dtype": DTYPES,
    "state_dtype": STATE_DTYPES,
    "backend": BACKENDS,
    "load_format": LOAD_FORMATS,
    "sanitizer": SANITIZERS,
}


def backends() -> tuple[str, ...]:
    """Those that are here, and those that other packages bring."""
    return (*BACKENDS, *sorted(entry_points(group=BACKEND_GROUP).names))


LEAST = dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "page_size", "fold_every"), 1)
LEAST |= {"max_model_len": SHORTEST, "num_pages": 1, "num_slots": 1, "num_checkpoints": 0}


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of a model to size itself; made from the model's own config."""

    vocab_size: int
    max_positions: int | None
    """None: the model knows no positions, so its context has no bound of its own."""
    recurrent: bool
    fold_every: int = FOLD_EVERY
    """Where nothing is speculated: 1 if entries weigh about as much as the state that they would save writing."""


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
    num_checkpoints: int = 0
    """Slots beyond those that running requests need."""

    @property
    def max_drafts(self) -> int:
        """What a window may hold beside the token that drafts follow."""
        return self.max_window - 1

    @property
    def drafting_room(self) -> int:
        """Places of KV that a drafter may need beyond the tokens known: of the one just chosen, and of its drafts."""
        return self.max_drafts + 1 if self.max_drafts else 0

    @property
    def running_slots(self) -> int:
        return self.num_slots - self.num_checkpoints

    @property
    def pages_per_row(self) -> int:
        return pages_for(self.max_model_len + self.max_window, self.page_size)

    @property
    def journal_capacity(self) -> int:
        return journal_capacity(self.fold_every, self.max_window)


def run_reaches(line: int, start: int, end: int) -> bool:
    """Has a run from `start` to `end` a state at this line? Not inside the whole blocks of its chunk form."""
    first = -(-start // CHUNK) * CHUNK
    last = first + max(0, end - first) // CHUNK * CHUNK
    return start < line <= end and (line % CHUNK == 0 or not first < line < last)


def max_window(max_drafts: int) -> int:
    """Tokens that one uncertain step may append: the drafts and the token they follow."""
    return max_drafts + 1


def journal_capacity(fold_every: int, window: int) -> int:
    """A step that folds also appends, so a row may hold J - 1 + window entries and then append a window."""
    return fold_every - 1 + 2 * window


def ring_capacity(width: int, window: int) -> int:
    """The inputs a fold needs lie up to a window behind the position, the new ones a window ahead."""
    return width - 1 + 2 * window


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _check_grid(config: EngineConfig) -> None:
    grid = config.fold_every or FOLD_EVERY
    if CHUNK % config.page_size and config.page_size % CHUNK:
        raise ConfigError(f"page_size={config.page_size} must divide {CHUNK} or be a multiple of it")
    if config.page_size % grid or CHUNK % grid:
        raise ConfigError(
            f"fold_every={grid} must divide page_size={config.page_size} and {CHUNK}, "
            "so that every page boundary is a line of the fold grid"
        )
    if (window := max_window(config.max_drafts)) > grid:
        spec = config.speculative_config
        asked = "a candidate of adaptive" if spec and spec.adaptive else "num_speculative_tokens"
        raise ConfigError(
            f"{asked}={config.max_drafts} makes windows of {window} tokens, more than "
            f"fold_every={grid}: a window may pass one line of the fold grid, not two"
        )


def _check_tree_alone(config: EngineConfig) -> None:
    """What drafts that branch cannot be combined with."""
    if config.exact and config.speculative_config is not None and config.speculative_config.topk > 1:
        raise ConfigError(
            "speculative_config: topk > 1 goes with no exact=True: a window that branches is computed in another "
            "order than a text; use topk=1"
        )


def _check_type(name: str, value: object, annotation: str) -> None:
    """The annotations of EngineConfig are its rules. A bool is no number here."""
    kinds = {"int": "a whole number", "str": "a string", "bool": "True or False", "None": "None"}
    kinds |= {"SpeculativeConfig": "a SpeculativeConfig", "AdaptiveConfig": "an AdaptiveConfig"}
    wanted = annotation.split(" | ")
    if type(value).__name__.replace("NoneType", "None") not in wanted:
        raise ConfigError(f"{name}={value!r} must be {' or '.join(kinds[kind] for kind in wanted)}")

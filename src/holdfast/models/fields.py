"""Reading a hub `config.json`: every field is used, known to be without effect here, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import ConfigError
from ..ops.rope.reference import BlendedScaling, LinearScaling, RotarySpec, Scaling

INERT = frozenset(
    [
        "_name_or_path",
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "initializer_range",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "attention_dropout",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
        "auto_map",
        "unk_token_id",
        "max_length",
    ]
)
"""Fields about training, other libraries, or tokens: they change nothing in a forward pass."""


class Fields:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        value = self._take(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wanted = "a positive integer" if least == 1 else f"an integer of {least} or more"
            raise ConfigError(f"{self._where}: {names[0]} must be {wanted}, not {value!r}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self._take(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"{self._where}: {names[0]} must be a number, not {value!r}")
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        value = self._take(names, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}: {names[0]} must be true or false, not {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self._take((name,), None)
        if not isinstance(value, str):
            raise ConfigError(f"{self._where}: {name} must be a text, not {value!r}")
        return value

    def interval(self, name: str, default: tuple[float, float]) -> tuple[float, float]:
        value = self._take((name,), default)
        match value:
            case [int() | float() as least, int() | float() as most] if least <= most:
                return float(least), float(most)
        raise ConfigError(f"{self._where}: {name} must be [least, most], not {value!r}")

    def items(
        self, name: str, choices: Sequence[str] | None = None, *, length: int | None = None
    ) -> tuple[Any, ...]:
        value = self._take((name,), None)
        if not isinstance(value, list):
            raise ConfigError(f"{self._where}: {name} must be a list, not {value!r}")
        if length is not None and len(value) != length:
            raise ConfigError(
                f"{self._where}: {name} names {len(value)} layers; num_hidden_layers is {length}"
            )
        for item in value:
            if choices is not None and item not in choices:
                raise ConfigError(
                    f"{self._where}: {name} holds {item!r}; this architecture has {', '.join(choices)}"
                )
        return tuple(value)

    def group(self, name: str) -> Fields:
        """A nested object, or an empty one."""
        value = self._values.get(name) or {}
        self._read.add(name)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._where}: {name} must be an object, not {value!r}")
        return Fields(value, f"{self._where}: {name}")

    def one_group(self, *names: str) -> Fields:
        """A nested object that goes by several names; if more than one is there, they must agree."""
        given = [name for name in names if self._values.get(name)]
        self._read.update(names)
        for name in given[1:]:
            if self._values[name] != self._values[given[0]]:
                raise ConfigError(f"{self._where}: {given[0]} and {name} disagree; leave the right one")
        return self.group((given or names)[0])

    def only(self, name: str, *allowed: Any) -> Any:
        """A field of which some values are implemented; absent means the first of them."""
        self._read.add(name)
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            meant = ", ".join(map(repr, allowed))
            raise ConfigError(f"{self._where}: {name}={value!r} is not implemented here, only {meant}")
        return value

    def ignore(self, *names: str) -> None:
        """Fields that have no effect in this architecture."""
        self._read.update(names)

    def finish(self) -> None:
        left = sorted(name for name in self._values if name not in self._read and name not in INERT)
        if left:
            raise ConfigError(
                f"{self._where}: unknown fields {', '.join(left)}; the model might depend on them, "
                "so it is not loaded as if they were absent"
            )

    def _take(self, names: tuple[str, ...], default: Any) -> Any:
        self._read.update(names)
        for name in names:
            if self._values.get(name) is not None:
                return self._values[name]
        if default is None:
            raise ConfigError(f"{self._where}: {names[0]} is missing")
        return default


def rotary(fields: Fields, *, theta: float, fraction: float | None = None) -> RotarySpec:
    """Rotary positions, wherever this config keeps them.

    theta     the base, if the config names none
    fraction  of a head that turns, if the config does not say; None: whole heads, and it may not say otherwise
    """
    group = fields.one_group("rope_parameters", "rope_scaling")
    given = group.number("rope_theta", default=fields.number("rope_theta", default=theta))
    if fraction is None:
        for place in (group, fields):
            place.only("partial_rotary_factor", 1.0, None)
        fraction = 1.0
    else:
        outer = fields.number("partial_rotary_factor", default=fraction)
        fraction = group.number("partial_rotary_factor", default=outer)
    scaling = _rotary_scaling(group)
    group.ignore("mrope_section", "mrope_interleaved")  # all three positions of a text token are the same
    group.finish()
    return RotarySpec(given, fraction, scaling)


def _rotary_scaling(group: Fields) -> Scaling | None:
    name = "rope_type" if "rope_type" in group else "type"
    group.ignore("rope_type", "type")
    kind = group.only(name, "default", "linear", "llama3")
    if kind == "linear":
        return LinearScaling(group.number("factor"))
    if kind == "llama3":
        return BlendedScaling(
            factor=group.number("factor"),
            low=group.number("low_freq_factor"),
            high=group.number("high_freq_factor"),
            original_positions=group.integer("original_max_position_embeddings"),
        )
    return None

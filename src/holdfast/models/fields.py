"""Reading a hub `config.json`: every field is used, known to be without effect here, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import ConfigError

INERT = frozenset(
    """
    _name_or_path architectures model_type dtype torch_dtype transformers_version use_cache initializer_range
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id attention_dropout
    output_attentions output_hidden_states return_dict chunk_size_feed_forward is_encoder_decoder id2label
    label2id problem_type auto_map unk_token_id max_length
    """.split()
)
"""Fields about training, other libraries, or tokens: they change nothing in a forward pass."""


class Fields:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self._take(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self._where}: {names[0]} must be a positive integer, not {value!r}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self._take(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{self._where}: {names[0]} must be a number, not {value!r}")
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        value = self._take(names, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}: {names[0]} must be true or false, not {value!r}")
        return value

    def items(self, name: str, choices: Sequence[str] | None = None) -> tuple[Any, ...]:
        value = self._take((name,), None)
        if not isinstance(value, list):
            raise ConfigError(f"{self._where}: {name} must be a list, not {value!r}")
        for item in value if choices else ():
            if item not in choices:  # type: ignore[operator]
                raise ConfigError(f"{self._where}: {name} holds {item!r}; this architecture has {', '.join(choices)}")  # type: ignore[arg-type]
        return tuple(value)

    def group(self, name: str) -> Fields:
        """A nested object, or an empty one."""
        value = self._values.get(name) or {}
        self._read.add(name)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._where}: {name} must be an object, not {value!r}")
        return Fields(value, f"{self._where}: {name}")

    def only(self, name: str, *allowed: Any) -> None:
        """A field of which some values are implemented; absent is fine."""
        self._read.add(name)
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            meant = ", ".join(map(repr, allowed))
            raise ConfigError(f"{self._where}: {name}={value!r} is not implemented here, only {meant}")

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


def rope_theta(fields: Fields, default: float) -> tuple[float, Fields]:
    """The base of default rotary positions, wherever this config keeps it, and the fields beside it."""
    inner = fields.group("rope_parameters")
    scaling = fields.group("rope_scaling")
    for group in (inner, scaling):
        group.only("rope_type", "default")
        group.only("type", "default")
    theta = inner.number("rope_theta", default=fields.number("rope_theta", default=default))
    for group in (inner, scaling):
        group.ignore("partial_rotary_factor", "mrope_section", "mrope_interleaved")
        group.finish()
    return theta, inner

"""Options of an adaptive depth: the numbers of drafts to choose from, and the rule. What is wrong is a ValueError
that says where."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

logger = logging.getLogger("holdfast")

MAX_DRAFTS = 15
"""More are never worth verifying, and a window of 16 is what the fold grid allows."""
DEFAULT_DEPTHS = (0, 1, 3, 7)
POLICIES = ("cost", "ema")


@dataclass(frozen=True)
class Band:
    """Steps of at least so many rows, and fewer than the next band has."""

    rows: int
    depths: tuple[int, ...]
    """Ascending, none twice."""


@dataclass(frozen=True)
class AdaptiveConfig:
    """How many drafts a step gets is decided while serving, among a few candidates."""

    policy: str = "cost"
    """cost: whatever gives most tokens a second, by measured step times. ema: by accepted drafts alone."""
    bands: tuple[Band, ...] = (Band(1, DEFAULT_DEPTHS),)
    """From few rows to many. Users write `candidate_steps`: a list, or a list for each number of rows."""
    ema_alpha: float = 0.2
    """ema: the weight of the newest batch,"""
    update_interval: int = 5
    """a decision every so many batches,"""
    warmup_batches: int = 10
    """and none before so many;"""
    up_hysteresis: float = 0.0
    """so much more must be accepted to go deeper,"""
    down_hysteresis: float = -0.25
    """and so much less (negative) to go back."""

    @staticmethod
    def of(given: object) -> AdaptiveConfig | None:
        """Of True, a mapping, or the name of a JSON file with one; of None and False: None."""
        if given is None or given is False:
            return None
        if isinstance(given, AdaptiveConfig):
            return given
        if given is True:
            return AdaptiveConfig()
        if isinstance(given, str | Path):
            path = Path(given).expanduser()
            return _of_mapping(_read(path), f"{path}: ")
        return _of_mapping(given, "")

    def depths(self, rows: int) -> tuple[int, ...]:
        """What a step of so many rows may choose from."""
        return next((band.depths for band in reversed(self.bands) if band.rows <= rows), self.bands[0].depths)

    @property
    def all_depths(self) -> tuple[int, ...]:
        return tuple(sorted({depth for band in self.bands for depth in band.depths}))

    def including(self, initial: int) -> AdaptiveConfig:
        """The depth that an engine starts with is a candidate where it starts: in the band of fewest rows."""
        first, *others = self.bands
        if initial in first.depths:
            return self
        logger.info(
            "adaptive depth: %d, the initial one, is added to the candidates %s", initial, first.depths
        )
        band = replace(first, depths=tuple(sorted({*first.depths, initial})))
        return replace(self, bands=(band, *others))


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not JSON: it is not UTF-8") from None


def _of_mapping(given: object, where: str) -> AdaptiveConfig:
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{where}{given!r} must be true, a mapping of options, or the name of a JSON file with one"
        )
    names = ["candidate_steps", *(field.name for field in fields(AdaptiveConfig) if field.name != "bands")]
    for name in given:
        if name not in names:
            raise ValueError(f"{where}there is no {name!r}; there are {', '.join(names)}")
    options = dict(given)
    steps = options.pop("candidate_steps", None)
    for name, value in options.items():
        _check(f"{where}{name}={value!r}", name, value)
    return AdaptiveConfig(**options, bands=_bands(steps, f"{where}candidate_steps"))


def _check(told: str, name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = number and isinstance(value, int)
    if name == "policy" and value not in POLICIES:
        raise ValueError(f"{told} is not one of {', '.join(POLICIES)}")
    if name == "ema_alpha" and not (number and 0 < value <= 1):  # type: ignore[operator]
        raise ValueError(f"{told} must be more than 0, and at most 1")
    if name in ("update_interval", "warmup_batches") and not (whole and value >= (name[0] == "u")):  # type: ignore[operator]
        raise ValueError(f"{told} must be a whole number, at least {int(name[0] == 'u')}")
    if name.endswith("hysteresis") and not (number and -MAX_DRAFTS <= value <= MAX_DRAFTS):  # type: ignore[operator]
        raise ValueError(f"{told} must be a number of drafts")


def _bands(steps: object, where: str) -> tuple[Band, ...]:
    """Nothing, or an empty list, means the default."""
    if not isinstance(steps, Mapping):
        return (Band(1, _depths(steps, where)),)
    bands = {}
    for key, depths in steps.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and int(key)):
            raise ValueError(f'{where}: {key!r} must be a number of rows, as a string: "1", "8", "32"')
        if int(key) in bands:
            raise ValueError(f"{where}: {int(key)} rows are there twice")
        bands[int(key)] = _depths(depths, f"{where}[{key!r}]")
    return tuple(Band(rows, bands[rows]) for rows in sorted(bands)) or (Band(1, DEFAULT_DEPTHS),)


def _depths(given: object, where: str) -> tuple[int, ...]:
    if given is None:
        return DEFAULT_DEPTHS
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"{where}={given!r} must be a list of numbers of drafts, like [0, 1, 3]")
    for place, depth in enumerate(given):
        if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MAX_DRAFTS:
            raise ValueError(f"{where}[{place}]={depth!r} must be a whole number from 0 to {MAX_DRAFTS}")
    return tuple(sorted(set(given))) or DEFAULT_DEPTHS

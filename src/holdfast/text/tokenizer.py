"""A model's tokenizer, read from the files that lie beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from .chat import ChatTemplate, Message
from .detokenizer import Detokenizer
from .reader import THOUGHT
from .tools import ToolFormat, tool_format

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerError(ValueError):
    """The tokenizer's files are missing or cannot be read; the text says which."""


class Tokenizer:
    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        eos_token_ids: frozenset[int],
        chat_template: ChatTemplate,
    ) -> None:
        backend.no_truncation()  # a file may ask for it, and a prompt would lose its end in silence
        backend.no_padding()
        _mark_special(backend, special_tokens)
        self._backend = backend
        self._chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        own_eos = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
        self.eos_token_ids = eos_token_ids | (frozenset() if own_eos is None else {own_eos})
        """What ends an answer: what the model's config names, and the tokenizer's own."""
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )

    @classmethod
    def from_dir(cls, directory: str | Path) -> Tokenizer:
        """Read `tokenizer.json` and, where they exist, the configs and templates beside it."""
        directory = Path(directory)
        config = _read_json(directory / "tokenizer_config.json")
        special_tokens = _special_tokens(_read_json(directory / "special_tokens_map.json") | config)
        return cls(
            _read_backend(directory / "tokenizer.json"),
            special_tokens=special_tokens,
            eos_token_ids=eos_token_ids(directory),
            chat_template=ChatTemplate.from_dir(directory, config, special_tokens),
        )

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def special_id(self, text: str) -> int | None:
        """Of a special token with this name, if there is one."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self._special_ids else None

    def serialised(self) -> str:
        """As tokenizer.json has it, special tokens marked."""
        return self._backend.to_str()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Whether a text begins with a special token is for `tokenizer.json` to say."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool = True, shown: Sequence[str] = ()) -> Detokenizer:
        """The incremental `decode`, for one stream of tokens. Special tokens in `shown` are not skipped."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        skipped -= {self.special_id(text) for text in shown}

        def is_silent(token_id: int) -> bool:
            # a model's vocabulary may be padded beyond the tokenizer's
            return token_id in skipped or self._backend.id_to_token(token_id) is None

        return Detokenizer(lambda token_ids: self.decode(token_ids, skip_special_tokens=False), is_silent)

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of tools; None if its chat template does not take any."""
        source = self._chat_template.source(tools=True) or ""
        return tool_format(source, lambda text: self.special_id(text) is not None)

    @cached_property
    def thinks(self) -> bool:
        """Answers may begin with thoughts."""
        return THOUGHT in (self._chat_template.source(tools=False) or "")

    def render_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """A conversation as the prompt's text; `variables` are `tools` and what else the template knows."""
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    def apply_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The same as tokens. The template writes every special token itself, so none is added."""
        text = self.render_chat(messages, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)


def eos_token_ids(directory: str | Path) -> frozenset[int]:
    """The end-of-text ids of a model: generation_config.json's, or config.json's where that names none."""
    for name in ("generation_config.json", "config.json"):
        config = _read_json(Path(directory) / name)
        for holder in (config, config.get("text_config") or {}):
            found = holder.get("eos_token_id")
            if found is not None:
                return frozenset(found if isinstance(found, list) else [found])
    return frozenset()


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TokenizerError(f"{path} does not exist: a model's directory must hold a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{path} should hold a JSON object, and holds a {type(found).__name__}")
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens as text; files hold them as text or as `{"content": text, ...}`."""
    named = {name: config[name] for name in SPECIAL_NAMES if config.get(name)}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in named.items()}


def _mark_special(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """A named token is special even where `tokenizer.json` has it as an ordinary word of the vocabulary."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [token for token in special_tokens.values() if token not in marked]
    backend.add_special_tokens([token for token in missing if backend.token_to_id(token) is not None])

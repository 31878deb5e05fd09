"""Text to tokens and back: the tokenizer, chat templates, and text that grows token by token."""

from .chat import ChatTemplate, ChatTemplateError
from .detokenizer import Detokenizer
from .stops import StoppingText, StopStrings
from .tokenizer import Tokenizer, TokenizerError, eos_token_ids

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "Detokenizer",
    "StopStrings",
    "StoppingText",
    "Tokenizer",
    "TokenizerError",
    "eos_token_ids",
]

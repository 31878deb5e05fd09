"""Text to tokens and back: the tokenizer, chat templates, and text that grows token by token."""

from .calls import CallPiece, Tool
from .chat import ChatTemplate, ChatTemplateError
from .detokenizer import Detokenizer
from .reader import THINK, THOUGHT, AnswerReader, Part
from .schemas import WHITE_SPACE, parts, without_notes
from .stops import StoppingText, StopStrings
from .tokenizer import Tokenizer, TokenizerError, eos_token_ids
from .tools import ToolFormat, tool_format

__all__ = [
    "THINK",
    "THOUGHT",
    "WHITE_SPACE",
    "AnswerReader",
    "CallPiece",
    "ChatTemplate",
    "ChatTemplateError",
    "Detokenizer",
    "Part",
    "StopStrings",
    "StoppingText",
    "Tokenizer",
    "TokenizerError",
    "Tool",
    "ToolFormat",
    "eos_token_ids",
    "parts",
    "tool_format",
    "without_notes",
]

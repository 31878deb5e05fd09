"""Text to tokens and back: the tokenizer, chat templates, and text that grows token by token."""

from .chat import ChatTemplate, ChatTemplateError
from .detokenizer import Detokenizer
from .reader import THINK, THOUGHT, AnswerReader, Part
from .stops import StoppingText, StopStrings
from .tokenizer import Tokenizer, TokenizerError, eos_token_ids
from .tools import WHITE_SPACE, Tool, ToolCall, ToolFormat, tool_format

__all__ = [
    "THINK",
    "THOUGHT",
    "WHITE_SPACE",
    "AnswerReader",
    "ChatTemplate",
    "ChatTemplateError",
    "Detokenizer",
    "Part",
    "StopStrings",
    "StoppingText",
    "Tokenizer",
    "TokenizerError",
    "Tool",
    "ToolCall",
    "ToolFormat",
    "eos_token_ids",
    "tool_format",
]

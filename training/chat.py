"""Conversations as text: special tokens and the chat template, one definition for data and tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

END_OF_TEXT, IM_START, IM_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)
"""Their ids are 0, 1, 2, 3. MASK is what a block drafter reads where a token is still to be found."""

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@dataclass(frozen=True)
class Turn:
    user: str
    assistant: str


@dataclass(frozen=True)
class Piece:
    text: str
    learned: bool
    """Does the loss count its tokens?"""


def pieces(turns: Sequence[Turn], *, learn_questions: bool) -> list[Piece]:
    """As CHAT_TEMPLATE writes it, with the end of the text behind it."""
    found = []
    for turn in turns:
        found.append(Piece(question(turn.user), learn_questions))
        found.append(Piece(f"{turn.assistant}{IM_END}", True))
        found.append(Piece("\n", learn_questions))
    return [*found, Piece(END_OF_TEXT, learn_questions)]


def question(text: str) -> str:
    return f"{IM_START}user\n{text}{IM_END}\n{IM_START}assistant\n"

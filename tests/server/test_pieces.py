"""Pieces of a stream, joined as clients join them: whatever was said, in whatever pieces it came."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.test_tools import ANSWERS, TOOLS

from holdfast.server.replies import Piece
from holdfast.text import AnswerReader


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Texts are added to texts; calls are told apart by their index."""
    content, calls = "", []
    for piece in pieces:
        content += piece.get("content", "")
        for call in piece.get("tool_calls", ()):
            assert call["index"] in (len(calls), len(calls) - 1), "calls come one after another"
            if call["index"] == len(calls):
                assert call["id"] and call["type"] == "function" and call["function"]["name"]
                calls.append([call["function"]["name"], ""])
            else:
                assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
            calls[-1][1] += call["function"]["arguments"]
    return {"content": content, "calls": calls}


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(list(ANSWERS)), most=st.sampled_from([None, 1]), data=st.data())
def test_any_pieces_say_the_same(name: str, most: int | None, data: st.DataObject) -> None:
    format, text, content, calls = ANSWERS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))

    def said(cuts: list[int]) -> dict[str, Any]:
        reader, pieces = AnswerReader(calls=format, tools=TOOLS, most=most), []
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            first = reader.num_calls
            parts = reader.take(text[begin:end])
            pieces.append(Piece(0, "", [], [], 0, parts=parts, first_call=first).message())
        first, parts = reader.num_calls, reader.take("", final=True)
        pieces.append(Piece(0, "", [], [], 0, parts=parts, first_call=first).message())
        return joined(pieces)

    whole = said([])
    assert said(cuts) == whole
    assert (whole["content"], len(whole["calls"])) == (content, len(calls[:most]))

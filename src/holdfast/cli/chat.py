"""`holdfast chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..corruption import StateCorruption
from ..request import SamplingParams
from .options import add_engine_options, engine_config
from .terminal import fail, load_model, say

if TYPE_CHECKING:
    from ..llm import LLM

HELP = """\
Talk to a model. The answer appears as it is made.

  Ctrl-C    stops the answer; the conversation goes on
  /reset    begins a new conversation
  /exit     leaves, and so does Ctrl-D

Prompts may also come through a pipe, one in each line; the answers go to standard output:

  echo "What is a hybrid model?" | holdfast chat path/to/model
"""

SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed")
TEMPERATURE = 0.7


def add(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=HELP,
    )
    chat.set_defaults(run=run, parser=chat)
    chat.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory with config.json, *.safetensors, tokenizer.json; without it, a built-in model",
    )
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin every conversation with")
    sampling = chat.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: %(default)s)")
    sampling.add_argument(
        "--temperature",
        type=float,
        help=f"0 always takes the likeliest token (default: as the model advises, or {TEMPERATURE})",
    )
    sampling.add_argument("--top-p", type=float, help="1 is everything (default: as the model advises)")
    sampling.add_argument("--top-k", type=int, help="0 is everything (default: as the model advises)")
    add_engine_options(chat, seed="the same seed and prompts give the same answers")


def run(args: argparse.Namespace) -> int:
    try:
        config = engine_config(args)
        asked = {name: value for name in SAMPLING if (value := getattr(args, name, None)) is not None}
        SamplingParams(**asked)  # says what is wrong before anything is loaded
    except ValueError as error:
        args.parser.error(str(error))
    try:
        llm = load_model(args.model, config)
    except (OSError, ValueError) as error:
        return fail(error)
    params = replace(_advised(llm.default_params()), **asked)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a stray byte is no reason to stop
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        say("Ctrl-C stops an answer, /reset begins anew, /exit or Ctrl-D leaves.")
    return converse(Conversation(llm, params, args.system), interactive)


def _advised(params: SamplingParams) -> SamplingParams:
    """A model that advises nothing would always say the same."""
    return params if params.temperature else replace(params, temperature=TEMPERATURE)


class Conversation:
    """Messages so far, and a model to answer the next."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, str]] = list(self._opening)

    def answer(self, text: str) -> Generator[str, None, None]:
        """The answer, piece by piece. One that is cut short is remembered as far as it came."""
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self._llm.stream(asked, self._params)
        said = ""
        try:
            for output in stream:
                piece, said = output.text[len(said) :], output.text
                yield piece
        except StateCorruption:
            said = ""  # not the model's words
            raise
        finally:
            stream.close()  # cancels what still runs
            if said:
                self.messages = [*asked, {"role": "assistant", "content": said}]


def converse(conversation: Conversation, interactive: bool) -> int:
    status = 0
    for line in _prompts(interactive):
        command = line.strip()
        if command == "/exit":
            break
        if command == "/reset":
            conversation.reset()
        elif command:
            try:
                _print_answer(conversation.answer(line), interactive)
            except (ValueError, StateCorruption) as error:
                status = fail(error)
    return 0 if interactive else status


def _prompts(interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing and history)
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            say("\n/exit or Ctrl-D leaves.")
        except EOFError:
            print()
            return


def _print_answer(pieces: Generator[str, None, None], interactive: bool) -> None:
    with _interrupts() as seen, contextlib.closing(pieces):
        for piece in pieces:
            sys.stdout.write(_visible(piece) if interactive else piece)
            sys.stdout.flush()
            if seen:
                break
    print(flush=True)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The first Ctrl-C is only noted, so that no step of the engine is torn apart; the second ends all."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, previous)


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROL_PICTURES |= {0x7F: 0x2421} | {code: 0xFFFD for code in range(0x80, 0xA0)}


def _visible(text: str) -> str:
    """A model's words must not steer the terminal."""
    return text.translate(_CONTROL_PICTURES)

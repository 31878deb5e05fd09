"""The command line. `holdfast chat` talks to a model in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from .config import DTYPES
from .request import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM

CHAT_HELP = """\
Talk to a model. The answer appears as it is made.

  Ctrl-C    stops the answer; the conversation goes on
  /reset    begins a new conversation
  /exit     leaves, and so does Ctrl-D

Prompts may also come through a pipe, one in each line; the answers go to standard output:

  echo "What is a hybrid model?" | holdfast chat path/to/model
"""


def main(argv: Sequence[str] | None = None) -> int:
    """0: done. 1: it could not be done. 2: the command line was wrong. 130: interrupted."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(parser, args))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader went away; what is left in the buffer must not be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="A serving engine for hybrid language models: attention beside recurrent state.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_chat(commands)
    return parser


def _add_chat(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=CHAT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chat.set_defaults(run=run_chat)
    chat.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory with config.json, *.safetensors, tokenizer.json; without it, a built-in demo model",
    )
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin every conversation with")
    engine = chat.add_argument_group("engine")
    engine.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    engine.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")
    sampling = chat.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=0.7, help="0 always takes the likeliest token")
    sampling.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s, everything)")
    sampling.add_argument("--top-k", type=int, default=0, help="(default: %(default)s, everything)")
    sampling.add_argument("--seed", type=int, help="the same seed and prompts give the same answers")


def run_chat(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    try:
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        llm = load_model(args.model, args.device, args.dtype)
    except (OSError, ValueError) as error:
        return _fail(error)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a stray byte is no reason to stop
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        _say("Ctrl-C stops an answer, /reset begins anew, /exit or Ctrl-D leaves.")
    return converse(Conversation(llm, params, args.system), interactive)


def load_model(model: str | None, device: str, dtype: str) -> LLM:
    from .llm import LLM  # takes seconds, and --help should not

    if model is None:
        from .models.demo import DEMO_NOTICE

        _say(DEMO_NOTICE)
    return LLM(model, device=device, dtype=dtype)


class Conversation:
    """Messages so far, and a model to answer the next."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, str]] = list(self._opening)

    def answer(self, text: str) -> Iterator[str]:
        """The answer, piece by piece. One that is cut short is remembered as far as it came."""
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self._llm.stream(asked, self._params)
        said = ""
        try:
            for output in stream:
                piece, said = output.text[len(said) :], output.text
                yield piece
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
            except ValueError as error:
                status = _fail(error)
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
            _say("\n/exit or Ctrl-D leaves.")
        except EOFError:
            print()
            return


def _print_answer(pieces: Iterator[str], interactive: bool) -> None:
    with _interrupts() as seen, contextlib.closing(pieces):  # type: ignore[type-var]
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


def _say(sentence: str) -> None:
    """Not part of an answer, so not on standard output."""
    print(sentence, file=sys.stderr, flush=True)


def _fail(error: Exception) -> int:
    _say(f"holdfast: {error}")
    return 1


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"

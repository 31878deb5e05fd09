"""What a server may be told, beside its engine's options."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields

from ..config import ConfigError
from ..units import parse_bytes
from .logs import FORMATS, LEVELS


@dataclass(frozen=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    max_body: int | str = "4MiB"
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_choices: int = 64
    max_queue: int = 256
    max_connections: int = 2048
    request_timeout: float = 600.0
    read_timeout: float = 20.0
    write_timeout: float = 60.0
    health_timeout: float = 10.0
    drain_timeout: float = 30.0
    log_format: str = "text"
    log_level: str = "info"
    log_file: str | None = None
    log_text: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be between 0 (any that is free) and 65535")
        for name, choices in (("log_format", FORMATS), ("log_level", LEVELS)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        self.body_bytes  # noqa: B018  says now what is wrong with it

    @property
    def body_bytes(self) -> int:
        try:
            return parse_bytes(self.max_body)
        except ValueError as error:
            raise ConfigError(f"max_body={error}") from None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in (self.api_key or "").split(",") if key)

    @property
    def is_private(self) -> bool:
        """Only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


LEAST = dict.fromkeys(("max_prompt_tokens", "max_output_tokens", "max_choices", "max_connections"), 1)
LEAST |= dict.fromkeys(("read_timeout", "write_timeout", "health_timeout", "request_timeout"), 1)
LEAST |= {"max_queue": 0, "drain_timeout": 0}

HELP = {
    "host": "address to listen on; others than this machine's own need --api-key",
    "port": "0 takes any that is free",
    "served_model_name": "the model's name for clients (default: MODEL as it was given)",
    "api_key": "what clients must send as a bearer token; several, with commas between them",
    "max_body": "largest body of a request",
    "max_prompt_tokens": "longest prompt (default: what the model's context takes)",
    "max_output_tokens": "longest answer (default: what the model's context takes)",
    "max_choices": "most answers that one request may ask for: its prompts times n",
    "max_queue": "requests that may wait for a row; further ones get 429",
    "max_connections": "open at once",
    "request_timeout": "seconds that a request may take in all",
    "read_timeout": "seconds that a client may take to send a request",
    "write_timeout": "seconds that a client may let a stream wait",
    "health_timeout": "seconds of silence after which /health calls the engine stuck",
    "drain_timeout": "seconds that running requests get to end when the server is told to stop",
    "log_format": ", ".join(FORMATS),
    "log_level": ", ".join(LEVELS),
    "log_file": "(default: standard error)",
    "log_text": "log prompts and answers as well",
}
assert HELP.keys() == {field.name for field in fields(ServerOptions)}

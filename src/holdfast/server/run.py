"""A server from its options, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import socket
from pathlib import Path
from typing import Any

import uvicorn

from ..config import ConfigError, EngineConfig
from ..hub import find_model
from ..intake import Intake
from . import logs
from .app import Api, make_app
from .client import EngineClient
from .guard import guarded_protocol
from .messages import Start
from .metrics import Metrics
from .model import ServedModel
from .options import ServerOptions


def serve(model: str | None, config: EngineConfig, options: ServerOptions) -> int:
    """0: it was told to stop, and did. 1: the engine could not start, or died twice."""
    listener = listen(options.host, options.port)
    log: dict[str, Any] = {"form": options.log_format, "level": options.log_level, "file": options.log_file}
    try:
        logs.configure(**log)
    except OSError as error:
        raise ConfigError(f"log_file={options.log_file!r}: {error.strerror}") from None
    directory = find_model(model)
    metrics, intake = Metrics(), Intake(directory, config.seed)
    client = EngineClient(Start(str(directory), config, log), intake, metrics)
    name = options.served_model_name or (model if model and not Path(model).exists() else directory.name)
    served = ServedModel(name, intake)
    api = Api(served, options, client, metrics)
    failures: list[str] = []

    def give_up(reason: str) -> None:
        failures.append(reason)
        logs.event("the engine cannot start", level=logging.ERROR, reason=reason)
        server.should_exit = True

    server = uvicorn.Server(
        uvicorn.Config(
            make_app(api, client, give_up),
            http=guarded_protocol(options.read_timeout),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=options.max_connections,
            timeout_graceful_shutdown=max(1, round(options.drain_timeout)),
        )
    )
    _announce(listener, served.name, options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, lambda *_: None
        )  # uvicorn has its own, and raises them again when it has drained
    server.run(sockets=[listener])
    logs.event("stopped")
    return 1 if failures else 0


def listen(host: str, port: int) -> socket.socket:
    """Before anything is loaded: whether the port can be had is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from None
    return listener


def _announce(listener: socket.socket, name: str, options: ServerOptions) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    logs.event("listening", address=address, model=name)
    if not options.is_private and not options.keys:
        open_to_all = "anyone who can reach this address can use the model: set --api-key"
        logs.event(open_to_all, level=logging.WARNING, host=options.host)

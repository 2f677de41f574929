"""The HTTP side of the service: the endpoints of UM-Bridge 1.0, from the start to a signal that ends it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
from collections.abc import Callable
from typing import Any

from aiohttp import web

from training.service.batching import Batcher, Log
from training.service.model import Forward
from training.service.requests import (
    EVALUATE,
    GRADIENT,
    HESSIAN,
    JACOBIAN,
    NAME,
    SUPPORT,
    UNSUPPORTED,
    RequestError,
    Settings,
    read_body,
    read_question,
    read_sizes,
)

PROTOCOL = 1.0
DIGITS = 64  # bytes that a number takes in a request, at most
PATIENCE = 1.0  # seconds for replies that are being sent when the service ends


def serve(
    model: Forward,
    host: str = "127.0.0.1",
    port: int = 4242,
    batch: int = 256,
    started: Callable[[str], None] = print,
    log: Log | None = None,
) -> None:
    """Answers requests until SIGINT or SIGTERM; `started` gets the URL, `log` a line per batch.

    Call it in the main thread. Port 0 takes a free port. A host or port that cannot be used raises a ValueError.
    """
    asyncio.run(_serve(model, host, port, batch, started, log))


async def _serve(
    model: Forward, host: str, port: int, batch: int, started: Callable[[str], None], log: Log | None
) -> None:
    batcher, ended = Batcher(model.answers, batch, log), asyncio.Event()
    # Requests that are no HTTP are answered by aiohttp, which need not say so with a traceback.
    logger = logging.getLogger("fem_frames.service")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    runner = web.AppRunner(
        make_application(model, batcher),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=PATIENCE,
        logger=logger,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            raise ValueError(_unusable(host, port, error)) from error
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        worker = asyncio.create_task(batcher.run())
        name, number = runner.addresses[0][:2]
        started(f"http://{f'[{name}]' if ':' in name else name}:{number}")
        await ended.wait()
        batcher.close()
        await worker
    finally:
        batcher.close()
        await runner.cleanup()


def _unusable(host: str, port: int, error: Exception) -> str:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another one, or --port 0 for a free one"
    reason = getattr(error, "strerror", None) or error
    return f"cannot listen on port {port} of {host}: {reason}; choose others by --host and --port"


def make_application(model: Forward, batcher: Batcher) -> web.Application:
    """The endpoints; the batcher must run."""
    longest = max(model.parameters, *model.sizes(Settings()))
    limit = 2**20 + DIGITS * (model.parameters + longest)

    async def info(request: web.Request) -> web.Response:
        return _reply({"protocolVersion": PROTOCOL, "models": [NAME]})

    async def model_info(request: web.Request) -> web.Response:
        read_body(await request.read())
        return _reply({"support": SUPPORT})

    async def input_sizes(request: web.Request) -> web.Response:
        read_sizes(read_body(await request.read()), model)
        return _reply({"inputSizes": [model.parameters]})

    async def output_sizes(request: web.Request) -> web.Response:
        return _reply({"outputSizes": read_sizes(read_body(await request.read()), model)[1]})

    async def question(request: web.Request) -> web.Response:
        kind = request.path.removeprefix("/")
        found = read_question(kind, read_body(await request.read()), model)
        return _reply({"output": await batcher.ask(found)})

    async def unsupported(request: web.Request) -> web.Response:
        read_body(await request.read())
        raise RequestError(f"{HESSIAN} is not supported by the model {NAME!r}", UNSUPPORTED)

    @web.middleware
    async def errors(request: web.Request, handler: Any) -> web.StreamResponse:
        """Every error as JSON of the protocol."""
        try:
            reply: web.StreamResponse = await handler(request)
            return reply
        except RequestError as error:
            return _reply(error.record, error.status)
        except web.HTTPRequestEntityTooLarge:
            return _reply(RequestError(f"the body is too large: at most {limit} bytes are read").record, 400)
        except web.HTTPException as error:
            paths = ", ".join(f"/{kind}" for kind in ("ModelInfo", "InputSizes", "OutputSizes", *SUPPORT))
            text = f"{request.method} {request.path}: {error.reason}; there are GET /Info and POST {paths}"
            return _reply(RequestError(text).record, error.status)

    application = web.Application(client_max_size=limit, middlewares=[errors])
    application.router.add_get("/Info", info)
    for path, handler in {"ModelInfo": model_info, "InputSizes": input_sizes, "OutputSizes": output_sizes}.items():
        application.router.add_post(f"/{path}", handler)
    for kind in (EVALUATE, GRADIENT, JACOBIAN):
        application.router.add_post(f"/{kind}", question)
    application.router.add_post(f"/{HESSIAN}", unsupported)
    return application


def _reply(record: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(record, allow_nan=False), status=status, content_type="application/json")

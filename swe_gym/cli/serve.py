"""`swe-gym serve` and `swe-gym mcp`: offer an environment over the protocol of OpenEnv, or a task to an MCP client."""

import contextlib
import ipaddress
import os
import random
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import gymnasium
import typer

from ..envs import SweEnv
from ..errors import UsageError
from ..rollout import Plan
from ..tasks import TaskSource, load_source
from ..toml import parse_pairs
from ..types import JsonObject
from .common import open_console, source_of
from .common import sandbox_options as parse_sandbox_options
from .options import (
    BACKEND,
    SEED,
    Backend,
    MaxTurns,
    RunsFolder,
    SandboxOptions,
    Source,
    SourceOptions,
    Tools,
    tools_of,
)

Token = Annotated[
    str | None, typer.Option(envvar="SWE_GYM_TOKEN", help="Token of the clients (default: a random one).")
]


def serve(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="Environment id, for example SWE/Toy-v0.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments of the environment, for example path=tasks.jsonl."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address.")] = "127.0.0.1",
    token: Token = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Accept every client, on this machine only.")] = False,
    sessions: Annotated[int, typer.Option(min=1, help="Maximum number of sessions, one sandbox each.")] = 64,
    idle: Annotated[float, typer.Option(min=1, help="Seconds without a message that end a session.")] = 600.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name by which clients call the server, besides localhost and addresses. Repeatable."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Certificate, for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Key of the certificate.")] = None,
    backend: Annotated[str | None, BACKEND] = None,
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
) -> None:
    """Offer an environment over OpenEnv's protocol, so that a trainer elsewhere plays in the sandboxes of this machine.

    The server is reachable from this machine only, unless --host names another address. Clients send the token that is
    printed. `swe_gym.adapters.remote.RemoteEnv` is the environment on the other side. Press Ctrl-C to stop.
    """
    from ..adapters import (
        EnvServer,  # an extra, which help does not need
        make_env,
    )

    if no_token and (token or not _is_loopback(host)):
        raise UsageError("--no-token needs a loopback address as --host, and no token: leave it out")
    token = None if no_token else token or secrets.token_urlsafe(24)
    arguments = _arguments(options, backend, sandbox_option, tools, max_turns)
    held = _open_source(make_env(env_id, **arguments))  # until the end, so that sessions share it
    server = EnvServer(
        lambda: make_env(env_id, **arguments),
        host=host,
        port=port,
        token=token,
        sessions=sessions,
        idle=idle,
        allowed_hosts=allow_host or (),
        certificate=tls_cert,
        key=tls_key,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # once the server has stopped, which it does first
    if not tls_cert and not _is_loopback(host):
        open_console(stderr=True).print("Not encrypted: use --tls-cert and --tls-key, or a tunnel such as ssh -L.")
    open_console().print(f"{server.url}\n" + (f"token: {token}" if token else "no token"))
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    del held


def _open_source(env: gymnasium.Env[str, str]) -> TaskSource | None:
    """Read the tasks of an environment, before a client asks for one.

    Raises:
        UsageError: The source has no tasks, or they cannot be read.
    """
    with contextlib.closing(env):
        if not isinstance(env.unwrapped, SweEnv):
            return None
        if not env.unwrapped.source.ids():
            raise UsageError("the environment has no tasks: choose another source, or other arguments of it")
        return env.unwrapped.source


def _arguments(
    options: list[str] | None,
    backend: str | None,
    sandbox_option: list[str] | None,
    tools: str | None,
    max_turns: int | None,
) -> JsonObject:
    """Return the arguments of the environment; those without a value keep the environment's defaults."""
    given = {
        "backend": backend,
        "sandbox_options": parse_pairs("--sandbox-option", sandbox_option) or None,
        "tools": tools_of(tools),
        "max_turns": max_turns,
    }
    return {**parse_pairs("argument", options), **{name: value for name, value in given.items() if value is not None}}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def mcp(
    context: typer.Context,
    task_id: Annotated[str | None, typer.Argument(metavar="TASK_ID", help="Task id (default: a random task).")] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments of the environment, for example time_limit=3600."),
    ] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
    seed: Annotated[int | None, SEED] = None,
    output: RunsFolder = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = None,
    token: Token = None,
) -> None:
    """Offer one task to an MCP client, over standard input and output or, with --port, streamable HTTP on this machine.

    The client starts this command, calls `start_task` for the problem statement, and uses the tools of the environment.
    `submit` ends the episode. Each server plays one episode and records it in a run folder of its own. With --port, you
    start the command; address and token are printed.
    """
    from ..adapters import HttpPlace, serve_mcp  # an extra, which help does not need

    if task_id and "=" in task_id:
        options = [task_id, *(options or [])]
        task_id = None
    given_by = context.get_parameter_source("token")
    if port is None and given_by is not None and given_by.name == "COMMANDLINE":
        raise UsageError("--token needs --port: a client of standard input and output sends no token")
    name, source_options = source_of(source, source_option)
    chosen = task_id or _choose(name, source_options, seed)
    given = {"tools": tools_of(tools), "max_turns": max_turns}
    env = {
        "backend": backend,
        "sandbox_options": parse_sandbox_options(backend, sandbox_option),
        **{field: value for field, value in given.items() if value is not None},
        **parse_pairs("argument", options),
    }
    load_source(name, **source_options).get(chosen)
    plan = Plan(source=name, source_options=source_options, tasks=(chosen,), env=env, policy="mcp", seed=seed or 0)
    run = f"mcp-{chosen.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    place = None
    if port is not None:
        token = token or secrets.token_urlsafe(24)
        place = HttpPlace(port, token)
        open_console().print(f"{place.url}\ntoken: {token}")
        sys.stdout.flush()
    serve_mcp(plan, Path(output or "runs").expanduser() / run, place)


def _choose(source: str, options: JsonObject, seed: int | None) -> str:
    """Return a random task.

    Raises:
        UsageError: The source is empty.
    """
    ids = load_source(source, **options).ids()
    if not ids:
        raise UsageError("the source has no tasks: choose another one, or other arguments of it")
    return ids[random.Random(seed).randrange(len(ids))]

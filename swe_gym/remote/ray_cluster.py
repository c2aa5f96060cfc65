"""Links to Ray actors: connecting to a cluster, and setting up processes on its nodes. Actors end with the driver."""

import asyncio
import contextlib
import functools
import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ..errors import UsageError
from .link import END_TIMEOUT, Host, NodeLost, load_program

NUM_CPUS = 1.0
"""CPUs of an actor."""

PATIENCE = 300.0
"""Seconds in which an actor must start. Nodes of a cloud take minutes to start."""

MOST_CALLS = 10_000
"""Calls of an actor that wait at once."""

CALL_TIMEOUT = 10.0
"""Seconds of a call that only Ray answers."""

MOST_SAID = 500
"""Characters of an error of Ray that are kept."""

SERVICES = ("AGS_", "ANTHROPIC_", "E2B_", "OPENAI_", "TENCENTCLOUD_")
"""Prefixes of environment variables that nodes get from the driver: keys and addresses of services."""

NETWORK = (
    "HF_ENDPOINT HF_HUB_OFFLINE HF_TOKEN SWE_GYM_REGISTRY_MIRRORS ALL_PROXY HTTPS_PROXY HTTP_PROXY NO_PROXY "
    "PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_INDEX_URL PIP_NO_INDEX PIP_PROXY PIP_TRUSTED_HOST"
).split()
"""Environment variables that nodes get from the driver, in upper or lower case: mirrors and proxies."""

CERTIFICATES = "CURL_CA_BUNDLE PIP_CERT REQUESTS_CA_BUNDLE SSL_CERT_DIR SSL_CERT_FILE".split()
"""Environment variables with a path that nodes get from the driver if they have the path."""

TOKEN_FIX = (
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that `ray get-auth-token` prints "
    "on the head node"
)
"""How to get a valid token."""


class Setup(NamedTuple):
    """What a process on a node takes over from the driver.

    Attributes:
        code: Digest of the package's files.
        folder: Working folder. Relative paths mean the same on a node if it has this folder.
        path: Search path of modules. A node uses those of its folders that it has, after its own.
        variables: Environment variables. They may hold keys, so they are neither logged nor written to a file.
    """

    code: str
    folder: str
    path: list[str]
    variables: dict[str, str]

    def __repr__(self) -> str:
        return f"Setup(code={self.code!r}, folder={self.folder!r}, variables={sorted(self.variables)})"

    @classmethod
    def of_this_process(cls, named: Iterable[str] = ()) -> "Setup":
        """Return the setup of the driver.

        Args:
            named: Names of further environment variables.

        Raises:
            UsageError: One of them is not set.
        """
        known = [*NETWORK, *CERTIFICATES]
        names = {name for name in os.environ if name.startswith(SERVICES) or name.upper() in known} | set(named)
        if unset := sorted(names - os.environ.keys()):
            raise UsageError(f"variables: {unset[0]} is not set in this process: set it, or leave it out")
        variables = {name: os.environ[name] for name in sorted(names)}
        return cls(digest_code(), os.getcwd(), sys.path, variables)

    def apply(self) -> None:
        """Set up this process. A variable that the node has itself is kept.

        Raises:
            UsageError: Other code of swe_gym is installed here.
        """
        if self.code != (here := digest_code()):
            raise UsageError(
                f"the code of swe_gym on node {socket.gethostname()} (swe_gym {version('swe-gym')} in {_package()}, "
                f"digest {here[:12]}) is not the driver's (digest {self.code[:12]}): install the same build or commit "
                "on all nodes"
            )
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [entry for entry in self.path if entry not in sys.path and Path(entry).is_dir()]
        own = {name.upper() for name in os.environ}
        for name, value in self.variables.items():
            if name.upper() not in own and (name not in CERTIFICATES or Path(value).exists()):
                os.environ[name] = value


@functools.cache
def digest_code() -> str:
    """Return a digest of the files of the package: source and data, without compiled and hidden files.

    Two commits of one version differ in it; two installations of one build do not.
    """
    digest = hashlib.sha256()
    for path in sorted(_package().rglob("*")):
        name = path.relative_to(_package())
        if path.is_file() and name.suffix != ".pyc" and not any(part.startswith((".", "__pyc")) for part in name.parts):
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _package() -> Path:
    return Path(__file__).parent.parent


def check_cpus(num_cpus: float) -> None:
    """Raise a `UsageError` if Ray could not give this number of CPUs."""
    if num_cpus <= 0 or (num_cpus > 1 and num_cpus != int(num_cpus)):
        raise UsageError(f"num_cpus must be positive, and above 1 a whole number, as Ray demands: {num_cpus:g}")


def connect(address: str = "") -> bool:
    """Connect this program to a Ray cluster. Returns False if it was connected before.

    Args:
        address: Address of the cluster. If empty, RAY_ADDRESS, else the cluster on this machine; if there is none, Ray
            starts one.

    Raises:
        UsageError: The cluster cannot be reached.
    """
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS", "")
    where = f"the Ray cluster {address or 'on this machine'}"
    try:
        _check_reachable(address)
        dashboard = None if address else False
        ray.init(address or None, include_dashboard=dashboard, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        if _is_refused(error):
            mode = os.environ.get("RAY_AUTH_MODE", "not set")
            message = f"{where} refused the authentication token (RAY_AUTH_MODE is {mode}): {TOKEN_FIX}"
            raise UsageError(message) from None
        raise UsageError(f"cannot connect to {where}: {error}") from error
    return True


def _check_reachable(address: str) -> None:
    """Raise an error if nobody answers at "host:port", or refuses the token.

    Ray would try for minutes, and no signal but SIGKILL ends it.

    Raises:
        OSError: Nobody answers.
        ray.exceptions.AuthenticationError: The token is missing or wrong.
    """
    host, _, port = address.rpartition(":")
    if port.isdecimal() and not address.startswith("ray://"):
        socket.create_connection((host.strip("[]"), int(port)), CALL_TIMEOUT).close()
        with contextlib.suppress(ImportError):  # modules of Ray that are not public
            from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
            from ray._raylet import GcsClient

            ensure_token_if_auth_enabled(create_token_if_missing=False)
            GcsClient(address=address)


def _is_refused(error: BaseException | None) -> bool:
    """Return whether a token was refused. Ray tells it in the last cause of its error."""
    while error is not None:
        if isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in str(error):
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def losses() -> Iterator[None]:
    """Raise `NodeLost` for every failure of Ray, except for a call that took too long.

    Errors of an actor's own code are raised as they are.
    """
    try:
        yield
    except ray.exceptions.GetTimeoutError:
        raise
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
        raise NodeLost(" ".join(str(error).split())[:MOST_SAID], reason=type(error).__name__) from error


class HostActor:
    """A host as a Ray actor. Its calls are tasks of one event loop.

    Args:
        program: As in `Launcher.open`.
        lease: As in `Host`.
    """

    def __init__(self, program: str, lease: float | None) -> None:
        self._program, self._lease = program, lease
        self._never = asyncio.Event()  # held here: the loop alone would not keep the call that waits for it

    async def prepare(self, setup: Setup) -> None:
        """Set the process up as the driver's, and start the program.

        Raises:
            UsageError: Other code of swe_gym is installed here.
        """
        setup.apply()
        self._host = Host(load_program(self._program), self._lease)

    async def ask(self, data: bytes) -> bytes:
        """Handle a request."""
        reply: Future[bytes] = Future()
        self._host.handle(data, reply.set_result)
        return await asyncio.wrap_future(reply)

    async def live(self) -> None:
        """Return never: the call fails when the actor ends."""
        await self._never.wait()

    async def end(self) -> None:
        """End the program and the process."""
        self._host.end()


class RayLink:
    """A link to an actor.

    Args:
        program: As in `Launcher.open`.
        setup: What the actor takes over from this process.
        resources: Options of the actor in Ray, such as `num_cpus`.
        name: As in `HostLink`.
        patience: As in `HostLink`.
        lease: As in `Host`.

    Attributes:
        closed: Whether `close` was called.
    """

    def __init__(
        self,
        program: str,
        setup: Setup,
        resources: Mapping[str, Any],
        *,
        name: str,
        patience: float,
        lease: float | None = None,
    ) -> None:
        self.name, self.patience = name, patience
        self.closed = self._lost = False
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": MOST_CALLS, "enable_task_events": False}
        self._actor = ray.remote(**how, **resources)(HostActor).remote(program, lease)
        self._prepared = self._actor.prepare.remote(setup)
        self._life = self._actor.live.remote()

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""
        return not (self._lost or _is_done(self._life))

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply."""
        try:
            with losses():
                ray.get(self._prepared, timeout=timeout)  # calls of an actor with an event loop may overtake each other
                reply: bytes = ray.get(self._actor.ask.remote(data), timeout=timeout)
                return reply
        except NodeLost:
            self._lost = True
            raise

    def close(self) -> None:
        """End the actor. A program that has disconnected from Ray has ended it."""
        self.closed = True
        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                if self.alive and _is_done(self._prepared):
                    ray.get(self._actor.end.remote(), timeout=END_TIMEOUT)
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self._actor, no_restart=True)


def _is_done(call: object) -> bool:
    return bool(ray.wait([call], timeout=0)[0])


class RayLauncher:
    """Starts programs in actors of a Ray cluster, each on the node with the fewest.

    An autoscaler of the cluster sees what waiting actors need.

    Args:
        num_cpus: CPUs of an actor.
        patience: Seconds in which an actor must start. A node that an autoscaler starts must join within them.
        variables: Names of further environment variables that actors get from this process.

    Raises:
        UsageError: An argument is invalid, or the cluster cannot be reached.
    """

    def __init__(
        self, *, num_cpus: float = NUM_CPUS, patience: float = PATIENCE, variables: Sequence[str] = ()
    ) -> None:
        check_cpus(num_cpus)
        self._num_cpus, self._patience = num_cpus, patience
        self._setup = Setup.of_this_process(variables)
        connect()

    @property
    def places(self) -> int:
        """The number of nodes that have cores."""
        return max(1, sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1))

    def open(self, program: str) -> RayLink:
        """Start an actor."""
        name = f"a Ray actor that needs {self._num_cpus:g} free CPUs on one node"
        where = {"num_cpus": self._num_cpus, "scheduling_strategy": "SPREAD"}
        return RayLink(program, self._setup, where, name=name, patience=self._patience)

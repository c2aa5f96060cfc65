"""The program of a worker process: its environments, each with a thread of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from ..envs.tool_env import ToolEnv
from ..errors import SweGymError
from ..sandboxes.pool import WarmPool
from ..spaces import AnyEnv
from .processes import END_TIMEOUT, NUMBER, Facts, Request, pack
from .slot import CallFailed, call_env, make_all, make_pool

PARENT_EVERY = 1.0
"""Seconds between two looks whether the parent is alive: a fork of it may hold the connection open."""


def main(descriptor: int) -> None:
    """Serve a vector environment until its end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    worker = Worker(Connection(descriptor))
    threading.Thread(target=_watch, args=(os.getppid(), worker), daemon=True).start()
    worker.serve()


def _watch(parent: int, worker: Worker) -> None:
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(PARENT_EVERY)
    worker.end()


class Worker:
    """The environments of a worker process.

    Args:
        connection: The connection to the parent.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._slots: list[_EnvThread] = []
        self._pool: WarmPool | None = None

    def serve(self) -> None:
        """Handle requests until the connection ends, then end the process."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = self._read(self._connection.recv_bytes())
                if request is None:
                    continue
                if request.verb == "make":
                    self.reply(request, lambda args=request.args: self._make(*args))  # type: ignore[misc]  # a default binds it
                elif request.verb == "cut":
                    work = self._slots[request.env].cut
                    threading.Thread(target=self.reply, args=(request, work), daemon=True).start()
                else:
                    self._slots[request.env].inbox.put(request)
        self.end()

    def _read(self, data: bytes) -> Request | None:
        """Return a request; None if it cannot be unpickled here. The parent gets the error."""
        try:
            request: Request = pickle.loads(data[NUMBER:])
            return request
        except Exception as error:  # noqa: BLE001  of any kind: classes are imported
            self._send(int.from_bytes(data[:NUMBER]), _packed_error(error))
            return None

    def reply(self, request: Request, work: Callable[[], Any]) -> Any:
        """Do the work of a request and send the result, or the error."""
        value = None
        try:
            value = work()
            data = pack((value, None), f"the result of {request.verb!r}")
        except BaseException as error:  # noqa: BLE001  the parent raises it
            data = _packed_error(error)
        self._send(request.number, data)
        return value

    def _send(self, number: int, data: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(number.to_bytes(NUMBER) + data)

    def end(self) -> None:
        """Close every environment and end the process."""
        closing = [threading.Thread(target=slot.close, daemon=True) for slot in self._slots]
        if self._pool is not None:
            closing.append(threading.Thread(target=self._pool.close, daemon=True))
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(END_TIMEOUT / 2)
        os._exit(0)

    def _make(self, makers: bytes, warm: int) -> list[Facts]:
        envs = make_all(pickle.loads(makers).fn)
        self._pool = make_pool(envs, warm)
        self._slots = [_EnvThread(env, self, self._pool) for env in envs]
        return [Facts(env.observation_space, env.action_space, env.metadata, env.render_mode) for env in envs]


def _packed_error(error: BaseException) -> bytes:
    """Return an error that survives pickling."""
    with contextlib.suppress(Exception):
        data = pickle.dumps((None, error))
        if type(pickle.loads(data)[1]) is type(error):
            return data
    return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


class _EnvThread:
    """An environment and its thread."""

    def __init__(self, env: AnyEnv, worker: Worker, pool: WarmPool | None) -> None:
        self.inbox: SimpleQueue[Request] = SimpleQueue()
        self._env, self._worker, self._pool = env, worker, pool
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            request = self.inbox.get()
            self._worker.reply(request, lambda one=request: self._do(one))  # type: ignore[misc]  # a default binds it

    def _do(self, request: Request) -> Any:
        match request.verb:
            case "reset":
                first = self._env.reset(seed=request.args[0], options=request.args[1])
                self._prepare_next()
                return first
            case "step":
                observation, reward, terminated, truncated, info = self._env.step(request.args[0])
                if terminated or truncated:
                    self._prepare_next()
                return observation, reward, terminated, truncated, info
            case "call":
                result = call_env(self._env, *request.args)
                if isinstance(result, CallFailed):
                    raise result.error
                return result
        return self._env.close()

    def _prepare_next(self) -> None:
        """Start the next sandbox ahead of time, as `Slot` does."""
        if self._pool is not None:
            with contextlib.suppress(SweGymError):
                self._env.get_wrapper_attr("prepare_next")(self._pool)

    def cut(self) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""
        if isinstance(self._env.unwrapped, ToolEnv):
            self._env.unwrapped.close()

    def close(self) -> None:
        """Close the environment while the process ends."""
        with contextlib.suppress(Exception):
            self._env.close()

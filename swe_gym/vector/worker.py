"""The program of a worker: its environments, each with a thread of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from ..envs import ToolEnv
from ..errors import SweGymError, portable
from ..sandboxes import WarmPool
from ..spaces import AnyEnv
from .slot import CallFailed, call_env, make_all, make_pool
from .workers import END_TIMEOUT, Facts, WorkerRequest, pack

Work = Callable[[WorkerRequest], object]


class Worker:
    """The environments of a worker."""

    def __init__(self) -> None:
        self._slots: list[_EnvThread] = []
        self._pool: WarmPool | None = None

    def handle(self, data: bytes) -> Future[bytes]:
        """Start on a request, and return the future reply."""
        reply: Future[bytes] = Future()
        try:
            request: WorkerRequest = pickle.loads(data)
        except Exception as error:  # noqa: BLE001  of any kind: classes are imported. The parent raises it
            reply.set_result(pickle.dumps((None, portable(error))))
            return reply
        if request.verb in ("make", "cut"):  # neither waits for an environment
            work = self._make if request.verb == "make" else self._slots[request.env].cut
            threading.Thread(target=_answer, args=(reply, request, work), daemon=True).start()
        else:
            slot = self._slots[request.env]
            slot.inbox.put((reply, request, slot.do))
        return reply

    def end(self) -> None:
        """Close every environment and end the process."""
        closing = [threading.Thread(target=slot.close, daemon=True) for slot in self._slots]
        if self._pool is not None:
            closing.append(threading.Thread(target=self._pool.close, daemon=True))
        for thread in closing:
            thread.start()
        deadline = time.monotonic() + END_TIMEOUT / 2
        for thread in closing:
            thread.join(max(0.0, deadline - time.monotonic()))
        os._exit(0)

    def _make(self, request: WorkerRequest) -> list[Facts]:
        makers, warm = request.args
        envs = make_all(pickle.loads(makers).fn)
        self._pool = make_pool(envs, warm)
        self._slots = [_EnvThread(env, self._pool) for env in envs]
        return [Facts(env.observation_space, env.action_space, env.metadata, env.render_mode) for env in envs]


def _answer(reply: Future[bytes], request: WorkerRequest, work: Work) -> None:
    """Do the work of a request, and reply with the result or the error."""
    try:
        data = pack((work(request), None), f"the result of {request.verb!r}")
    except BaseException as error:  # noqa: BLE001  the parent raises it
        data = pickle.dumps((None, portable(error)))
    reply.set_result(data)


class _EnvThread:
    """An environment and its thread."""

    def __init__(self, env: AnyEnv, pool: WarmPool | None) -> None:
        self.inbox: SimpleQueue[tuple[Future[bytes], WorkerRequest, Work]] = SimpleQueue()
        self._env, self._pool = env, pool
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            _answer(*self.inbox.get())

    def do(self, request: WorkerRequest) -> object:
        """Return the result of a request, in this environment's thread."""
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
        self._env.close()
        return None

    def _prepare_next(self) -> None:
        """Start the next sandbox ahead of time, as `Slot` does."""
        if self._pool is not None:
            with contextlib.suppress(SweGymError):
                self._env.get_wrapper_attr("prepare_next")(self._pool)

    def cut(self, _request: WorkerRequest) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""
        if isinstance(self._env.unwrapped, ToolEnv):
            self._env.unwrapped.close()

    def close(self) -> None:
        """Close the environment while the process ends."""
        with contextlib.suppress(Exception):
            self._env.close()

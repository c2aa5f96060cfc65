"""Several servers as one sampler: a conversation stays where its prefix is in the cache."""

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from ...errors import PolicyError
from ...rollout.tokens import Completion
from . import TrainGenerator, WeightsLost, announce_learning

logger = logging.getLogger(__name__)

BLOCK = 16
"""Tokens of a block. vLLM caches whole blocks of this size, too."""

MOST_HOMES = 100_000
"""Number of prefixes whose place is remembered."""


class PrefixRouter:
    """Chooses a place for each request: a server, or a data-parallel rank of one.

    A prompt that continues an answer goes to the place of that answer. Any other goes to the place with the fewest open
    requests, or among those to the one with the fewest conversations so far.

    Args:
        places: Number of places.
    """

    def __init__(self, places: int) -> None:
        self._open = [0] * places
        self._begun = [0] * places
        self._homes: collections.OrderedDict[int, int] = collections.OrderedDict()  # hash of a prefix -> place
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def place_of(self, prompt: Sequence[int], down: Collection[int] = ()) -> Iterator[int]:
        """Choose the place of a request, which is open within the `with` block.

        Args:
            prompt: Token ids.
            down: Places that take no requests.
        """
        prefixes = _prefixes(prompt) if len(self._open) > 1 else []
        with self._lock:
            home = next((self._homes[one] for one in reversed(prefixes) if one in self._homes), None)
            if home is None or home in down:
                up = [one for one in range(len(self._open)) if one not in down]
                home = min(up, key=lambda one: (self._open[one], self._begun[one]))
                self._begun[home] += 1
            self._open[home] += 1
        try:
            yield home
        finally:
            with self._lock:
                self._open[home] -= 1

    def remember(self, ids: Sequence[int], place: int) -> None:
        """Keep the place of a prompt with its answer."""
        longest = _prefixes(ids)[-1:] if len(self._open) > 1 else []
        with self._lock:
            for one in longest:
                self._homes[one] = place
                self._homes.move_to_end(one)
            if len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)


def _prefixes(ids: Sequence[int]) -> list[int]:
    """Return a hash of each prefix of whole blocks, the shortest first."""
    found, last = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        last = hash((last, *ids[end - BLOCK : end]))
        found.append(last)
    return found


class ServerGenerator(TrainGenerator, Protocol):
    """A generator that samples from a server.

    Attributes:
        start_timeout: Seconds that a weight sync waits for a server that stopped.
    """

    start_timeout: float

    def is_up(self) -> bool:
        """Return whether the server answers."""
        ...

    def sync_weights(self, version: int, *, wait: bool = True) -> None:
        """Sync the weights; see `TrainGenerator`. Without `wait`, a server that does not answer is an error at once."""
        ...


class RoutedGenerator:
    """Samples from several servers with the same weights.

    A server that loses the weights gets no requests until the next weight sync, which it joins if it answers then. Its
    conversations continue on the others. So does an answer that a server fails to give.

    Args:
        servers: A generator for each server. `close` closes them.
    """

    def __init__(self, servers: Sequence[ServerGenerator]) -> None:
        self._servers = servers
        self._router = PrefixRouter(len(servers))
        self._down: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`.

        Raises:
            WeightsLost: The last server lost the weights.
            PolicyError: No server answered.
        """
        failed: dict[int, PolicyError] = {}
        while True:
            away = self._down.union(failed)
            if failed:
                last = [*failed.values()][-1]
                if len(away) == len(self._servers):
                    raise last
                logger.warning("%s. Its conversations continue on other servers", last)
            with self._router.place_of(prompt, away) as place:
                try:
                    completion = self._servers[place].generate(
                        prompt, max_tokens=max_tokens, temperature=temperature, seed=seed
                    )
                except PolicyError as error:
                    if not self._may_another_answer(place, error):
                        raise
                    failed[place] = error
                    continue
            self._router.remember([*prompt, *completion.token_ids], place)
            return completion

    def _may_another_answer(self, place: int, error: PolicyError) -> bool:
        """Return whether to ask another server after an error. One that lost the weights gets no more requests."""
        if isinstance(error, WeightsLost):
            return self._drop(place)
        return error.reason in ("connection", "server")

    def _drop(self, place: int) -> bool:
        """Send no more requests to a server, unless it is the last one. Returns whether there are others."""
        with self._lock:
            down = self._down | {place}
            if len(down) == len(self._servers):
                return False
            self._down = down
            return True

    def begin_learning(self) -> None:
        """Tell the servers that have the weights; see `TrainGenerator`."""
        for place in range(len(self._servers)):
            if place not in self._down:
                announce_learning(self._servers[place])

    def sync_weights(self, version: int) -> None:
        """Sync the weights to the servers that answer, one after the other; if none does, to the first that does again.

        Raises:
            PolicyError: A server refused them, or none took them in time.
        """
        patience = max(server.start_timeout for server in self._servers)
        deadline = time.monotonic() + patience
        while not (synced := self._sync_those_up(version)):
            if time.monotonic() >= deadline:
                raise PolicyError(
                    f"none of {len(self._servers)} servers has answered for {patience:g} s "
                    "(generation.options.start_timeout). Start one, and run the same command again: the run resumes "
                    "from its last checkpoint",
                    reason="connection",
                )
            if self._closed.wait(0.5):
                raise PolicyError("the generator was closed", reason="closed")
        self._down = frozenset(range(len(self._servers))) - synced

    def _sync_those_up(self, version: int) -> set[int]:
        """Sync the weights to the servers that answer now, and return their places."""
        synced = set()
        for place in [place for place, server in enumerate(self._servers) if server.is_up()]:
            try:
                self._servers[place].sync_weights(version, wait=False)
            except PolicyError as error:
                if error.reason not in ("connection", "timeout"):
                    raise
                logger.warning("%s. It gets no requests until the next weight sync", error)
            else:
                synced.add(place)
        return synced

    def close(self) -> None:
        """Close the generators. Idempotent."""
        self._closed.set()
        for server in self._servers:
            server.close()

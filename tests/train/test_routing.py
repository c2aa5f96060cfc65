"""Conversations stay at their server, and continue elsewhere if it is lost."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("httpx")

from test_vllm import Server  # noqa: E402  only where torch is there

from swe_gym.errors import PolicyError, UsageError  # noqa: E402
from swe_gym.rollout.tokens import Completion  # noqa: E402
from swe_gym.train.config import GenerationConfig  # noqa: E402
from swe_gym.train.generators import WeightsLost, check_options, make_generator  # noqa: E402
from swe_gym.train.generators.routing import BLOCK, PrefixRouter, RoutedGenerator  # noqa: E402
from swe_gym.train.model import PolicyModel  # noqa: E402

TURNS, ANSWER = 8, 40


class Cached:
    """A server with a prefix cache, as vLLM has one: whole blocks of prompts and answers."""

    def __init__(self) -> None:
        self.known: set[tuple[int, ...]] = set()
        self.hits = self.asked = 0
        self.versions: list[int] = []
        self.lost, self.up, self.broken = False, True, False
        self.start_timeout = 0.0

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        if self.lost or not self.up:
            raise WeightsLost("the server stopped")
        self.asked += 1
        if self.broken:
            raise PolicyError("the server is out of memory", reason="server", retryable=True)
        ids = [*prompt, *random.Random(str(prompt)).choices(range(1000), k=ANSWER)]
        cached = max((end for end in range(0, len(prompt) + 1, BLOCK) if tuple(prompt[:end]) in self.known), default=0)
        self.known |= {tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)}
        self.hits += cached
        return Completion(ids[len(prompt) :], [-1.0] * ANSWER, "stop", 0, cached)

    def is_up(self) -> bool:
        return self.up

    def sync_weights(self, version: int, *, wait: bool = True) -> None:  # noqa: ARG002
        if not self.up:
            raise PolicyError("the server has not answered", reason="connection")
        self.lost = False
        self.versions.append(version)

    def close(self) -> None:
        self.versions.append(-1)


def ask(generator: Any, prompt: Sequence[int]) -> Completion:
    said: Completion = generator.generate(prompt, max_tokens=ANSWER, temperature=1.0, seed=None)
    return said


def play(generator: Any, conversations: int) -> None:
    """Play conversations whose turns come in any order; each four begin alike, as the attempts at a task."""
    draw = random.Random(0)
    prompts = {one: [*random.Random(one // 4).choices(range(1000), k=100), one] for one in range(conversations)}
    turns = [one for one in prompts for _ in range(TURNS)]
    draw.shuffle(turns)
    for one in turns:
        prompts[one] += [*ask(generator, prompts[one]).token_ids, *draw.choices(range(1000), k=25)]


def test_two_servers_have_nine_tenths_of_the_prefix_hits_of_one() -> None:
    alone, both, blind = Cached(), [Cached(), Cached()], [Cached(), Cached()]
    play(alone, 40)
    play(RoutedGenerator(both), 40)
    assert sum(one.hits for one in both) >= 0.9 * alone.hits
    assert both[0].asked == pytest.approx(both[1].asked, rel=0.1)

    class AnyServer:
        def generate(self, prompt: Sequence[int], **options: Any) -> Completion:
            return random.choice(blind).generate(prompt, **options)

    play(AnyServer(), 40)
    assert sum(one.hits for one in blind) < 0.9 * alone.hits  # the measure tells the two apart


def test_new_conversations_go_where_the_fewest_requests_are_open() -> None:
    router = PrefixRouter(3)
    with router.place_of([1]) as first, router.place_of([2]) as second, router.place_of([3], down=[second]) as third:
        assert len({first, second}) == 2
        assert third not in (first, second)
    router.remember(range(100), 2)
    for _ in range(3):
        with router.place_of(range(120)) as place:
            assert place == 2
    with router.place_of(range(120), down=[2]) as place:
        assert place != 2


def test_conversations_of_a_lost_server_continue_on_another() -> None:
    servers = [Cached(), Cached()]
    generator = RoutedGenerator(servers)
    prompt = [*range(64), *ask(generator, range(64)).token_ids]
    home = next(one for one in servers if one.asked)
    other = next(one for one in servers if not one.asked)
    home.lost = True
    ask(generator, prompt)
    home.lost = False  # it was restarted with its first weights
    ask(generator, [*prompt, 1])
    assert (home.asked, other.asked) == (1, 2)
    other.lost = True
    with pytest.raises(WeightsLost):  # no server has the weights
        ask(generator, prompt)
    generator.sync_weights(3)
    assert [one.versions for one in servers] == [[3], [3]]


def test_a_weight_sync_leaves_out_servers_that_are_down() -> None:
    servers = [Cached(), Cached()]
    generator = RoutedGenerator(servers)
    servers[0].up = False
    generator.sync_weights(1)
    for start in range(3):
        ask(generator, range(start, 64))
    assert [one.asked for one in servers] == [0, 3]
    servers[1].up = False
    with pytest.raises(PolicyError, match="none of 2 servers has answered"):
        generator.sync_weights(2)
    servers[0].up = servers[1].up = True
    generator.sync_weights(2)
    generator.close()
    assert [one.versions for one in servers] == [[2, -1], [1, 2, -1]]


class Told(Cached):
    """A server of another backend, whose generator wants to know when the trainer learns."""

    told = 0

    def begin_learning(self) -> None:
        self.told += 1


def test_servers_that_have_the_weights_are_told_of_learning() -> None:
    servers = [Told(), Told(), Told()]
    servers[0].up = False
    generator = RoutedGenerator([*servers, Cached()])
    generator.sync_weights(1)
    generator.begin_learning()
    assert [one.told for one in servers] == [0, 1, 1]


class Returning(Cached):
    """A server that answers again when it is asked a third time whether it does."""

    def __init__(self) -> None:
        super().__init__()
        self.start_timeout, self.up, self.polls = 60.0, False, 0

    def is_up(self) -> bool:
        self.polls += 1
        self.up = self.polls > 2
        return self.up


def test_the_first_server_that_comes_back_gets_the_weights() -> None:
    gone, back = Cached(), Returning()
    gone.up = False
    generator = RoutedGenerator([gone, back])
    generator.sync_weights(4)
    assert (gone.versions, back.versions) == ([], [4])
    for start in range(3):
        ask(generator, range(start, 64))
    assert (gone.asked, back.asked) == (0, 3)


def test_a_server_that_fails_costs_no_answer() -> None:
    servers = [Cached(), Cached()]
    generator = RoutedGenerator(servers)
    servers[0].broken = True
    for start in range(4):
        ask(generator, range(100 * start, 100 * start + 64))
    assert servers[1].asked == 4
    servers[1].broken = True
    with pytest.raises(PolicyError, match="out of memory"):
        ask(generator, range(64))
    assert servers[1].asked == 5  # each is asked once
    servers[0].broken = False
    ask(generator, range(64))


WRONG_ADDRESSES = {
    "http://a:8000,http://b:8000": "address 1 of generation.url has a comma",
    "http://a http://me:secret@b": "address 2 of generation.url has a user or password",
    "http://a http://a/v1": "names a server twice",
    "localhost:8000": "is none of a server",
    "http://a:port": "is none of a server",
    "http://[a": "is none of a server",
    " ": "generation.url is blank",
}


@pytest.mark.parametrize("url", WRONG_ADDRESSES)
def test_wrong_addresses_are_told_before_the_model_is_loaded(url: str) -> None:
    with pytest.raises(UsageError, match=WRONG_ADDRESSES[url]) as caught:
        check_options(GenerationConfig(url=url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("backend", ["hf", "scripted"])
def test_backends_without_a_server_take_no_address(backend: str) -> None:
    with pytest.raises(UsageError, match="samples in this process"):
        check_options(GenerationConfig(backend=backend, url="http://a"))


def test_several_addresses_are_several_servers(tiny_lm: Any, tokenizer: Any) -> None:
    model = PolicyModel(tiny_lm)
    with Server() as one, Server() as two:
        urls = f"{one.url} {two.url}/v1"
        options = {"api_key": "k", "args": ["-dp", "auto"]}  # ranks that are no number are not chosen
        generator = make_generator(GenerationConfig(url=urls, options=options), model, tokenizer)
        generator.sync_weights(1)
        assert [server.weights for server in (one, two)] == [1, 1]
        for prompt in ([1] * 20, [2] * 20):
            ask(generator, prompt)
        assert [server.paths().count("POST /v1/completions") for server in (one, two)] == [1, 1]
        generator.close()
        config = GenerationConfig(url=f"{one.url} http://127.0.0.1:9", options={"api_key": "k"})
        with pytest.raises(PolicyError, match="cannot reach"):
            make_generator(config, model, tokenizer)


def test_a_conversation_stays_at_its_data_parallel_rank(tiny_lm: Any, tokenizer: Any) -> None:
    with Server() as server:
        server.tokens_in_tokens_out = True
        options = {"api_key": "k", "data_parallel_size": 2}
        generator = make_generator(GenerationConfig(url=server.url, options=options), PolicyModel(tiny_lm), tokenizer)
        prompts = [[number] * 30 for number in (1, 2)]
        for _ in range(3):
            prompts = [[*prompt, *ask(generator, prompt).token_ids] for prompt in prompts]
        generator.close()
    ranks = [one.headers.get("x-data-parallel-rank") for one in server.requests if one.path.endswith("/generate")]
    assert ranks == [None, *["0", "1"] * 3]  # the first only asks whether the path exists

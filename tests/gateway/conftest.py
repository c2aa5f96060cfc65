"""A session that passes calls on to a scripted server."""

from collections.abc import Iterator

import pytest

from swe_gym.gateway.model_server import ServerSampler
from swe_gym.gateway.session import Limits, Session
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.testing.openai_server import ModelReply, OpenAIServer
from swe_gym.trajectories.trajectory import Prices


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    """A model that always calls the same tool."""
    reply = ModelReply("I do it.", tool_calls=[("bash", '{"command": "ls"}')], reasoning="hm")
    with OpenAIServer(lambda _: reply, model="m") as server:
        yield server


@pytest.fixture
def session(server: OpenAIServer) -> Iterator[Session]:
    """A session whose calls go to `server`, at a dollar for a token of the prompt."""
    prices = Prices(input=1e6, output=0.0)
    options = LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, retries=0, prices=prices)
    sampler = ServerSampler(options)
    yield Session(sampler, limits=Limits(calls=6))
    sampler.close()

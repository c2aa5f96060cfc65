"""The SDK of Anthropic as a client of the gateway."""

import importlib
import os
from typing import Any

import pytest
from gateway_parts import TOOLS, served

from swe_gym.gateway.session import Session

HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "bash", "description": "", "input_schema": TOOLS[0]["function"]["parameters"]}


@pytest.fixture
def anthropic() -> Any:
    """The package, imported by the process that runs the test only: that takes a second."""
    if "anthropic" in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
        return importlib.import_module("anthropic")
    return pytest.importorskip("anthropic")


def test_anthropic_messages(session: Session, anthropic: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    common: dict[str, Any] = {"model": "claude", "max_tokens": 2048, "tools": [TOOL], "thinking": thinking}
    with served(session) as url, anthropic.Anthropic(base_url=url, api_key="any") as client:
        assert [one.id for one in client.models.list()] == ["m"]
        assert client.messages.count_tokens(model="claude", messages=HI).input_tokens > 1
        whole = client.messages.create(**common, messages=HI, system=[{"type": "text", "text": "be"}])
        thought, text, call = whole.content
        assert (thought.thinking, text.text, call.input, whole.stop_reason) == (
            "hm",
            "I do it.",
            {"command": "ls"},
            "tool_use",
        )
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "files"}]}
        told = [*HI, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        with client.beta.messages.stream(**common, messages=told, system="be") as events:
            final = events.get_final_message()
        with pytest.raises(anthropic.BadRequestError, match="not supported"):
            client.messages.create(**common, messages=[{"role": "user", "content": [{"type": "search_result"}]}])
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.id != whole.id
    assert [turn.observation for turn in session.turns] == ["files", ""]
    assert not session.reasons

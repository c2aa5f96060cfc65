"""Play a task with a language model, or with a scripted server in its place.

pip install -e '.[llm]'
python examples/llm_policy.py
python examples/llm_policy.py http://localhost:8000/v1 my-model
"""

import argparse
import json
from contextlib import closing

import gymnasium

from swe_gym import PolicyFactory, make_policies, play
from swe_gym.testing.openai_server import ModelReply, OpenAIServer, in_turn

REPAIR = r"""sed -i -e 's/if len(self._entries) >=/if key not in self._entries and len(self._entries) >=/' \
  -e '/self._entries\[key\] = Entry/a\        self._entries.move_to_end(key)' larder/cache.py"""

SCRIPT = [
    ModelReply("I read the code first.", [("view", '{"path": "larder/cache.py"}')]),
    ModelReply("An update must not evict, and counts as a use.", [("bash", json.dumps({"command": REPAIR}))]),
    ModelReply("Do the tests pass?", [("eval", "{}")]),
    ModelReply("They do.", [("submit", "{}")]),
]


def play_with(policies: PolicyFactory) -> None:
    with gymnasium.make("SWE/Toy-v0", task_id="larder-overwrite-evicts", max_turns=20) as env:
        trajectory = play(env, policies(env, seed=0))
    for turn in trajectory.turns:
        print(f"{turn.thought[:60]:60} {turn.tool} {turn.usage.tokens} tokens")
    print(f"{trajectory.reason}, reward {trajectory.reward}, {trajectory.usage.calls} model calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", nargs="?", help="URL of the server (default: a scripted server)")
    parser.add_argument("model", nargs="?", help="model name at the server")
    chosen = parser.parse_args()
    if chosen.model:
        with closing(make_policies("llm", vars(chosen))) as policies:
            play_with(policies)
        return
    with OpenAIServer(in_turn(*SCRIPT)) as server:
        options = {"base_url": server.base_url, "api_key": server.api_key, "model": server.model}
        with closing(make_policies("llm", options)) as policies:
            play_with(policies)


if __name__ == "__main__":
    main()

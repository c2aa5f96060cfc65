"""Measure the CPU time of the LLM policy without the model, over 50 turns with a scripted server in another process.

python benchmarks/llm_client.py
"""

import subprocess
import sys
import time
from contextlib import closing

from common import show

from swe_gym.envs.swe_env import SweEnv
from swe_gym.rollout.policies import make_policies

TURNS = 50
SERVER = """
import sys
from swe_gym.testing.openai_server import OpenAIServer, Reply
with OpenAIServer(lambda request: Reply("So.", [("bash", '{"command": "ls"}')])) as server:
    print(server.base_url, server.api_key, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    """Measure several lengths of observations."""
    command, rows = [sys.executable, "-c", SERVER], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url, key = server.stdout.readline().split()
        options = {"model": "scripted", "base_url": url, "api_key": key}
        with closing(make_policies("llm", options)) as policies, closing(SweEnv("toy")) as env:
            for characters in (200, 2000, 16_000):
                policy = policies(env)
                policy.reset({})
                used = time.process_time()
                for _ in range(TURNS):
                    policy.act("x" * characters)
                used = time.process_time() - used
                rows.append((f"{characters:,}", f"{1000 * used / TURNS:.1f} ms"))
        server.stdin.close()
    show("LLM policy", ("characters per observation", "CPU time per turn"), rows)


if __name__ == "__main__":
    main()

"""`RemoteEnv`: the same bytes and infos as the environment on the server, also for policies and wrappers."""

import contextlib
import json
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from core_parts import LS, Says
from gymnasium.error import ResetNeeded

if "serve" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("starlette", reason="the server is tested where its packages are installed")

from swe_gym.adapters import remote
from swe_gym.adapters.episodes import Slot, play_episodes
from swe_gym.adapters.remote import RemoteEnv
from swe_gym.adapters.server import EnvServer
from swe_gym.adapters.session import make_env
from swe_gym.errors import SandboxClosed, SandboxStartError, UsageError
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.rollout.policies.gold import ExpertPolicy, GoldPolicy
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.trajectories.trajectory import Trajectory

TASKS = ("larder-overwrite-evicts", "jot-recurring-steps")
ODD = 'What? \ud800 \U0001f600 \x00 {"name": "bash", "arguments": {"command": "printf \'a\\\\001\\\\377\\\\r\\\\n\'"}}'


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with EnvServer(lambda: make_env("SWE/Toy-v0"), port=0, token="secret") as running:
        yield running


def untimed(record: Trajectory) -> dict[str, Any]:
    data = record.model_dump(exclude={"seconds", "env_id", "env"})
    for turn in data["turns"]:
        del turn["seconds"], turn["policy_seconds"]
    return data


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("task_id", TASKS)
def test_the_gold_policy_sees_the_same_bytes_and_infos(server: EnvServer, task_id: str) -> None:
    with contextlib.closing(make_env("SWE/Toy-v0", render_mode="ansi")) as local:
        gold = play(local, GoldPolicy(local), seed=1, options={"task_id": task_id})
        actions = [ODD, *(turn.action for turn in gold.turns)]
        expected = play(local, ScriptedPolicy(actions), seed=1, options={"task_id": task_id})
        with contextlib.closing(RemoteEnv(server.url, token="secret", render_mode="ansi")) as env:
            played = play(env, ScriptedPolicy(actions), seed=1, options={"task_id": task_id})
            assert untimed(played) == untimed(expected)
            assert played.reward == 1.0
            assert env.render() == local.render()
            for kind in ("observation_space", "action_space"):
                assert getattr(env, kind) == getattr(local, kind)
            assert env.action_space.examples == local.get_wrapper_attr("action_space").examples
            assert env.config == {**local.get_wrapper_attr("config"), "render_mode": None}


def test_seeds_options_and_limits_reach_the_server(server: EnvServer) -> None:
    with (
        contextlib.closing(make_env("SWE/Toy-v0")) as local,
        contextlib.closing(pickle.loads(pickle.dumps(RemoteEnv(server.url, token="secret")))) as env,
    ):
        for seed in (5, None):
            assert env.reset(seed=seed) == local.reset(seed=seed)
        assert env.end("tokens") == local.get_wrapper_attr("end")("tokens")
        with pytest.raises(ResetNeeded):
            env.step("late")
        with pytest.raises(UsageError, match="unknown reset option 'tsk'"):
            env.reset(options={"tsk": "x"})
        with pytest.raises(UsageError, match="must be text"):
            env.step(7)  # type: ignore[arg-type]  # on purpose


def test_a_wrong_token_and_a_failed_start_are_told_apart(server: EnvServer) -> None:
    with pytest.raises(UsageError, match=r"missing or wrong token: pass token=.*SWE_GYM_TOKEN"):
        RemoteEnv(server.url, token="wrong").reset()
    fault = {"at": "start", "nth": "every", "error": "SandboxStartError", "reason": "capacity", "retryable": True}
    faulty = {"backend": "fake", "sandbox_options": {"options": {"faults": [fault]}}}
    with EnvServer(lambda: make_env("SWE/Toy-v0", **faulty), port=0) as failing:
        env = RemoteEnv(failing.url)
        with contextlib.closing(env), pytest.raises(SandboxStartError) as failed:
            env.reset()
        assert failed.value.retryable


def test_episodes_are_played_and_retried_as_with_local_sandboxes() -> None:
    made: list[gymnasium.Env[str, str]] = []

    def make() -> gymnasium.Env[str, str]:
        lost = {"at": "exec", "match": "otter", "error": "SandboxLost"}
        faulty = {"backend": "fake", "sandbox_options": {"options": {"faults": [lost]}}} if len(made) == 1 else {}
        made.append(make_env("SWE/Micro-v0", **faulty))
        return made[-1]

    with EnvServer(make, port=0) as server:
        slots = [Slot("micro-1-0", seed=seed) for seed in range(3)]
        episodes = play_episodes(
            slots, lambda: RemoteEnv(server.url), lambda env, _seed: ExpertPolicy(env), workers=1, wall_clock=300
        )
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 1.0]
    assert episodes[0].trajectory.tries == 2  # the server's second environment lost its sandbox
    assert json.loads(episodes[0].trajectory.turns[0].action)["name"]


def test_a_server_that_cannot_be_reached_fails_its_episode_only() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        (episode,) = play_episodes([Slot("a")], lambda: RemoteEnv(url), lambda env, seed: Says())  # noqa: ARG005
    assert (episode.reward, episode.failure) == (None, "SandboxStartError")


def test_closing_while_a_reset_connects_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    real = remote.connect

    def connect(*given: Any, **options: Any) -> Any:
        env.close()
        return real(*given, **options)

    with EnvServer(lambda: make_env("SWE/Micro-v0", backend="fake"), port=0) as server:
        env = RemoteEnv(server.url)
        monkeypatch.setattr(remote, "connect", connect)
        with pytest.raises(SandboxClosed):
            env.reset()
        with pytest.raises(ResetNeeded):
            env.step(LS)
        eventually(lambda: "swe_gym_sessions 0\n" in server.metrics(), 60, "no session is left")


def test_a_server_that_is_lost_twice_at_the_same_step_gives_no_reward() -> None:
    servers: list[EnvServer] = []

    def make() -> RemoteEnv:
        servers.append(EnvServer(lambda: make_env("SWE/Micro-v0", backend="fake"), port=0).__enter__())
        return RemoteEnv(servers[-1].url)

    (episode,) = play_episodes(
        [Slot("micro-1-0")],
        make,
        lambda env, seed: Says(LS, before=lambda: servers[-1].close()),  # noqa: ARG005
    )
    for server in servers:
        server.close()
    assert (episode.reward, episode.failure) == (None, "SandboxLost (server)")
    assert episode.trajectory.tries == 2

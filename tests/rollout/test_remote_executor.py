"""Jobs on nodes: each ends once, whatever happens to its node. Nodes are in this process, or processes."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from node_parts import LocalCluster, wait_for

from swe_gym.curation.validation import validate
from swe_gym.errors import PolicyError, SandboxLost, UsageError
from swe_gym.remote import NodeLost
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.executors import nodes, open_executor
from swe_gym.rollout.executors.nodes import RemoteExecutor
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies.base import PolicyReport
from swe_gym.rollout.pool import DriverLink, EpisodePool, Job
from swe_gym.rollout.progress import Progress
from swe_gym.tasks import load_source
from swe_gym.trajectories.run_folder import FAILED
from swe_gym.trajectories.trajectory import PolicyInfo, Trajectory, Usage

pytestmark = pytest.mark.sample(every=2)

GATES: dict[str, threading.Event] = {}


class Unpicklable(Exception):
    """An error that cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Data(NamedTuple):
    key: str
    number: int

    def make(self, link: DriverLink) -> Job[str]:
        job = Echo(self.key, self.number)
        job.link = link
        return job


class Echo(Job[str]):
    """A job whose key says what it does on its node."""

    link: DriverLink

    def __init__(self, key: str, number: int = 1) -> None:
        super().__init__(key, number)
        self.events: list[object] = []
        self.value: object = None
        self.may_end = threading.Event()

    def work(self) -> Data | None:
        return None if self.key == "here" else Data(self.key, self.number)

    def run(self) -> None:
        verb, _, rest = self.key.partition(" ")
        if verb == "ask":
            self.value = self.link.ask(rest)
        elif verb == "wait":
            rest = rest.strip()  # keys differ
            self.link.emit("started")
            while not (GATES[rest].is_set() or self.may_end.is_set()):
                self.may_end.wait(0.01)
            self.value = f"{self.key}: {self.cancelled}"
        elif verb == "raise":
            raise {"lost": SandboxLost("gone", reason="oom"), "odd": Unpicklable("odd")}[rest]
        else:
            self.value = self.link.once("shared", object) is self.link.once("shared", object)

    def close(self) -> None:
        self.may_end.set()

    def result(self) -> object:
        return self.value

    def take(self, result: Any) -> None:
        self.value = result

    def receive(self, event: Any) -> object:
        if event == "refuse":
            raise PolicyError("no answer", reason="server")
        if event == "lock":
            return threading.Lock()
        self.events.append(event)
        return f"answer to {event}"


@pytest.fixture
def gates() -> Iterator[Callable[[str], threading.Event]]:
    """Gates by name, opened at the end."""
    yield lambda name: GATES.setdefault(name, threading.Event())
    for gate in GATES.values():
        gate.set()
    GATES.clear()


@contextlib.contextmanager
def pool_on(cluster: LocalCluster, **settings: Any) -> Iterator[EpisodePool[str, Echo]]:
    executor = RemoteExecutor(cluster, patience=20.0, look_every=settings.pop("look_every", 3.0))
    with contextlib.closing(executor), EpisodePool(Echo, executor=executor, **{"workers": 99, **settings}) as pool:
        yield pool


def test_results_answers_and_errors_travel() -> None:
    cluster = LocalCluster(a=2, b=2)
    keys = ["x", "y", "ask why", "ask refuse", "raise lost", "raise odd", "ask lock"]
    with pool_on(cluster) as pool:
        jobs = {job.key: job for job in pool.run(keys, raising=False)}
    assert [jobs[key].value for key in keys] == [True, True, "answer to why", None, None, None, None]
    assert repr(jobs["ask refuse"].error) == repr(PolicyError("no answer"))
    assert "cannot pickle" in str(jobs["ask lock"].error)  # and the job does not wait for it
    assert isinstance(lost := jobs["raise lost"].error, SandboxLost)
    assert lost.reason == "oom"
    assert "Unpicklable: odd" in str(jobs["raise odd"].error)
    assert cluster.closed
    assert all(link.gone.is_set() for links in cluster.opened.values() for link in links)


def test_a_node_runs_as_many_jobs_as_it_has_room_for(gates: Callable[[str], threading.Event]) -> None:
    gates("g")
    with pool_on(LocalCluster(a=1, b=2)) as pool:
        jobs = pool.run(["wait g"] * 5)
        threading.Thread(target=lambda: (wait_for(lambda: len(pool.running) == 3), gates("g").set())).start()
        assert len(list(jobs)) == 5


def test_jobs_of_a_lost_node_are_retried_and_its_late_results_ignored(gates: Callable[[str], threading.Event]) -> None:
    gates("g")
    cluster = LocalCluster(a=2)
    with pool_on(cluster, retries=1) as pool:
        jobs = pool.run(["wait g", "wait g"])

        def fail() -> None:
            wait_for(lambda: [job.events for job in list(pool.running)] == [["started"]] * 2)
            cluster.opened["a"][0].cut.set()

        threading.Thread(target=fail).start()
        lost = [next(jobs), next(jobs)]
        assert [(job.lost.reason, job.error) for job in lost if job.lost] == [("Unplugged", None)] * 2
        assert all(pool.retry(job) for job in lost)
        gates("g").set()  # the first copies end too
        assert [(job.number, job.lost) for job in jobs] == [(2, None)] * 2
    assert len(cluster.opened["a"]) == 2
    assert [job.value for job in lost] == [None, None]


@pytest.mark.slow
def test_a_job_that_kills_its_nodes_uses_up_its_own_retries_only(
    gates: Callable[[str], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MAX_DELAY", 0.0)
    cluster = LocalCluster(a=4)
    ended: list[tuple[str, int]] = []
    gates("g"), gates("killer")
    with pool_on(cluster) as pool:

        def has_started(number: int, jobs: int) -> bool:
            """Whether so many jobs run on the node, the killer for the nth time."""
            started = {job.key: job.number for job in list(pool.running) if job.events}
            return len(started) >= jobs and started.get("wait killer") == number

        def kill() -> None:
            for number, jobs in ((1, 4), (2, 4), (3, 1)):
                wait_for(lambda number=number, jobs=jobs: has_started(number, jobs))  # type: ignore[misc]  # defaults bind
                cluster.opened["a"][-1].cut.set()

        threading.Thread(target=kill).start()
        for job in pool.run(["wait killer", "wait g", "wait g ", "wait g  "]):
            if job.lost is None or not pool.retry(job):
                ended.append((job.key, job.number))
            if job.number == 2:
                gates("g").set()
    assert sorted(ended) == [("wait g", 3), ("wait g ", 3), ("wait g  ", 3), ("wait killer", 3)]


@pytest.mark.slow
def test_a_node_that_is_cut_off_ends_its_jobs_itself(gates: Callable[[str], threading.Event]) -> None:
    gates("never")
    cluster = LocalCluster(a=1)
    cluster.lease = 3.0
    with pool_on(cluster) as pool:
        jobs = pool.run(["wait never"])
        threading.Thread(
            target=lambda: (
                wait_for(lambda: pool.running and cluster.opened["a"][0].jobs._running),
                cluster.opened["a"][0].cut.set(),
            )
        ).start()
        assert next(jobs).lost is not None
        assert cluster.opened["a"][0].closed.wait(60)
        assert not cluster.opened["a"][0].jobs._running


def test_a_cluster_is_asked_to_grow_for_the_jobs_that_find_no_room(gates: Callable[[str], threading.Event]) -> None:
    gate, cluster = gates("g"), LocalCluster(a=1)
    with pool_on(cluster, workers=6, look_every=0.01) as pool:
        jobs = pool.run([f"wait g{' ' * number}" for number in range(8)])
        threading.Thread(target=lambda: (wait_for(lambda: 5 in cluster.demanded), gate.set())).start()
        assert len(list(jobs)) == 8
        wait_for(lambda: cluster.demanded[-1] == 0)
    assert max(cluster.demanded) <= 6  # never more than workers


def test_a_cancelled_job_ends_on_its_node(gates: Callable[[str], threading.Event]) -> None:
    gates("never")
    with pool_on(LocalCluster(a=2), wall_clock=0.2, grace=20.0) as pool:
        assert [job.value for job in pool.run(["wait never"])] == ["wait never: wall_clock"]


@pytest.mark.parametrize(
    ("refusal", "error", "message"),
    [
        (NodeLost("no room", reason="full"), NodeLost, r"no node for 0 s \(node a: no room; a job needs 2 cores\)"),
        (UsageError("another version"), UsageError, "another version"),
    ],
)
def test_a_cluster_without_nodes_is_an_error(refusal: Exception, error: type[Exception], message: str) -> None:
    cluster = LocalCluster(a=1)
    cluster.refuse = refusal
    executor = RemoteExecutor(cluster, patience=0.0 if error is NodeLost else 20.0)
    with contextlib.closing(executor):
        wait_for(lambda: executor._problem or "room" in executor._last_loss)
        with pytest.raises(error, match=message), EpisodePool(Echo, workers=1, executor=executor) as pool:
            list(pool.run("x"))


def test_what_cannot_run_on_a_node_is_refused() -> None:
    with pytest.raises(UsageError, match="Echo can run in threads"), pool_on(LocalCluster(a=1)) as pool:
        list(pool.run(["here"]))
    with pytest.raises(UsageError, match="Did you mean 'threads'"), open_executor("thread"):
        pass
    with pytest.raises(UsageError, match="unknown option of executor 'threads': 'address'"):
        open_executor("threads", {"address": "x"}).__enter__()


elsewhere = pytest.mark.parametrize("executor", ["node_parts:local_executor", "process"])


@elsewhere
def test_a_rollout_on_nodes_is_that_in_threads(tmp_path: Path, executor: str) -> None:
    plan = Plan(source="toy", policy="gold", tasks=tuple(load_source("toy").ids()[:2]))
    ours = rollout(plan, tmp_path / "nodes", RolloutOptions(executor=executor))
    theirs = rollout(plan, tmp_path / "threads", RolloutOptions(workers=2))
    assert summary(ours.trajectories()) == summary(theirs.trajectories())
    assert list((tmp_path / "nodes" / "live").iterdir()) == []
    plan = plan.model_copy(update={"env": {"reward": "engine_parts:broken_reward"}, "tasks": (plan.tasks or ())[:1]})
    with pytest.raises(ZeroDivisionError):
        rollout(plan, tmp_path / "broken", RolloutOptions(executor=executor))
    with pytest.raises(UsageError, match="warm=2 needs executor='threads'"):
        rollout(plan, tmp_path / "warm", RolloutOptions(warm=2, executor=executor))


@pytest.mark.slow
def test_the_episodes_of_a_killed_process_are_played_again(tmp_path: Path) -> None:
    gate, tasks = tmp_path / "gate", load_source("toy").ids()[:4]
    plan = Plan(source="toy", policy="node_parts:GatedGold", policy_options={"gate": str(gate)}, tasks=tuple(tasks))
    killed: list[int] = []

    def kill(_: Progress) -> None:
        """Kill both processes while their episodes run, and let those end that come after."""
        if not killed and len(list((tmp_path / "run" / "live").iterdir())) == 3:
            killed.extend(children("swe_gym.remote.link"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            gate.touch()

    options = RolloutOptions(executor="process", workers=3, executor_options={"processes": 2}, retries=0)
    result = rollout(plan, tmp_path / "run", options, on_progress=kill)
    assert len(killed) == 2
    assert {one.task_id for one in result.trajectories()} == set(plan.tasks or ())
    assert {one.reason for one in Trajectory.read(tmp_path / "run" / FAILED)} == {"NodeLost (killed)"}
    assert children("swe_gym.remote.link") == []


def children(named: str) -> list[int]:
    """Return the children of this process whose command line holds some text."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread, or a child of it, has ended
            for pid in map(int, path.read_text().split()):
                found += [pid] if named in Path(f"/proc/{pid}/cmdline").read_text() else []
    return found


def test_mistakes_in_the_options_of_processes_are_named() -> None:
    for options, said in [
        ({"processes": 0}, "processes must be at least 1, not 0"),
        ({"process": 2}, "Did you mean 'processes'"),
        ({"workers": 2}, "unknown option of executor 'process': 'workers'"),
    ]:
        with pytest.raises(UsageError, match=said):
            open_executor("process", options).__enter__()


@pytest.mark.slow
def test_processes_share_the_workers() -> None:
    for workers, processes, rooms in [(4, 2, [2, 2]), (5, 2, [3, 3]), (1, 2, [1])]:
        with open_executor("process", {"processes": processes}, workers=workers) as executor:
            wait_for(lambda executor=executor, rooms=rooms: len(executor._open) == len(rooms))  # type: ignore[misc]
            assert [one.node.room for one in executor._open.values()] == rooms


def summary(records: Iterable[Trajectory]) -> list[Any]:
    """Return what does not depend on the clock."""
    return sorted(
        (one.task_id, one.reward, one.reason, one.verdict and one.verdict.resolved, one.seed, one.tries, _turns(one))
        for one in records
    )


def _turns(record: Trajectory) -> list[Any]:
    return [(turn.action, turn.observation, turn.reward) for turn in record.turns]


class Asking:
    """A policy that is not importable at a node: it lists files, then does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, env: Any, *, seed: int | None = None) -> "Asking":  # noqa: ARG002  a factory too
        return Asking()

    def reset(self, info: Any) -> None:
        assert info["outcome"] == "running"

    def act(self, observation: str) -> str:  # noqa: ARG002  the same each time
        self.asked += 1
        if self.asked > 2:
            raise PolicyError("overloaded", reason="server")
        return '{"name": "listdir", "arguments": {}}'

    def report(self) -> PolicyReport:
        usage = Usage(completion_tokens=7, calls=1)
        messages = ({"role": "user", "content": "?"},) * self.asked
        return PolicyReport(policy=PolicyInfo(name="asking"), usage=usage, messages=messages)

    def close(self) -> None: ...


@elsewhere
def test_a_policy_of_this_process_plays_on_nodes(tmp_path: Path, executor: str) -> None:
    plan = Plan(source="toy", tasks=tuple(load_source("toy").ids()[:1]))
    result = rollout(plan, tmp_path / "run", RolloutOptions(retries=0, executor=executor), policies=Asking())
    assert result.progress.failures == {"PolicyError (server)": 1}
    (record,) = Trajectory.read(tmp_path / "run" / FAILED)
    assert [turn.usage.completion_tokens for turn in record.turns] == [7, 7]
    assert (record.policy.name, record.usage.completion_tokens, len(record.messages)) == ("asking", 21, 3)


@pytest.mark.slow
@elsewhere
def test_tasks_are_validated_on_nodes(source: Any, executor: str) -> None:
    found = {one.task_id: one.status for one in validate(source, times=1, executor=executor)}
    assert found == {one.task_id: one.status for one in validate(source, times=1)}
    assert {"valid", "invalid", "skipped"} <= set(found.values())

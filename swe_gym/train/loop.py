"""The training loop: roll out, evaluate, update, sync the weights, repeat."""

import contextlib
import itertools
import logging
import math
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..envs import EpisodeCheckpoint
from ..errors import TaskError, UsageError
from ..files import write_text
from ..gateway import Renderer
from ..gateway.agents import make_agent
from ..rollout.tokens import ChatTemplate
from ..trajectories import Segment, Trajectory
from ..trajectories.run_folder import LOCK, take_lock
from ..types import JsonObject
from .batch import Batch, find_steps, places_of_tokens, segments_batch
from .checkpoint import Checkpoints, PassRates, RunState, check_folder
from .collect import (
    AsyncCollector,
    Collector,
    PlayedBatch,
    TrainSlot,
    check_tasks,
    episode_rows,
    evaluation_slots,
    number_attempts,
    summarize,
)
from .config import AlgorithmConfig, TrainConfig
from .generators import TrainGenerator, check_options, make_generator
from .generators.weight_sync import check_sleep
from .learner import Learner, OldLogprobs, Targets, load_learner, load_tokenizer, seed_everything
from .log import Log, make_tracker
from .model import explain_writing
from .objective import estimator, explained_variance, gae, gigpo, nonzero_variance, rtmc, tree_grpo, whiten
from .prefixes import Prefixes, find_failed
from .ranks import Ranks, open_ranks
from .sampler import SyncedSampler, TrainingStopped, check_logprob_diff, mismatch, sync_weights
from .sft import resolved_episodes, run_sft

logger = logging.getLogger(__name__)


def make_update(played: PlayedBatch, learner: Learner, config: TrainConfig, state: RunState) -> JsonObject:
    """Compute advantages and take the optimizer steps of one update.

    Returns:
        The metrics to log.

    Raises:
        TrainingStopped: Sampler and trainer differ by more than `generation.max_logprob_diff`.
    """
    algorithm = config.algorithm
    oldest = state.update - algorithm.max_staleness
    metrics = rollout_metrics(played)
    rows = dict(zip(map(id, played.trajectories), metrics["played"], strict=True))
    metrics["stale"] = sum(_find_newest(one, state.update) < oldest for one in played.trajectories)
    varied = _find_varied(played)
    metrics["frac_nonzero_variance"] = float(varied.float().mean()) if len(varied) else 0.0
    played = _without_dropped(played, algorithm)
    batch = _make_batch(played, algorithm, oldest)
    if not batch.tokens:
        return {**metrics, "trained": 0}
    old = learner.compute_logprobs(batch)
    batch, old, played, nonfinite = _drop_nonfinite(batch, old, played, algorithm, oldest)
    metrics.update(mismatch(batch, old), nonfinite=nonfinite, trained=len(batch.episodes.unique()), tokens=batch.tokens)
    if not batch.tokens:
        return metrics
    for index, difference in _mean_differences(batch, old).items():
        rows[id(played.trajectories[index])]["logprob_diff"] = difference
    check_logprob_diff(_same_weights(batch, old, state.update), config.generation.max_logprob_diff, state.update)
    if algorithm.async_rollout:
        metrics |= _staleness(batch, played, algorithm, state.update)
    if algorithm.signed:
        metrics |= count_shared_states(played)
    targets = _targets(algorithm, batch, old, played)
    if old.values is not None and targets.returns is not None:
        metrics["explained_variance"] = explained_variance(old.values, targets.returns)
    return {**metrics, **learner.learn(batch, old, targets, state.shuffle)}


def count_missing(played: PlayedBatch, algorithm: AlgorithmConfig, oldest: int = 0) -> int:
    """Return how many further groups an update should play, by what it has played.

    For `tokens_per_step` these are as many as bring the missing tokens if they have as many as the mean group.
    """
    first, refills = algorithm.prompts_per_step, algorithm.zero_variance_groups == "refill"
    groups = sum(group >= 0 for group in played.all_groups)  # groups that start at a prefix have negative numbers
    counted = _without_dropped(played, algorithm)
    missing = first - (len(set(counted.groups)) if refills else groups)
    if algorithm.tokens_per_step and groups:
        tokens = count_sampled(counted, algorithm, oldest)
        lacking = max(0, algorithm.tokens_per_step - tokens)
        missing = max(missing, math.ceil(lacking * groups / tokens) if tokens else first)
    return max(0, min(missing, (1 + algorithm.max_refills) * first - groups))


def _without_dropped(played: PlayedBatch, algorithm: AlgorithmConfig) -> PlayedBatch:
    """Return the episodes that an update learns from, without those of groups that `zero_variance_groups` drops."""
    drops = algorithm.zero_variance_groups != "keep" and algorithm.advantage != "gae"
    return played.keep(_find_varied(played).tolist()) if drops else played


def count_sampled(played: PlayedBatch, algorithm: AlgorithmConfig, oldest: int = 0) -> int:
    """Return the number of sampled tokens, without masked episodes and tokens of weights before `oldest`."""
    rows = [one.versions for segments in _trained_segments(played, algorithm) for one in segments]
    return sum(row.count(version) for row in rows for version in set(row) if version >= max(0, oldest))


def rollout_metrics(played: PlayedBatch) -> JsonObject:
    """Return the metrics of the episodes themselves. Those that start at a prefix are counted apart."""
    started = [one for one in played.trajectories if not one.parent]
    count = len(started)
    metrics: JsonObject = {"episodes": count, "lost": len(played.lost), "first_lost": next(iter(played.lost), "")}
    metrics["played"] = episode_rows(played.trajectories)
    if grown := sum(grown for _, grown in played.trees):
        metrics["branches"] = grown
    if count:
        turns = [turn for one in started for turn in one.turns]
        metrics |= {
            "reward": sum(one.reward for one in started) / count,
            "turns": len(turns) / count,
            "tokens_per_episode": sum(one.usage.completion_tokens for one in started) / count,
            "frac_cut": sum(map(is_cut, started)) / count,
            **_cache_hits(played),
            "calls_valid": sum(bool(turn.tool) for turn in turns) / len(turns) if turns else math.nan,
        }
    if branches := [one for one in played.trajectories if one.parent]:
        metrics |= {
            "prefix_episodes": len(branches),
            "prefix_turns": sum(one.branch_turn for one in branches) / len(branches),
            "prefix_resolved": sum(one.resolved for one in branches) / len(branches),
            "prefix_tokens_per_episode": sum(one.usage.completion_tokens for one in branches) / len(branches),
        }
    if played.lost_branches:
        metrics |= {"prefix_lost": len(played.lost_branches), "first_prefix_lost": played.lost_branches[0]}
    return metrics


def count_shared_states(played: PlayedBatch) -> JsonObject:
    """Return what the states after the first turns give: the share with a signature, and of those met more than once.

    The start of a task does not count: all episodes of a group share it.
    """
    steps = find_steps(played.trajectories, played.groups, 1.0)
    later = torch.cat([steps.episodes.new_full((1,), -1), steps.episodes[:-1]]) == steps.episodes
    if not later.any():
        return {}
    _, index, counts = torch.unique(steps.states, return_inverse=True, return_counts=True)
    signed = [bool(turn.info.get("signature")) for one in played.trajectories for turn in one.turns[:-1]]
    return {
        "frac_signed": sum(signed) / len(signed),
        "frac_shared_states": float((counts[index] > 1)[later].float().mean()),
    }


def _cache_hits(played: PlayedBatch) -> JsonObject:
    """Return the share of the prompts' tokens that servers had in their caches, if they tell."""
    cached = sum(one.usage.cached_tokens for one in played.trajectories)
    return {"frac_cached": cached / sum(one.usage.prompt_tokens for one in played.trajectories)} if cached else {}


def _find_varied(played: PlayedBatch) -> Tensor:
    """Return which episodes are in a group whose rewards differ, booleans of shape (episodes,)."""
    return nonzero_variance(_rewards(played), torch.tensor(played.groups, dtype=torch.long))


def _rewards(played: PlayedBatch) -> Tensor:
    return torch.tensor([float(trajectory.reward) for trajectory in played.trajectories])


def _mean_differences(batch: Batch, old: OldLogprobs) -> dict[int, float]:
    """Return the mean absolute difference between sampler and trainer for each episode with trained tokens."""
    gap = (old.logprobs - batch.sampler).abs()
    return {int(one): float(gap[batch.episodes == one].mean()) for one in batch.episodes.unique()}


def _find_newest(trajectory: Trajectory, update: int) -> int:
    """Return the version of the newest token; `update` if there is none."""
    return max((version for one in trajectory.segments for version in one.versions), default=update)


def _same_weights(batch: Batch, old: OldLogprobs, update: int) -> float:
    """Return the mean difference of log-probabilities for tokens of the present weights; 0 if there is none."""
    difference = (old.logprobs - batch.sampler)[batch.versions >= update].abs()
    return float(difference.mean()) if len(difference) else 0.0


def _staleness(batch: Batch, played: PlayedBatch, algorithm: AlgorithmConfig, update: int) -> JsonObject:
    """Return the age of the trained tokens in updates, and the share of tokens that were too old."""
    age = (update - batch.versions).float()
    return {
        "staleness_mean": float(age.mean()),
        "staleness_max": int(age.max()),
        "frac_stale_tokens": 1 - batch.tokens / count_sampled(played, algorithm),
    }


def _make_batch(played: PlayedBatch, algorithm: AlgorithmConfig, oldest: int) -> Batch:
    """Return the batch of the episodes. Those that are masked have a number and no tokens."""
    return segments_batch(_trained_segments(played, algorithm), oldest)


def _trained_segments(played: PlayedBatch, algorithm: AlgorithmConfig) -> list[Sequence[Segment]]:
    """Return the segments of each episode to train on."""
    masked = algorithm.cut_episodes == "mask"
    return [() if masked and is_cut(one) else one.trained_segments for one in played.trajectories]


def is_cut(trajectory: Trajectory) -> bool:
    """Return whether a budget such as turns, time or context ended the episode, not what the policy did."""
    return trajectory.outcome == "agent_limit" and trajectory.reason not in ("invalid", "sandbox_lost")


def _drop_nonfinite(
    batch: Batch, old: OldLogprobs, played: PlayedBatch, algorithm: AlgorithmConfig, oldest: int
) -> tuple[Batch, OldLogprobs, PlayedBatch, int]:
    """Drop episodes with a log-probability or value that is not finite."""
    finite = torch.isfinite(old.logprobs)
    if old.values is not None:
        finite &= torch.isfinite(old.values)
    dropped = set(batch.episodes[~finite].tolist())
    if not dropped:
        return batch, old, played, 0
    kept = [index not in dropped for index in range(len(played.trajectories))]
    rest = played.keep(kept)
    return _make_batch(rest, algorithm, oldest), old[torch.tensor(kept)[batch.episodes]], rest, len(dropped)


def _targets(algorithm: AlgorithmConfig, batch: Batch, old: OldLogprobs, played: PlayedBatch) -> Targets:
    rewards, groups = _rewards(played), torch.tensor(played.groups)
    if algorithm.signed:
        steps = find_steps(played.trajectories, played.groups, algorithm.discount)
        if algorithm.advantage == "gigpo":
            found = gigpo(rewards, groups, steps, weight=algorithm.step_weight)
        else:
            found = rtmc(rewards, groups, steps, prior=algorithm.value_prior)
        return Targets(found[places_of_tokens(steps, batch)])
    if algorithm.advantage == "tree_grpo":
        return Targets(share_with_roots(tree_grpo(rewards, groups, _trees(played)), batch, played))
    if algorithm.advantage != "gae":
        return Targets(estimator(algorithm.advantage)(rewards, groups)[batch.episodes])
    assert old.values is not None
    advantages, returns = torch.zeros(batch.tokens), torch.zeros(batch.tokens)
    for episode in range(len(rewards)):
        where = (batch.episodes == episode).nonzero()[:, 0]
        if len(where):
            earned = torch.zeros(len(where))
            earned[-1] = rewards[episode]
            advantages[where], returns[where] = gae(
                earned, old.values[where], gamma=algorithm.gamma, gae_lambda=algorithm.gae_lambda
            )
    return Targets(whiten(advantages) if algorithm.whiten else advantages, returns)


def _trees(played: PlayedBatch) -> Tensor:
    return torch.tensor([tree for tree, _ in played.trees], dtype=torch.long)


def share_with_roots(advantages: Tensor, batch: Batch, played: PlayedBatch) -> Tensor:
    """Return the advantage of each token, shape (tokens,): the sum over the episodes that it is part of.

    The tokens before a branch are also those of the episode that it continues, and are trained there. An episode
    without tokens in the batch, such as a masked one, adds nothing to them.

    Args:
        advantages: Advantages of the episodes.
        batch: Their tokens.
        played: The episodes and their trees.
    """
    found = advantages[batch.episodes]
    roots = {tree: episode for episode, (tree, grown) in enumerate(played.trees) if not grown}
    trained = set(batch.episodes.tolist())
    for episode, (one, (tree, grown)) in enumerate(zip(played.trajectories, played.trees, strict=True)):
        if grown and tree in roots and episode in trained:
            before = (batch.episodes == roots[tree]) & (batch.answers < one.branch_turn)
            found = found + advantages[episode] * before
    return found


_FREE_DISK = "Free disk space and run the same command again"

EPISODES = "episodes"
"""Folder in the run folder: a trajectory file for each of the last updates and evaluations."""

_EPISODE_FILE = re.compile(r"(?:update|evaluation)-([0-9]+)")

REFERENCE = "reference.pt"
"""File in the run folder: the weights after SFT, if the loss has a KL penalty."""


class Trainer:
    """A training run. It resumes from the last checkpoint of its run folder.

    Args:
        config: The configuration.
        ranks: The processes that train; by default this one alone.

    Raises:
        UsageError: The run folder holds a run of another configuration, or the configuration names something missing.
        MissingDependency: transformers or vLLM is not installed.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks | None = None) -> None:
        self.config = config
        self._ranks = ranks or Ranks()
        self.folder = Path(config.run.output)
        self.checkpoints = Checkpoints(self.folder, config.run.keep)
        check_folder(self.folder, self.checkpoints, config)
        check_tasks(config)  # before the model, which takes longer
        rates = PassRates.recorded(config.algorithm.pass_rates)
        check_options(config.generation)
        check_sleep(config)
        if config.env.agent:
            make_agent(config.env.agent, config.env.agent_options)
        self.log = Log(self.folder)
        values = config.model_dump(mode="json")
        try:
            for name in config.run.trackers:
                self.log.trackers.append(make_tracker(name, self.folder, values))
            self._load_model()
        except BaseException:
            self.log.close(failed=True)
            raise
        self.state = RunState(config.run.seed)
        self.state.rates = rates
        self.state.prefixes = Prefixes(ignore=config.collect.ignore)
        self._generator: SyncedSampler | None = None
        self._ahead: AsyncCollector | None = None
        self._warned: set[str] = set()
        self._taken: list[int] = []  # groups of the update, in the order in which they were taken
        self._repeated: dict[int, list[int]] = {}  # update -> these, for updates after the checkpoint

    def _load_model(self) -> None:
        config = self.config
        seed_everything(config.run.seed)
        self.tokenizer = load_tokenizer(config.model.path)
        self.template = ChatTemplate(self.tokenizer)
        if config.env.agent:
            Renderer(self.template, config.generation.tool_call_style)  # before the weights are loaded
        self.learner = load_learner(config, self._ranks)
        self.model = self.learner.whole_model()

    def run(self) -> None:
        """Train to the end. A killed run resumes with the next call.

        Raises:
            UsageError: Another process trains in this folder.
            TrainingStopped: Too many episodes were lost, or sampler and trainer do not agree.
            PolicyError: The generator failed.
        """
        failed = True
        try:
            with take_lock(self.folder / LOCK):
                check_folder(self.folder, self.checkpoints, self.config)
                write_text(self.folder / "config.json", self.config.model_dump_json(indent=2) + "\n")
                self._train()
            failed = False
        finally:
            if self._generator is not None:
                self._generator.close()
            self.log.close(failed=failed)

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder.

        Raises:
            UsageError: There is no room; the checkpoints stay.
        """
        with explain_writing("the trained model", folder, _FREE_DISK):
            self.model.export(folder, self.tokenizer)

    def _train(self) -> None:
        resumed = self.state.resume(self.checkpoints, self.learner)
        removed = self.log.truncate(self.state.update if resumed else -1)
        self._remove_episodes(range(self.state.update + 1 if resumed else 0))
        if resumed:
            logger.info("resuming %s after update %d", self.folder, self.state.update)
            self._repeated = {line["update"]: line["groups"] for line in removed if "groups" in line}
        # A server that does not start costs no SFT.
        generator = self._generator = SyncedSampler(make_generator(self.config.generation, self.model, self.tokenizer))
        if not resumed:
            if self.config.collect.demonstrations:
                shown = resolved_episodes(self.config.collect.demonstrations, setting="collect.demonstrations")
                self.state.prefixes.add_demonstrations(shown)
            (self.folder / REFERENCE).unlink(missing_ok=True)  # left by a run without a checkpoint
            if self.config.sft.trajectories or self.config.sft.episodes:
                generator.begin_learning()
            self._sft()
            self._save()
        if self.config.algorithm.kl_coef > 0 and (self.folder / REFERENCE).exists():
            self.learner.load_reference(self.folder / REFERENCE)
        with self._collectors(generator) as (train, held_out):
            self._sync_weights(generator)
            if not self.log.has("evaluation"):
                self._evaluate(held_out)
            with self._episodes_in_flight(train):
                self._loop(train, held_out, generator)

    def _loop(self, train: Collector, held_out: Collector, generator: SyncedSampler) -> None:
        done = self._is_done()
        while not done:
            self._update(train, generator)
            if self.config.run.evaluate_every and self.state.update % self.config.run.evaluate_every == 0:
                self._evaluate(held_out)
            done = self._is_done()
            if done or self.state.update % self.config.run.checkpoint_every == 0:
                self._save()

    def _is_done(self) -> bool:
        limit = self.config.run.minutes
        return self.state.update >= self.config.run.updates or bool(limit and self.state.minutes >= limit)

    @contextlib.contextmanager
    def _collectors(self, generator: TrainGenerator) -> Iterator[tuple[Collector, Collector]]:
        parts = (self.config.env, self.config.generation, generator, self.template)
        signed, ignore = self.config.algorithm.signed, self.config.collect.ignore
        with contextlib.closing(Collector(*parts, self.config.env.train, signed=signed, ignore=ignore)) as train:
            if not self.config.run.evaluate_every:
                yield train, train
                return
            with contextlib.closing(Collector(*parts, self.config.env.held_out)) as held_out:
                yield train, held_out

    @contextlib.contextmanager
    def _episodes_in_flight(self, train: Collector) -> Iterator[None]:
        """Play training episodes in the background if `async_rollout` is set."""
        if not self.config.algorithm.async_rollout or self._is_done():
            yield
            return
        with contextlib.closing(AsyncCollector(train, self.config.generation.temperature)) as self._ahead:
            slots, ends = zip(*self.state.in_flight, strict=True) if self.state.in_flight else ((), ())
            if slots:
                finished = sum(end is not None for end in ends)
                self.log.add("resume", self.state.update, restarted=len(slots) - finished, finished=finished)
            self._ahead.add(slots, ends)
            yield

    def _sft(self) -> None:
        """Fine-tune, and keep the result as the reference of the KL penalty: a resumed run has no other copy."""
        trained = run_sft(self.config, self.learner, self.template, self.tokenizer.eos_token_id, self.log)
        if trained and self.config.algorithm.kl_coef > 0:
            partial, state = self.folder / "reference.part", self.learner.state()["model"]
            with explain_writing("the reference of the KL penalty", partial, _FREE_DISK):
                torch.save(state, partial)
            partial.replace(self.folder / REFERENCE)

    def _sync_weights(self, generator: SyncedSampler) -> float:
        limit = self.config.generation.max_logprob_diff
        return sync_weights(generator, self.learner, self.template, version=self.state.update, limit=limit)

    def _update(self, train: Collector, generator: SyncedSampler) -> None:
        started, busy = time.monotonic(), generator.busy_seconds()
        self.learner.seconds.update(dict.fromkeys(self.learner.seconds, 0.0))
        played = self._collect(train)
        waited = time.monotonic() - started
        generator.begin_learning()
        syncing = time.monotonic() - started - waited
        metrics = make_update(played, self.learner, self.config, self.state)
        self._warn_of_lonely_states(metrics)
        self.state.update += 1
        self._keep_episodes("update", played)
        learning = dict(self.learner.seconds)  # without the forward pass of the weight-sync check
        learned = time.monotonic()
        metrics["sync_logprob_diff"] = self._sync_weights(generator)
        syncing += time.monotonic() - learned
        whole = time.monotonic() - started
        metrics["rollout_idle_frac"] = max(0.0, 1 - (generator.busy_seconds() - busy) / whole)
        metrics["train_idle_frac"] = waited / whole
        if self._ahead is not None:
            metrics["groups"] = self._taken
        metrics["seconds"] = {
            **played.seconds,
            **learning,
            "waited": waited,
            "weight_sync": syncing,
            "update": whole,
        }
        self.log.add("update", self.state.update, minutes=self.state.minutes, **metrics)

    def _warn_of_lonely_states(self, metrics: JsonObject) -> None:
        """Warn if step credit does nothing."""
        if metrics.get("frac_shared_states") == 0:
            self._warn_once(
                "no state after the first turns was met twice in a group (%.0f %% have a signature), so advantage %r "
                "compares whole episodes. Exclude text that differs each time by collect.ignore, or raise "
                "algorithm.group_size",
                100 * metrics["frac_signed"],
                self.config.algorithm.advantage,
            )

    def _warn_of_few_tokens(self, played: PlayedBatch) -> None:
        """Warn if an update ended below `tokens_per_step`."""
        algorithm = self.config.algorithm
        oldest = self.state.update - algorithm.max_staleness
        tokens = count_sampled(_without_dropped(played, algorithm), algorithm, oldest)
        if tokens < algorithm.tokens_per_step:
            self._warn_once(
                "update %d has %d tokens, fewer than algorithm.tokens_per_step = %d, after as many groups as it may "
                "have: raise algorithm.max_refills or algorithm.prompts_per_step",
                self.state.update + 1,
                tokens,
                algorithm.tokens_per_step,
            )

    def _warn_once(self, message: str, *values: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message, *values)

    def _collect(self, train: Collector) -> PlayedBatch:
        """Return the episodes of one update: play them, or take groups that are complete.

        Raises:
            TrainingStopped: Too many of them were lost.
        """
        played = self._play(train) if self._ahead is None else self._take(train, self._ahead)
        count = sum(not one.parent for one in played.trajectories) + len(played.lost)
        if len(played.lost) > self.config.run.max_failed * count:
            raise TrainingStopped(
                f"update {self.state.update + 1}: the infrastructure lost {len(played.lost)} of {count} "
                f"episodes, more than run.max_failed allows; the first failure: {played.lost[0]}. Remove its cause and "
                "run the same command again: it resumes from the last checkpoint"
            )
        self._warn_of_few_tokens(played)
        return played

    def _take(self, train: Collector, ahead: AsyncCollector) -> PlayedBatch:
        """Take groups that are complete; first those of an update, then one at a time until it has its tokens.

        An update that is repeated takes the same ones.
        """
        algorithm, played = self.config.algorithm, PlayedBatch.of([], {})
        oldest = self.state.update - algorithm.max_staleness
        before = self._repeated.pop(self.state.update + 1, [])
        self._taken = []
        while left := len(before) - len(self._taken) if before else count_missing(played, algorithm, oldest):
            waiting = (1 + algorithm.max_staleness) * algorithm.prompts_per_step - ahead.groups
            ahead.add(self.state.draw(train.task_ids, waiting, algorithm.group_size))
            count = 1 if self._taken else min(left, algorithm.prompts_per_step)
            more = ahead.take(count, before[len(self._taken) :][:count])
            self._taken += sorted(more.all_groups)
            played = played.join(more)
        return played

    def _play(self, train: Collector) -> PlayedBatch:
        """Play groups, and further ones if `zero_variance_groups` or `tokens_per_step` says so."""
        algorithm, played = self.config.algorithm, PlayedBatch.of([], {})
        rounds = itertools.count()
        most = 1 + algorithm.max_refills if algorithm.zero_variance_groups == "refill" else 1
        while (missing := count_missing(played, algorithm)) and (algorithm.tokens_per_step or next(rounds) < most):
            drawn = self.state.draw(train.task_ids, missing, algorithm.group_size, algorithm.curriculum)
            unused = 1 + max((tree for tree, _ in played.trees), default=-1)
            slots = [slot._replace(tree=tree) for tree, slot in enumerate(drawn, unused)]
            more = train.play(slots, temperature=self.config.generation.temperature)
            self.state.rates.add(more.trajectories)
            played = played.join(more)
            if self.config.collect.prefixes:
                played = played.join(self._play_prefixes(train, more, algorithm.group_size))
            if self.config.collect.branches:
                played = played.join(self._play_branches(train, more))
        return played

    def _play_branches(self, train: Collector, started: PlayedBatch) -> PlayedBatch:
        """Continue each episode from turns at random, its start among them: Tree-GRPO's expansion of a node."""
        slots = []
        for one, group, (tree, _) in zip(started.trajectories, started.groups, started.trees, strict=True):
            for _ in range(self.config.collect.branches):
                turn = self.state.tasks.randrange(max(1, len(one.turns)))
                try:
                    point = EpisodeCheckpoint.of_record(one, turn, ignore=self.config.collect.ignore) if turn else None
                    if point:
                        train.check_point(point)
                except (UsageError, TaskError) as error:
                    logger.warning("an episode of task %s is not continued: %s", one.task_id, error)
                    continue
                slots.append(TrainSlot(one.task_id, group, self.state.tasks.getrandbits(31), point, tree, grown=True))
        return train.play(slots, temperature=self.config.generation.temperature) if slots else PlayedBatch.of([], {})

    def _play_prefixes(self, train: Collector, started: PlayedBatch, size: int) -> PlayedBatch:
        """Play the groups that failed and have no gradient again, from points of earlier successes of their tasks."""
        prefixes = self.state.prefixes
        prefixes.add(started.trajectories)
        varied = {started.groups[index] for index in _find_varied(started).nonzero()[:, 0].tolist()}
        failed = find_failed(started.trajectories, started.groups)
        failed = {group: task_id for group, task_id in failed.items() if group not in varied}
        points = dict(self._find_points(train, set(failed.values())))
        again = {-1 - group: task_id for group, task_id in failed.items() if task_id in points}
        slots = [
            TrainSlot(task_id, group, self.state.tasks.getrandbits(31), points[task_id])
            for group, task_id in again.items()
            for _ in range(size)
        ]
        if not slots:
            return PlayedBatch.of([], {})
        played = train.play(slots, temperature=self.config.generation.temperature)
        for group, task_id in again.items():
            pairs = zip(played.trajectories, played.groups, strict=True)
            ended = [one for one, own in pairs if own == group]
            if ended and all(one.reason == "context" and not one.turns for one in ended):
                prefixes.forget(task_id, "its prefix fills generation.max_context")
            elif not ended:
                prefixes.forget(task_id, "no episode from its prefix could be played; the log has first_prefix_lost")
            else:
                prefixes.steer(task_id, [one.resolved for one in ended])
        return played

    def _find_points(self, train: Collector, task_ids: Iterable[str]) -> Iterator[tuple[str, EpisodeCheckpoint]]:
        """Yield the tasks with an earlier success, and the point at which an episode of each starts."""
        prefixes = self.state.prefixes
        for task_id in sorted(prefixes.found.keys() & task_ids):
            try:
                point = prefixes.point(task_id)
                train.check_point(point)
            except (UsageError, TaskError) as error:
                prefixes.forget(task_id, str(error))
            else:
                yield task_id, point

    def _evaluate(self, held_out: Collector) -> None:
        if not self.config.run.evaluate_every:
            return
        evaluation, started = self.config.evaluation, time.monotonic()
        slots = evaluation_slots(held_out.task_ids, evaluation)
        played = held_out.play(slots, temperature=evaluation.temperature)
        metrics = summarize(played, ks=sorted({1, evaluation.attempts}))
        self._keep_episodes("evaluation", played)
        seconds = time.monotonic() - started
        self.log.add("evaluation", self.state.update, minutes=self.state.minutes, seconds=seconds, **metrics)

    def _keep_episodes(self, event: str, played: PlayedBatch) -> None:
        """Write the episodes of an update or evaluation, and remove those of old ones. They are not worth the run."""
        last = self.config.run.keep_episodes
        if not last:
            return
        path = self.folder / EPISODES / f"{event}-{self.state.update}.jsonl"
        lines = [line for one in number_attempts(played.trajectories) for line in one.to_lines()]
        try:
            path.parent.mkdir(exist_ok=True)
            write_text(path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            logger.warning("the episodes of %s are not kept: %s", path.stem, error)
        self._remove_episodes(range(self.state.update - last + 1, self.state.update + 1))

    def _remove_episodes(self, kept: Container[int]) -> None:
        """Remove the episodes of all updates and evaluations but some. Other files stay."""
        try:
            for path in (self.folder / EPISODES).glob("*.jsonl"):
                named = _EPISODE_FILE.fullmatch(path.stem)
                if named and int(named[1]) not in kept:
                    path.unlink()
        except OSError as error:
            logger.warning("old episodes are not removed: %s", error)

    def _save(self) -> None:
        started = time.monotonic()
        self.state.in_flight = self._ahead.in_flight() if self._ahead is not None else []
        self.state.save(self.checkpoints, self.learner)
        seconds = time.monotonic() - started
        self.log.add("checkpoint", self.state.update, minutes=self.state.minutes, seconds=seconds)


def train(config: TrainConfig) -> Path:
    """Run a configuration to its end and export the model.

    Started by torchrun, all processes call it: the first runs the training, the others compute with it.

    Returns:
        The Hugging Face folder of the trained model.

    Raises:
        UsageError: The configuration names something missing or contradicts the run folder.
        TrainingStopped: Training cannot continue.
        PolicyError: The generator failed.
    """
    folder = Path(config.run.output) / "model"
    with open_ranks(config.model) as ranks:
        if ranks.rank > 0:
            ranks.follow(load_learner(config, ranks))
            return folder
        trainer = Trainer(config, ranks)
        trainer.run()
    trainer.export(folder)
    return folder

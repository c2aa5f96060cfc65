"""The training loop: play, judge, learn, hand over the weights; again. What a run is stands in `TrainConfig`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..atomic import write_text
from ..errors import MissingDependency, SweGymError, UsageError
from ..rollout.tokens import ChatTemplate, Conversation
from ..trajectories.run_folder import LOCK, differences, take_lock
from .advantages import estimator, explained_variance, gae, informative, whiten
from .batch import Batch, make_batch, segments_batch
from .checkpoint import Checkpoints
from .collect import Collector, Played, Slot, task_ids
from .config import TrainConfig, make_config
from .evaluate import summarize
from .generators import TrainGenerator, make_generator
from .learner import Learner, Seen, Targets, mismatch
from .log import Log
from .model import PolicyModel, load_model
from .trackers import make_tracker
from .warm_start import Form, demonstrations, imitate, in_tokens, own_best

_PROBE = "What is two and two?"
"""Asked after every hand-over of weights."""

REFERENCE = "reference.pt"
"""In the run folder, the weights behind the warm start, where the loss holds a divergence from them."""


class TrainingStopped(SweGymError):
    """The run cannot go on; the message says why. The last checkpoint is whole."""


class Trainer:
    """One run, from its configuration to its last checkpoint; goes on where an earlier one stopped.

    Args:
        config: The run.

    Raises:
        UsageError: The folder holds a run of another configuration, or something of the configuration is not there.
        MissingDependency: transformers or vLLM is not installed.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = Path(config.run.output)
        self.checkpoints = Checkpoints(self.folder, config.run.keep)
        self._check_folder()
        _check_tasks(config)  # what is wrong with them is heard before a model is loaded
        values = config.model_dump(mode="json")
        with contextlib.ExitStack() as begun:  # who was told of a run hears of its end, also where no model comes up
            trackers = [
                begun.enter_context(contextlib.closing(make_tracker(name, self.folder, values)))
                for name in config.run.trackers
            ]
            self._load_model(config)
            begun.pop_all()
        self.log = Log(self.folder, trackers)
        self.update = 0
        self._minutes_before = 0.0
        self._started = time.monotonic()
        self._cursor = random.Random(config.run.seed)  # draws the tasks; its state is in the checkpoint
        self._shuffle = torch.Generator().manual_seed(config.run.seed)
        self._waiting: Played | None = None
        self._generator: TrainGenerator | None = None

    def _load_model(self, config: TrainConfig) -> None:
        _seed(config.run.seed)
        torch.set_float32_matmul_precision(config.model.matmul)
        device = _device(config.model.device)
        self.tokenizer = _load_tokenizer(config.model.path)
        self.template = ChatTemplate(self.tokenizer)
        self.model = _load(config).to(device)
        self.model.check()
        self._reference = _load(config).to(device).requires_grad_(False).eval() if config.algorithm.kl else None
        self.learner = Learner(self.model, config.optim, config.algorithm, self._reference)

    # --- a run ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the configuration is content. Safe to be killed at any moment and called again.

        Raises:
            UsageError: Another process trains in this folder.
            TrainingStopped: Too many episodes were lost, or the weights did not arrive where tokens are sampled.
            PolicyError: The generator failed.
        """
        try:
            with take_lock(self.folder / LOCK):
                self._check_folder()
                write_text(self.folder / "config.json", self.config.model_dump_json(indent=2) + "\n")
                self._train()
        finally:
            if self._generator is not None:
                self._generator.close()
            self.log.close()

    def _train(self) -> None:
        resumed = self._resume()
        if not resumed:
            (self.folder / REFERENCE).unlink(missing_ok=True)  # of a run that came to no checkpoint
            self._warm_start()
        self._load_reference()
        generator = self._generator = make_generator(self.config.generation, self.model, self.tokenizer)
        with self._collectors(generator) as (train, held_out):
            self._push()
            if not resumed:
                self._evaluate(held_out)
                self._save()
            over = self._over()
            while not over:
                self._one_update(train)
                if self.config.run.evaluate_every and self.update % self.config.run.evaluate_every == 0:
                    self._evaluate(held_out)
                over = self._over()
                if over or self.update % self.config.run.checkpoint_every == 0:
                    self._save()

    def _check_folder(self) -> None:
        """Refuse to go on with a run of another configuration. One without a checkpoint is begun anew, as whatever.

        How long to run may differ, as a run may be prolonged, and who is told of it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.json"
        if self.checkpoints.last() is None or not path.exists():
            return
        before = make_config(json.loads(path.read_text()))  # newer fields have their defaults
        changed = "; ".join(differences(_comparable(before), _comparable(self.config)))
        if changed:
            raise UsageError(
                f"{self.folder} holds a run of another configuration ({changed}): go on with that one, or choose "
                "another run.output"
            )

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""
        self.model.export(folder, self.tokenizer)

    def _over(self) -> bool:
        limit = self.config.run.minutes
        return self.update >= self.config.run.updates or bool(limit and self._minutes() >= limit)

    def _minutes(self) -> float:
        return self._minutes_before + (time.monotonic() - self._started) / 60

    @contextlib.contextmanager
    def _collectors(self, generator: TrainGenerator) -> Iterator[tuple[Collector, Collector]]:
        parts = (self.config.env, self.config.generation, generator, self.template)
        with contextlib.closing(Collector(*parts, self.config.env.train)) as train:
            if not self.config.run.evaluate_every:
                yield train, train
                return
            with contextlib.closing(Collector(*parts, self.config.env.held_out)) as held_out:
                yield train, held_out

    def _warm_start(self) -> None:
        warm = self.config.warm_start
        if warm.trajectories:
            found = own_best(warm.trajectories, warm.per_task)
        elif warm.episodes:
            found = demonstrations(self.config.env, warm.policy, self._demonstrated(warm.episodes))
        else:
            return
        form, most = Form.of(self.config.env), self.config.generation.max_context
        rows = in_tokens(found, self.template, self.tokenizer.eos_token_id, form, most)
        tasks = len({one.task_id for one in rows})
        self.log.add("demonstrations", 0, episodes=len(rows), tasks=tasks, too_long=len(found) - len(rows))
        optim = self.config.optim.model_copy(update={"lr": warm.lr, "warmup": 0})
        learner = Learner(self.model, optim, self.config.algorithm)  # its optimizer's memory is not the run's
        imitate(learner, rows, warm, self.log, self.config.run.seed)
        self._keep_reference()

    def _keep_reference(self) -> None:
        """What training starts with is what it is held to; a run that goes on has no other trace of it."""
        if self._reference is not None:
            partial = self.folder / "reference.part"
            torch.save(self.learner.state()["model"], partial)
            partial.replace(self.folder / REFERENCE)

    def _load_reference(self) -> None:
        path = self.folder / REFERENCE
        if self._reference is not None and path.exists():
            self._reference.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), strict=False)

    def _demonstrated(self, count: int) -> list[str]:
        """Tasks of the training range, drawn without touching the cursor of training."""
        ids = task_ids(self.config.env, self.config.env.train)
        draw = random.Random(f"warm start {self.config.run.seed}")
        return [ids[draw.randrange(len(ids))] for _ in range(count)]

    # --- one update -------------------------------------------------------------------------------------

    def _one_update(self, train: Collector) -> None:
        started = time.monotonic()
        self.learner.seconds = dict.fromkeys(self.learner.seconds, 0.0)
        played = self._waiting or self._play(train)
        waited = time.monotonic() - started
        with self._ahead(train) as following:
            facts = self._learn_from(played)
            waiting = time.monotonic()
            self._waiting = following.result() if following is not None else None
            waited += time.monotonic() - waiting
        self.update += 1
        learning = dict(self.learner.seconds)  # the probe behind a push belongs to the push
        pushing = time.monotonic()
        facts["probe_gap"] = self._push()
        facts["seconds"] = {
            **played.seconds,
            **learning,
            "waited": waited,
            "push": time.monotonic() - pushing,
            "update": time.monotonic() - started,
        }
        self.log.add("update", self.update, minutes=self._minutes(), **facts)

    @contextlib.contextmanager
    def _ahead(self, train: Collector) -> Iterator[concurrent.futures.Future[Played] | None]:
        """The next batch, which is played meanwhile, where that is asked for. Who leaves by an error does not wait."""
        if not self.config.algorithm.overlap:
            yield None
            return
        thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="next-batch")
        try:
            yield thread.submit(self._play, train)
        except BaseException:
            train.close()
            raise
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _push(self) -> float:
        """Hand over the weights, and ask whoever samples how likely a fixed question's answer is.

        Returns:
            The mean difference to what the trainer says of the same answer.

        Raises:
            TrainingStopped: It is so large that the weights did not arrive.
        """
        assert self._generator is not None
        self._generator.push(self.update)
        conversation = Conversation(self.template, [{"role": "user", "content": _PROBE}])
        prompt = conversation.prompt
        conversation.answer(self._generator.generate(prompt, max_tokens=16, temperature=1.0, seed=0), 1.0)
        batch = segments_batch([conversation.segments])
        gap = mismatch(batch, self.learner.look(batch)).get("gap", 0.0)
        self._check_gap(gap)
        return gap

    def _check_gap(self, gap: float) -> None:
        if not gap <= self.config.generation.max_gap:  # also where it is no number
            raise TrainingStopped(
                f"after update {self.update}: sampler and trainer differ by {gap:.2f} in the mean log-probability: "
                "they do not have the same weights, or the sampler does something else to the logits"
            )

    def _play(self, train: Collector) -> Played:
        """The episodes of one update.

        Raises:
            TrainingStopped: Too many of them were lost.
        """
        algorithm = self.config.algorithm
        tasks = [train.task_ids[self._cursor.randrange(len(train.task_ids))] for _ in range(algorithm.tasks)]
        slots = [
            Slot(task_id, group, self._cursor.getrandbits(31))
            for group, task_id in enumerate(tasks)
            for _ in range(algorithm.attempts)
        ]
        played = train.play(slots, temperature=self.config.generation.temperature)
        if len(played.lost) > self.config.run.max_failed * len(slots):
            raise TrainingStopped(
                f"update {self.update + 1}: {len(played.lost)} of {len(slots)} episodes were lost to the "
                f"infrastructure, the first by {played.lost[0]}"
            )
        return played

    def _learn_from(self, played: Played) -> dict[str, Any]:
        """Advantages, and one update by them.

        Returns:
            What to log.
        """
        facts = _describe(played)
        played = self._usable(played, facts)
        rewards, groups = _rewards(played), torch.tensor(played.groups)
        facts["informative"] = float(informative(rewards, groups).float().mean()) if len(rewards) else 0.0
        if self.config.algorithm.uninformative == "drop" and self.config.algorithm.advantage != "gae":
            played = played.keep(informative(rewards, groups).tolist())
        if not any(trajectory.segments for trajectory in played.trajectories):
            return {**facts, "trained": 0}
        batch = make_batch(played.trajectories)
        seen = self.learner.look(batch)
        batch, seen, played, broken = _without_broken(batch, seen, played)
        facts.update(mismatch(batch, seen), broken=broken, trained=len(played.trajectories), tokens=batch.tokens)
        if not batch.tokens:
            return facts
        self._check_gap(facts["gap"])
        targets = self._targets(batch, seen, played)
        if seen.values is not None and targets.returns is not None:
            facts["explained_variance"] = explained_variance(seen.values, targets.returns)
        return {**facts, **self.learner.learn(batch, seen, targets, self._shuffle)}

    def _usable(self, played: Played, facts: dict[str, Any]) -> Played:
        """Without episodes of weights that are too old."""
        oldest = self.update - self.config.algorithm.max_staleness
        fresh = [
            min((v for s in one.segments for v in s.versions if v >= 0), default=self.update) >= oldest
            for one in played.trajectories
        ]
        facts["stale"] = fresh.count(False)
        return played.keep(fresh)

    def _targets(self, batch: Batch, seen: Seen, played: Played) -> Targets:
        algorithm = self.config.algorithm
        rewards = _rewards(played)
        if algorithm.advantage != "gae":
            return Targets(estimator(algorithm.advantage)(rewards, torch.tensor(played.groups))[batch.episodes])
        assert seen.values is not None
        advantages, returns = torch.zeros(batch.tokens), torch.zeros(batch.tokens)
        for episode in range(len(rewards)):
            where = (batch.episodes == episode).nonzero()[:, 0]
            if len(where):
                earned = torch.zeros(len(where))
                earned[-1] = rewards[episode]
                advantages[where], returns[where] = gae(
                    earned, seen.values[where], gamma=algorithm.gamma, lam=algorithm.lam
                )
        return Targets(whiten(advantages) if algorithm.whiten else advantages, returns)

    def _evaluate(self, held_out: Collector) -> None:
        if not self.config.run.evaluate_every:
            return
        evaluation = self.config.evaluation
        draw = random.Random("seeds")  # the same in every evaluation of every run
        slots = [
            Slot(task_id, group, draw.getrandbits(31))
            for group, task_id in enumerate(_held_out_tasks(held_out.task_ids, evaluation.tasks))
            for _ in range(evaluation.attempts)
        ]
        started = time.monotonic()
        played = held_out.play(slots, temperature=evaluation.temperature)
        facts = summarize(played, ks=sorted({1, evaluation.attempts}))
        self.log.add("evaluation", self.update, minutes=self._minutes(), seconds=time.monotonic() - started, **facts)

    # --- what stays on disk -----------------------------------------------------------------------------

    def _save(self) -> None:
        waiting, started = self._waiting, time.monotonic()
        self.checkpoints.save(
            self.update,
            tensors={**self.learner.state(), "shuffle": self._shuffle.get_state()},
            facts={
                "cursor": _plain_state(self._cursor),
                "minutes": self._minutes(),
                "waiting_seconds": waiting.seconds if waiting else None,
                "lost": list(waiting.lost) if waiting else [],
            },
            waiting=list(zip(waiting.groups, waiting.trajectories, strict=True)) if waiting else (),
        )
        self.log.add("checkpoint", self.update, minutes=self._minutes(), seconds=time.monotonic() - started)

    def _resume(self) -> bool:
        """Go on from the last checkpoint, if there is one."""
        checkpoint = self.checkpoints.last()
        if checkpoint is None:
            self.log.go_back_to(-1)
            return False
        state, facts = checkpoint.tensors(), checkpoint.facts
        self.learner.load(state)
        self._shuffle.set_state(state["shuffle"])
        version, internal, gauss = facts["cursor"]
        self._cursor.setstate((version, tuple(internal), gauss))
        if facts["waiting_seconds"] is not None:
            rows = checkpoint.waiting()
            self._waiting = Played(
                trajectories=tuple(trajectory for _, trajectory in rows),
                groups=tuple(group for group, _ in rows),
                lost=tuple(facts["lost"]),
                seconds=facts["waiting_seconds"],
            )
        checkpoint.restore_random(state)
        self.update = checkpoint.update
        self._minutes_before = facts["minutes"]
        self.log.go_back_to(self.update)
        return True


# --- the parts of an update -------------------------------------------------------------------------------


def _describe(played: Played) -> dict[str, Any]:
    """What to log of the episodes themselves."""
    count = len(played.trajectories)
    facts: dict[str, Any] = {"episodes": count, "lost": len(played.lost), "first_lost": next(iter(played.lost), "")}
    if count:
        facts |= {
            "reward": sum(one.reward for one in played.trajectories) / count,
            "turns": sum(len(one.turns) for one in played.trajectories) / count,
            "tokens_per_episode": sum(one.usage.completion_tokens for one in played.trajectories) / count,
            "calls_valid": _share_of_valid_calls(played),
        }
    return facts


def _share_of_valid_calls(played: Played) -> float:
    turns = [turn for one in played.trajectories for turn in one.turns]
    return sum(bool(turn.tool) for turn in turns) / len(turns) if turns else math.nan


def _rewards(played: Played) -> torch.Tensor:
    return torch.tensor([float(trajectory.reward) for trajectory in played.trajectories])


def _without_broken(batch: Batch, seen: Seen, played: Played) -> tuple[Batch, Seen, Played, int]:
    """Leave out episodes for which the model gives no finite number."""
    sound = torch.isfinite(seen.logprobs)
    if seen.values is not None:
        sound &= torch.isfinite(seen.values)
    broken = set(batch.episodes[~sound].tolist())
    if not broken:
        return batch, seen, played, 0
    kept = [index not in broken for index in range(len(played.trajectories))]
    where = torch.tensor(kept)[batch.episodes]
    rest = played.keep(kept)
    shown = Seen(
        seen.logprobs[where],
        None if seen.values is None else seen.values[where],
        None if seen.reference is None else seen.reference[where],
    )
    return make_batch(rest.trajectories), shown, rest, len(broken)


# --- the parts of a run -----------------------------------------------------------------------------------


def _check_tasks(config: TrainConfig) -> None:
    """See that there are tasks, and that what is evaluated on is not trained on."""
    trained = task_ids(config.env, config.env.train)
    if config.run.evaluate_every:
        evaluated = _held_out_tasks(task_ids(config.env, config.env.held_out), config.evaluation.tasks)
        if common := [task_id for task_id in evaluated if task_id in trained]:
            raise UsageError(
                f"env.held_out and env.train share tasks, {common[0]!r} for one, so evaluation would play what was "
                "trained on: give ranges that do not meet, or set run.evaluate_every = 0"
            )


def _held_out_tasks(ids: Sequence[str], count: int) -> list[str]:
    """The same tasks in every evaluation of every run."""
    draw = random.Random("held out")
    return [ids[draw.randrange(len(ids))] for _ in range(count)]


def _comparable(config: TrainConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.model_dump_json())
    for name in ("updates", "minutes", "output", "trackers"):
        del values["run"][name]
    for name in ("url", "options"):
        del values["generation"][name]
    return values


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _load(config: TrainConfig) -> PolicyModel:
    model = config.model
    loaded = load_model(
        model.path,
        dtype=model.dtype,
        value_head=model.value_head,
        detach_value=model.detach_value,
        lora_rank=model.lora_rank,
        gradient_checkpointing=model.gradient_checkpointing,
    )
    loaded.chunk = model.chunk
    return loaded


def _load_tokenizer(path: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependency(f"training needs transformers: pip install 'swe-gym[train]' ({error})") from error
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path {path!r} is no folder of a model, and no model that can be fetched: {error}"
        ) from error


def _plain_state(draw: random.Random) -> list[Any]:
    version, internal, gauss = draw.getstate()
    return [version, list(internal), gauss]


def train(config: TrainConfig) -> Path:
    """Run a configuration to its end.

    Returns:
        The folder of the trained model, in Hugging Face's form.

    Raises:
        UsageError: The configuration does not fit what is there.
        TrainingStopped: The run cannot go on.
        PolicyError: The generator failed.
    """
    trainer = Trainer(config)
    trainer.run()
    folder = trainer.folder / "model"
    trainer.export(folder)
    return folder

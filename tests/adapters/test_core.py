"""The core that adapters share: rows of tokens, and whole episodes."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium
import pytest
from core_parts import END, LS, SUBMIT, MakeEnv, Says, Tokens, bash, scripted_tasks

from swe_gym.adapters.episodes import EpisodeBatch, Row, Slot, play_episodes, segment_row
from swe_gym.errors import PolicyError, UsageError
from swe_gym.rollout.policies.base import Policy
from swe_gym.rollout.tokens import ChatTemplate, Completion, TokenConversation, TokenPolicy

SAID = (
    LS,
    f"<think>\nhm <|im_end|> {{</think>\n\n{LS}",
    f"{LS} and {LS}",
    '{"name": "bash", "arguments": {"command": "echo \\u00e9 <|im_start|>"}}',
    '{"name": "no_such_tool", "arguments": {}}',
    "  \n",
    "",
    "\ud7ff\U0001f600",
    SUBMIT,
)


OBSERVED = ("it says\nno\n", "", "\n", " <think>x</think> <|im_start|>", "</think>\ny", "\ud7ff\U0001f600 é", "z" * 50)


@pytest.fixture
def make_env(tmp_path: Path) -> MakeEnv:
    return scripted_tasks(tmp_path)


class Sampled(NamedTuple):
    prompt: list[int]
    completion: Completion


class Guesses:
    """A sampler of random tokens, some of which are tool calls. It remembers what it sampled."""

    def __init__(self, tokens: Tokens, seed: int) -> None:
        self.tokens, self.chance, self.calls = tokens, random.Random(seed), list[Sampled]()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002  random
        chance = self.chance
        ids = self.tokens.encode(chance.choice(SAID), add_special_tokens=False)
        for _ in range(chance.choice((0, 0, 1, 3))):  # any token at any place, the end token included
            ids.insert(chance.randrange(len(ids) + 1), chance.randrange(END + len(Tokens.texts)))
        ended = chance.random() < 0.7 and len(ids) < max_tokens
        ids = [*ids, END] if ended else ids[:max_tokens]
        number = len(self.calls)
        logprobs = [-(number * 1000 + place + 1) / 7 for place in range(len(ids))]
        completion = Completion(ids, logprobs, "stop" if ended else "length", version=number)
        self.calls.append(Sampled(list(prompt), completion))
        return completion


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("append_only", [False, True], ids=["segments", "append_only"])
@pytest.mark.parametrize("style", ["chatml", "trimming", "forgetful"])
def test_rows_are_what_was_sampled(make_env: MakeEnv, style: str, append_only: bool) -> None:
    tokens, rewritten = Tokens(style), 0
    template, env = ChatTemplate(tokens), make_env()
    for seed in range(334):  # 1,002 episodes in each mode
        sampler, chance = Guesses(tokens, seed), random.Random(-seed)
        policy = TokenPolicy(env, sampler, template, max_tokens=60, max_context=900, append_only=append_only)
        policy.reset({})
        for _ in range(chance.randint(1, 8)):
            try:
                policy.act(chance.choice(OBSERVED))
            except PolicyError:
                break  # the context is full
        rows = [segment_row(segment) for segment in policy.report().segments]
        check_rows(rows, sampler.calls)
        rewritten += len(rows) > 1
        assert not append_only or len(rows) == any(call.completion.token_ids for call in sampler.calls)
    assert (rewritten > 100) == (style == "forgetful" and not append_only)


def check_rows(rows: Sequence[Row], calls: Sequence[Sampled]) -> None:
    """Each sampled token is trained once, in order, and after the very prompt that it was sampled from."""
    sampled = [
        (token, logprob, completion.version)
        for _, completion in calls
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    trained = []
    for row in rows:
        columns = list(zip(row.response_ids, row.mask, row.logprobs, row.versions, strict=True))
        trained += [(token, logprob, version) for token, mask, logprob, version in columns if mask]
        assert all((logprob, version) == (0.0, -1) for _, mask, logprob, version in columns if not mask)
        assert row.mask[0] == row.mask[-1] == 1
    assert trained == sampled
    whole = [row.prompt_ids + row.response_ids for row in rows]
    for prompt, completion in calls:
        grown = [*prompt, *completion.token_ids]
        assert not completion.token_ids or any(ids[: len(grown)] == grown for ids in whole)


# --- whole episodes -----------------------------------------------------------------------------------------------


def test_an_episode_has_the_rows_of_its_sampler(make_env: MakeEnv) -> None:
    tokens, samplers = Tokens("forgetful"), dict[int, Guesses]()

    def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> Policy:
        assert seed is not None
        samplers[seed] = Guesses(tokens, seed)
        return TokenPolicy(env, samplers[seed], ChatTemplate(tokens), seed=seed, max_context=4000)

    slots = [Slot("a", seed) for seed in range(12)]
    episodes = play_episodes(slots, lambda: make_env(max_turns=6), make_policy, workers=4)
    assert {(one.failure, one.reward) for one in episodes} == {("", 1.0)}
    for slot, episode in zip(slots, episodes, strict=True):
        check_rows(episode.rows, samplers[slot.seed or 0].calls)


def test_failures_leave_the_other_of_64_episodes_alone(make_env: MakeEnv) -> None:
    lost = {"at": "exec", "match": "lose|expire", "error": "SandboxLost", "reason": "expired"}
    tries = {17: iter([[bash("lose")], [LS, SUBMIT]]), 23: iter([[bash("expire")]] * 2), 42: iter([[]])}

    def refuse() -> None:
        raise PolicyError("the sampler failed", reason="server")

    def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> Policy:  # noqa: ARG001  the same for all
        lines = next(tries[seed]) if seed in tries else [LS, SUBMIT]
        return Says(*lines) if lines else Says(before=refuse)

    slots = [Slot("ab"[seed % 2], seed) for seed in range(64)]
    episodes = play_episodes(slots, lambda: make_env(lost), make_policy, workers=64)
    assert [(one.trajectory.task_id, one.trajectory.seed) for one in episodes] == slots
    found = [(one.reward, one.failure, one.trajectory.tries) for one in episodes]
    assert found.pop(42) == (None, "PolicyError (server)", 1)
    assert found.pop(23) == (None, "SandboxLost (expired)", 2)
    assert found.pop(17) == (1.0, "", 2)
    assert set(found) == {(1.0, "", 1)}
    assert {one.trajectory.failure for one in episodes} == {""}  # the message may quote the oracle


def test_a_first_prompt_above_the_context_is_left_out(make_env: MakeEnv, caplog: pytest.LogCaptureFixture) -> None:
    tokens = Tokens()
    sampler = Guesses(tokens, seed=0)

    def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> Policy:
        return TokenPolicy(env, sampler, ChatTemplate(tokens), seed=seed, max_context=20)

    (episode,) = play_episodes([Slot("a")], make_env, make_policy)
    assert (episode.reward, episode.failure, episode.rows) == (None, "no turn (context)", [])
    told = [record for record in caplog.records if record.name.startswith("swe_gym.adapters")]  # not those of threads
    assert [record.message for record in told if record.levelname == "WARNING"] == [
        "task a is left out: its first prompt does not fit into the context"
    ]
    assert not sampler.calls


def test_a_mistake_is_raised_before_anything_starts(make_env: MakeEnv) -> None:
    def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> Policy:  # noqa: ARG001  never called
        raise AssertionError

    with pytest.raises(UsageError, match="unknown task 'c'"):
        play_episodes([Slot("a"), Slot("c")], make_env, make_policy, workers=2)
    with pytest.raises(UsageError, match="max_turn"):
        play_episodes([Slot("a")], lambda: make_env(max_turn=1), make_policy)
    with pytest.raises(UsageError, match="must be a SweEnv"):
        play_episodes([Slot("a")], lambda: gymnasium.make("CartPole-v1"), lambda env, seed: Says())  # noqa: ARG005


def test_a_cancelled_batch_starts_no_retry(make_env: MakeEnv) -> None:
    lost = {"at": "exec", "match": "lose", "error": "SandboxLost"}
    batch = EpisodeBatch(
        [Slot("a", 0), Slot("b", 1)],
        lambda: make_env(lost),
        lambda env, seed: Says(bash("lose"), before=batch.cancel),  # noqa: ARG005  the same for all
    )
    first, second = batch.play()
    assert (first.reward, second.reward, second.failure) == (None, None, "cancelled")
    assert (first.trajectory.task_id, second.trajectory.task_id) == ("a", "b")


def test_an_answer_without_all_of_its_log_probabilities_is_refused() -> None:
    conversation = TokenConversation(ChatTemplate(Tokens()), [{"role": "user", "content": "Do it."}], append_only=True)
    with pytest.raises(PolicyError, match="3 tokens and 1 log-probabilities"):
        conversation.answer(Completion([65, 66, END], [-0.5], "stop", 0), 1.0)
    assert conversation.segments == ()

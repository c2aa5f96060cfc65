"""Training uses exactly the sampled tokens, whatever the chat template does."""

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from chat_templates import TEMPLATES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from swe_gym.errors import PolicyError, UsageError
from swe_gym.rollout.episode import play
from swe_gym.rollout.tokens import ChatTemplate, Completion, TokenConversation, TokenPolicy, short_prompt

TURNS = st.lists(
    st.tuples(
        st.lists(st.integers(7, 399), max_size=12),  # special tokens that a model may write
        st.booleans(),  # whether the answer has an end token
        st.one_of(st.text(max_size=30), st.sampled_from(["", " ", "\n", "ok\n", "</think>x", "<|im_end|>"])),
        st.booleans(),  # whether it thinks first
    ),
    min_size=1,
    max_size=6,
)


def using(tokenizer: Any, name: str) -> ChatTemplate:
    tokenizer.chat_template = TEMPLATES[name]
    return ChatTemplate(tokenizer)


def completion(tokenizer: Any, ids: Sequence[int], *, ended: bool, number: int) -> Completion:
    ids = [*ids, tokenizer.eos_token_id] if ended else list(ids)
    logprobs = [-(number * 100 + index + 1) / 1000 for index in range(len(ids))]
    return Completion(ids, logprobs, "stop" if ended else "length", version=number)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS)
def test_each_sampled_token_is_in_one_segment_with_its_logprob(tokenizer: Any, name: str, turns: Any) -> None:
    template = using(tokenizer, name)
    conversation = TokenConversation(template, [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    sampled: list[tuple[int, float, int]] = []
    for number, (ids, ended, observation, thinks) in enumerate(turns):
        ids = [*template.encode("<think>hm</think>"), *ids] if thinks else ids
        answer = completion(tokenizer, ids, ended=ended, number=number)
        before = conversation.prompt
        conversation.answer(answer, 1.0)
        sampled += zip(answer.token_ids, answer.logprobs, [number] * len(answer.token_ids), strict=True)
        grown = [*before, *answer.token_ids]
        count = len(conversation.segments)
        conversation.tell({"role": "user", "content": observation})
        extended = conversation.prompt[: len(grown)] == grown
        assert extended or name == "forgetful" or _rewritten(template, conversation)
        assert extended or len(conversation.segments) == count
    trained = [
        (token, logprob, version)
        for segment in conversation.segments
        for token, logprob, version, one in zip(
            segment.token_ids, segment.logprobs, segment.versions, segment.loss_mask, strict=True
        )
        if one
    ]
    assert trained == sampled


def _rewritten(template: ChatTemplate, conversation: TokenConversation) -> bool:
    """A new segment has the tokens of the rendered conversation."""
    return conversation.prompt == template.encode(template.render(conversation.messages))


@pytest.mark.parametrize(("name", "segments"), [("chatml", 1), ("llama", 1), ("forgetful", 2)])
def test_a_segment_ends_only_if_the_template_rewrites_history(tokenizer: Any, name: str, segments: int) -> None:
    template = using(tokenizer, name)
    conversation = TokenConversation(template, [{"role": "user", "content": "q"}])
    for number, text in enumerate(("<think>long</think>\n{} ", " {}\n", "done")):
        conversation.answer(completion(tokenizer, template.encode(text), ended=number != 1, number=number), 0.8)
        conversation.tell({"role": "user", "content": "it says\nno"})
    assert len(conversation.segments) == segments
    assert {segment.temperature for segment in conversation.segments} == {0.8}
    assert all(segment.loss_mask[-1] == 1 for segment in conversation.segments)


def test_thoughts_are_rendered_once_by_a_template_that_takes_them_from_a_field(tokenizer: Any) -> None:
    template = using(tokenizer, "structured")
    conversation = TokenConversation(template, [{"role": "user", "content": "q"}])
    for number in range(2):
        conversation.answer(
            completion(tokenizer, template.encode("long\n</think>\n\nok"), ended=True, number=number), 1.0
        )
        conversation.tell({"role": "user", "content": "and?"})
    assert conversation.messages[1] == {"role": "assistant", "content": "ok", "reasoning_content": "long"}
    assert template.decode(conversation.prompt).count("long\n</think>\n\nok<|im_end|>") == 2
    assert template.decode(conversation.prompt).count("<think>") == 3
    assert len(conversation.segments) == 1


def test_a_truncated_answer_is_closed_by_masked_tokens(tokenizer: Any) -> None:
    template = using(tokenizer, "chatml")
    conversation = TokenConversation(template, [{"role": "user", "content": "q"}])
    conversation.answer(completion(tokenizer, template.encode("abc"), ended=False, number=0), 1.0)
    conversation.tell({"role": "user", "content": "go on"})
    conversation.answer(completion(tokenizer, template.encode("x"), ended=True, number=1), 1.0)
    (segment,) = conversation.segments
    end = segment.token_ids.index(
        tokenizer.eos_token_id, len(template.encode(template.render([{"role": "user", "content": "q"}])))
    )
    assert segment.loss_mask[end] == 0
    assert segment.loss_mask[-1] == 1


def test_a_tokenizer_without_a_template_is_an_error(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="instruct"):
        ChatTemplate(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(UsageError, match="assistant"):
        ChatTemplate(tokenizer)


class Says:
    """A generator with scripted answers."""

    def __init__(self, template: ChatTemplate, eos: int, answers: Sequence[str]) -> None:
        self.template, self.eos, self.answers, self.prompts = template, eos, list(answers), []

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002  scripted
        self.prompts.append((list(prompt), seed))
        ids = [*self.template.encode(self.answers.pop(0)), self.eos][:max_tokens]
        return Completion(ids, [-0.5] * len(ids), "stop" if ids[-1] == self.eos else "length", version=4)


def test_an_episode_is_recorded_as_tokens(tokenizer: Any) -> None:
    template = using(tokenizer, "chatml")
    answers = ['{"name": "bash", "arguments": {"command": "ls"}}', "nothing", '{"name": "submit", "arguments": {}}']
    generator = Says(template, tokenizer.eos_token_id, answers)
    with gymnasium.make("SWE/Micro-v0", task_id="micro-1-0") as env:
        policy = TokenPolicy(env, generator, template, seed=5, model="m")
        trajectory = play(env, policy)
    assert [turn.tool for turn in trajectory.turns] == ["bash", "", "submit"]
    assert trajectory.outcome == "submitted"
    (segment,) = trajectory.segments
    assert sum(segment.loss_mask) == sum(len(template.encode(answer)) + 1 for answer in answers)
    assert [seed for _, seed in generator.prompts] == [5, 6, 7]
    first, second, third = (prompt for prompt, _ in generator.prompts)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert list(segment.token_ids[: len(third)]) == third
    assert trajectory.usage.completion_tokens == sum(segment.loss_mask)
    assert "bash(command" in template.decode(first)


def test_earlier_calls_of_an_api_are_written_as_the_model_writes_its_own(tokenizer: Any) -> None:
    """Those of a demonstration, which has no tokens."""
    template = using(tokenizer, "chatml")
    generator = Says(template, tokenizer.eos_token_id, ["nothing"])
    call = {"type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    with gymnasium.make("SWE/Micro-v0", task_id="micro-1-0") as env:
        policy = TokenPolicy(env, generator, template)
        policy.reset({})
        policy.resume([("Repair it.", json.dumps({"role": "assistant", "content": "I look.", "tool_calls": [call]}))])
        policy.act("calc.py")
    text = template.decode(generator.prompts[0][0])
    assert "tool_calls" not in text
    assert 'I look.\n\n{"name": "bash", "arguments": {"command": "ls"}}' in text


def test_a_full_context_ends_the_episode_with_grading(tokenizer: Any) -> None:
    template = using(tokenizer, "chatml")
    generator = Says(template, tokenizer.eos_token_id, ['{"name": "bash", "arguments": {"command": "seq 500"}}'] * 5)
    with gymnasium.make("SWE/Micro-v0", task_id="micro-1-0") as env:
        most = len(template.encode(short_prompt(env.unwrapped.tools))) + 200
        policy = TokenPolicy(env, generator, template, max_context=most)
        trajectory = play(env, policy)
        assert (trajectory.outcome, trajectory.info["limit"], trajectory.reward_valid) == (
            "agent_limit",
            "context",
            True,
        )
        policy.reset({})
        with pytest.raises(PolicyError, match="tokens"):
            TokenPolicy(env, generator, template, max_context=3).act("q")

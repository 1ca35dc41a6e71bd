"""Where a prompt stops being what later prompts begin with."""

from dataclasses import replace

import pytest

from omlx.errors import ModelError
from omlx.server.prompt import encode, render
from omlx.server.stable import num_stable
from tests.vocabularies import smollm2
from tests.writers import TOOLS, Talk, num_shared

OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return smollm2(tmp_path_factory.mktemp("model"))


def chain(text, num_calls: int = 2) -> Talk:
    talk = Talk(text, None, tools=TOOLS)
    talk.messages += [{"role": "user", "content": "Read it, please"}]
    for number in range(num_calls):
        more = {"reasoning_content": f"thought {number}", "tool_calls": [CALL]}
        talk.messages += [{"role": "assistant", "content": "", **more}]
        talk.messages += [{"role": "tool", "tool_call_id": "c", "content": "found"}]
    return talk


def stable_of(talk: Talk) -> int:
    return encode(talk.text, talk.generation(), wants_stable=True).stable


def test_a_chain_is_stable_up_to_its_first_thought(text) -> None:
    talk = chain(text)
    before, stable = talk.prompt().tokens, stable_of(talk)
    talk.messages += [{"role": "assistant", "content": "Done"}]
    talk.messages += [{"role": "user", "content": "More"}]
    shared = num_shared(talk.prompt().tokens, before)
    assert shared - 2 <= stable <= shared < len(before)
    assert "<|im_start|>assistant" in text.spell(before[stable - 5 : stable])


def test_it_is_the_same_for_each_step_of_a_chain(text) -> None:
    assert len({stable_of(chain(text, num_calls)) for num_calls in (1, 2, 3)}) == 1


def test_a_prompt_that_only_grows_is_stable_to_its_end(text) -> None:
    talk = Talk(text, None)
    talk.messages += [{"role": "user", "content": "Hello"}]
    assert stable_of(talk) == 0
    assert encode(text, chain(text).generation()).stable == 0  # nobody wants to know


def test_a_thought_that_a_prompt_opens(tmp_path) -> None:
    talk = Talk(smollm2(tmp_path, OPENS), None)
    talk.messages += [{"role": "user", "content": "Hello"}]
    prompt, stable = talk.prompt(), stable_of(talk)
    assert talk.text.spell(prompt.tokens[: stable + 1]).endswith("<|im_start|>assistant\n")


def test_an_answer_that_has_begun_and_a_template_that_refuses(text) -> None:
    talk = chain(text)
    begun = [*talk.generation().messages, {"role": "assistant", "content": "I beg"}]
    assert encode(text, replace(talk.generation(), messages=begun), wants_stable=True).stable == 0

    def refuse(messages) -> str:
        raise ModelError("no")

    messages = talk.generation().messages
    assert num_stable(render(text, messages), messages, refuse) == 0

"""Asks the server at $BASE by the Python clients; prints `name OK value` or `name ERR error`.

Runs in the clients' own environment, with nothing of omlx in it.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import anthropic
import openai
from pydantic import BaseModel

BASE = os.environ["BASE"]
MODEL = "local-model"
HI = [{"role": "user", "content": "hi"}]
THINK = [{"role": "user", "content": "think of a city"}]
CITY = [{"role": "user", "content": "a city as json"}]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read_file", "description": "Reads a file.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]
MESSAGE_TOOLS = [{"name": "read_file", "description": "Reads.", "input_schema": PARAMETERS}]

o = openai.OpenAI(base_url=f"{BASE}/v1", api_key="local", max_retries=0, timeout=30)
a = anthropic.Anthropic(base_url=BASE, api_key="local", max_retries=0, timeout=30)


class City(BaseModel):
    name: str
    population: int


def line(name, ask):
    try:
        print(name, "OK", ask(), flush=True)
    except Exception as error:
        text = " ".join(str(error).split())
        print(name, "ERR", type(error).__name__, text[:300], flush=True)


def need(is_so, what):
    """The value, which must be so."""
    if not is_so:
        raise ValueError(f"unexpected: {what!r}")
    return what


def some(value):
    """The value, which must not be nothing."""
    return need(value, value)


def chat(messages=HI, **more):
    return o.chat.completions.create(model=MODEL, messages=messages, **more)


def chat_stream():
    text, usage = "", None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    return need(text and usage, (text, usage and usage.total_tokens))


def chat_tools():
    [call] = chat(tools=TOOLS).choices[0].message.tool_calls
    return need(call.function.arguments == '{"path": "a b"}', call.function.arguments)


def chat_tools_stream():
    with o.chat.completions.stream(model=MODEL, messages=HI, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    need("tool_calls.function.arguments.done" in kinds, kinds)
    return need(call.function.arguments == '{"path": "a b"}', call.function.arguments)


def chat_tool_result():
    message = chat(tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "text"}
    return some(chat([*HI, message, result], tools=TOOLS).choices[0].message.content)


def chat_thinking():
    message = chat(THINK).choices[0].message
    return need(message.content and "<" not in message.content, message.reasoning_content)


def chat_thinking_stream():
    deltas = [chunk.choices[0].delta for chunk in chat(THINK, stream=True)]
    text = "".join(delta.content or "" for delta in deltas)
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return need(text and thought and "<" not in text, thought)


def chat_parse():
    parsed = o.chat.completions.parse(model=MODEL, messages=CITY, response_format=City)
    return need(parsed.choices[0].message.parsed.name == "Paris", "Paris")


def chat_choices():
    choices = chat(n=2, logprobs=True, top_logprobs=2).choices
    need(len(choices) == 2, len(choices))
    return need(choices[1].logprobs.content[0].top_logprobs[1].logprob < 0, "scores")


def chat_raw():
    raw = o.chat.completions.with_raw_response.create(model=MODEL, messages=HI)
    some(raw.parse().choices[0].message.content)
    return need(raw.headers["x-request-id"].startswith("req_"), raw.status_code)


def unknown_model(create, error):
    try:
        create(model="no-such-model", messages=HI)
    except error as found:
        return need(found.status_code == 404, found.status_code)
    raise ValueError("no error")


def completions_stream():
    chunks = list(o.completions.create(model=MODEL, prompt="hi", stream=True))
    return some("".join(chunk.choices[0].text for chunk in chunks))


def respond(given="hi", **more):
    return o.responses.create(model=MODEL, input=given, **more)


def responses_stream():
    with o.responses.stream(model=MODEL, input="hi") as stream:
        last = [event.type for event in stream][-1]
        usage = stream.get_final_response().usage
    return need(last == "response.completed" and usage.total_tokens, last)


def responses_tools():
    calls = [item for item in respond(tools=RESPONSE_TOOLS).output if item.type == "function_call"]
    return need(calls[0].arguments == '{"path": "a b"}', calls[0].arguments)


def responses_tools_stream():
    with o.responses.stream(model=MODEL, input="hi", tools=RESPONSE_TOOLS) as stream:
        kinds = [event.type for event in stream]
        output = stream.get_final_response().output
    need("response.function_call_arguments.done" in kinds, kinds)
    return need(output[-1].arguments == '{"path": "a b"}', output[-1].arguments)


def responses_tool_result():
    output = respond(tools=RESPONSE_TOOLS).output
    result = {"type": "function_call_output", "call_id": output[-1].call_id, "output": "text"}
    given = [*HI, *(item.to_dict() for item in output), result]
    return some(respond(given, tools=RESPONSE_TOOLS).output_text)


def responses_follow():
    first = respond()
    return some(respond("more", previous_response_id=first.id).output_text)


def responses_retrieve():
    first = respond()
    need(o.responses.retrieve(first.id).output_text == first.output_text, "another text")
    o.responses.delete(first.id)
    return first.status


def responses_thinking():
    answer = respond(THINK, reasoning={"effort": "low", "summary": "auto"})
    kinds = [item.type for item in answer.output]
    return need(kinds == ["reasoning", "message"], kinds)


def responses_parse():
    parsed = o.responses.parse(model=MODEL, input=CITY, text_format=City).output_parsed
    return need(parsed.name == "Paris", parsed)


def message(messages=HI, **more):
    return a.messages.create(model=MODEL, max_tokens=500, messages=messages, **more)


def messages_stream():
    with a.messages.stream(model=MODEL, max_tokens=500, messages=HI) as stream:
        text = "".join(stream.text_stream)
        usage = stream.get_final_message().usage
    return need(text and usage.output_tokens, usage.output_tokens)


def messages_tools():
    [use] = [block for block in message(tools=MESSAGE_TOOLS).content if block.type == "tool_use"]
    return need(use.input == {"path": "a b"}, use.input)


def messages_tools_stream():
    with a.messages.stream(model=MODEL, max_tokens=500, messages=HI, tools=MESSAGE_TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    need(final.stop_reason == "tool_use", final.stop_reason)
    return need(final.content[-1].input == {"path": "a b"}, final.content[-1].input)


def messages_tool_result():
    content = message(tools=MESSAGE_TOOLS).content
    result = {"type": "tool_result", "tool_use_id": content[-1].id, "content": "text"}
    turns = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    return some(message(turns, tools=MESSAGE_TOOLS).content[0].text)


def messages_thinking():
    content = message(THINK, thinking={"type": "enabled", "budget_tokens": 1024}).content
    kinds = [block.type for block in content]
    return need(kinds == ["thinking", "text"] and content[0].thinking, kinds)


def messages_thinking_stream():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with a.messages.stream(
        model=MODEL, max_tokens=500, messages=THINK, thinking=thinking
    ) as stream:
        kinds = {event.type for event in stream}
        content = stream.get_final_message().content
    need({"thinking", "signature", "text"} <= kinds, kinds)
    return need(content[0].signature, [block.type for block in content])


def messages_parse():
    parsed = a.messages.parse(model=MODEL, max_tokens=500, messages=CITY, output_format=City)
    return need(parsed.parsed_output.name == "Paris", parsed.parsed_output)


def messages_beta_stream():
    with a.beta.messages.stream(
        model=MODEL, max_tokens=500, messages=HI, betas=["interleaved-thinking-2025-05-14"]
    ) as stream:
        return some("".join(stream.text_stream))


def messages_beta_runner():
    @anthropic.beta_tool
    def read_file(path: str) -> str:
        """Reads a file."""
        return f"text of {path}"

    runner = a.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, messages=HI, tools=[read_file]
    )
    return need(len(list(runner)) == 2, "two messages")


def messages_raw():
    raw = a.messages.with_raw_response.create(model=MODEL, max_tokens=50, messages=HI)
    some(raw.parse().content[0].text)
    return need(raw.headers["request-id"].startswith("req_"), raw.status_code)


def wait(ask):
    return lambda: asyncio.run(ask())


async def openai_async():
    async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="local", max_retries=0) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=HI)
        stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    return need(text == whole.choices[0].message.content, text)


async def openai_async_responses():
    async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="local", max_retries=0) as client:
        stream = await client.responses.create(model=MODEL, input="hi", stream=True)
        kinds = [event.type async for event in stream]
    return need(kinds[-1] == "response.completed", kinds[-1])


async def anthropic_async():
    async with (
        anthropic.AsyncAnthropic(base_url=BASE, api_key="local", max_retries=0) as client,
        client.messages.stream(model=MODEL, max_tokens=500, messages=HI) as stream,
    ):
        final = await stream.get_final_message()
    return need(final.content[0].text, final.stop_reason)


line("models", lambda: need(MODEL in [m.id for m in o.models.list()], MODEL))
line("models.retrieve", lambda: o.models.retrieve(MODEL).id)
line("chat", lambda: some(chat().choices[0].message.content))
line("chat.stream", chat_stream)
line("chat.tools", chat_tools)
line("chat.tools.stream", chat_tools_stream)
line("chat.tools.result", chat_tool_result)
line("chat.thinking", chat_thinking)
line("chat.thinking.stream", chat_thinking_stream)
line("chat.parse", chat_parse)
line("chat.choices", chat_choices)
line("chat.raw", chat_raw)
line("chat.async", wait(openai_async))
line("chat.unknown", lambda: unknown_model(o.chat.completions.create, openai.NotFoundError))
line("completions", lambda: o.completions.create(model=MODEL, prompt="hi").choices[0].text)
line("completions.stream", completions_stream)
line("responses", lambda: some(respond().output_text))
line("responses.stream", responses_stream)
line("responses.tools", responses_tools)
line("responses.tools.stream", responses_tools_stream)
line("responses.tools.result", responses_tool_result)
line("responses.follow", responses_follow)
line("responses.retrieve", responses_retrieve)
line("responses.thinking", responses_thinking)
line("responses.parse", responses_parse)
line("responses.async", wait(openai_async_responses))
line("embeddings", lambda: o.embeddings.create(model=MODEL, input=["a", "b"]).data[1].embedding)
line("messages", lambda: some(message().content[0].text))
line("messages.stream", messages_stream)
line("messages.tools", messages_tools)
line("messages.tools.stream", messages_tools_stream)
line("messages.tools.result", messages_tool_result)
line("messages.thinking", messages_thinking)
line("messages.thinking.stream", messages_thinking_stream)
line("messages.parse", messages_parse)
line("messages.beta.stream", messages_beta_stream)
line("messages.beta.runner", messages_beta_runner)
line("messages.raw", messages_raw)
line("messages.async", wait(anthropic_async))
line(
    "messages.unknown",
    lambda: unknown_model(
        lambda **more: a.messages.create(max_tokens=9, **more), anthropic.NotFoundError
    ),
)
line("messages.count", lambda: a.messages.count_tokens(model=MODEL, messages=HI).input_tokens)
line(
    "messages.count.tools",
    lambda: (
        a.messages.count_tokens(
            model=MODEL, messages=HI, system="Be brief.", tools=MESSAGE_TOOLS
        ).input_tokens
    ),
)
line("messages.models", lambda: need(MODEL in [m.id for m in a.models.list()], MODEL))
line("messages.models.retrieve", lambda: a.models.retrieve(MODEL).display_name)


def through_litellm():
    import litellm

    def openai_(**more):
        return litellm.completion(
            f"openai/{MODEL}", HI, api_base=f"{BASE}/v1", api_key="local", **more
        )

    def anthropic_(**more):
        return litellm.completion(f"anthropic/{MODEL}", HI, api_base=BASE, api_key="local", **more)

    def finish(answer, wanted):
        found = answer.choices[0].finish_reason
        return need(found == wanted, found)

    def streamed(answer):
        deltas = [chunk.choices[0].delta.content or "" for chunk in answer]
        return some("".join(deltas))

    def responses():
        return litellm.responses(
            input="hi", model=f"openai/{MODEL}", api_base=f"{BASE}/v1", api_key="local"
        )

    line("litellm", lambda: finish(openai_(), "stop"))
    line("litellm.stream", lambda: streamed(openai_(stream=True)))
    line("litellm.tools", lambda: finish(openai_(tools=TOOLS), "tool_calls"))
    line("litellm.responses", lambda: some(responses().output[0].content[0].text))
    line("litellm.anthropic", lambda: finish(anthropic_(), "stop"))
    line("litellm.anthropic.stream", lambda: streamed(anthropic_(stream=True)))
    line("litellm.anthropic.tools", lambda: finish(anthropic_(tools=TOOLS), "tool_calls"))


def through_langchain():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    options = {"model": MODEL, "base_url": f"{BASE}/v1", "api_key": "local", "max_retries": 0}
    model = ChatOpenAI(**options)

    def streamed(chat_model):
        return some("".join(str(chunk.text) for chunk in chat_model.stream("hi")))

    def tools():
        [call] = model.bind_tools(TOOLS).invoke("hi").tool_calls
        return need(call["args"] == {"path": "a b"}, call["args"])

    def structured(method):
        found = model.with_structured_output(City, method=method).invoke("a city as json")
        return need(found.name == "Paris", found)

    def embed(**more):
        return len(OpenAIEmbeddings(**options, **more).embed_query("hi"))

    over_responses = ChatOpenAI(**options, use_responses_api=True)
    line("langchain", lambda: some(model.invoke("hi").content))
    line("langchain.stream", lambda: streamed(model))
    line("langchain.tools", tools)
    line("langchain.schema", lambda: structured("json_schema"))
    line("langchain.function", lambda: structured("function_calling"))
    line("langchain.responses", lambda: some(over_responses.invoke("hi").content))
    line("langchain.responses.stream", lambda: streamed(over_responses))
    line("langchain.embeddings", lambda: embed(check_embedding_ctx_length=False))


def through_llm():
    def ask(*options):
        command = [Path(sys.executable).parent / "llm", "-m", "local", "--key", "local", "--no-log"]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=60, check=False
        )
        text = " ".join(done.stdout.split())
        if done.returncode or not text or "<" in text:
            raise RuntimeError(done.stderr[-300:] or text or "it said nothing")
        return text

    line("llm", lambda: ask("--no-stream", "say hi"))
    line("llm.stream", lambda: ask("say hi"))
    line("llm.schema", lambda: ask("--schema", "name, population int", "a city as json"))
    line("llm.tools", lambda: ask("-T", "llm_version", "say hi"))


through_litellm()
through_langchain()
through_llm()

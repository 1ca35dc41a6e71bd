// Asks the server at $BASE by the JavaScript clients; prints `name OK value` or `name ERR error`.
// Copied into the folder with the clients' packages, and run there.
import Anthropic from '@anthropic-ai/sdk';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const BASE = process.env.BASE;
const model = 'local-model';
const messages = [{ role: 'user', content: 'hi' }];
const thinking = [{ role: 'user', content: 'think of a city' }];
const city = [{ role: 'user', content: 'a city as json' }];
const City = z.object({ name: z.string(), population: z.number() });
const parameters = { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] };
const described = { name: 'read_file', description: 'Reads a file.' };
const tools = [{ type: 'function', function: { ...described, parameters } }];
const responseTools = [{ type: 'function', ...described, parameters, strict: false }];
const messageTools = [{ ...described, input_schema: parameters }];

const line = async (name, ask) => {
  try {
    console.log(name, 'OK', JSON.stringify(await ask()));
  } catch (error) {
    const status = error.status ?? error.statusCode ?? '';
    console.log(name, 'ERR', status, String(error).replace(/\s+/g, ' ').slice(0, 300));
  }
};
const need = (isSo, what) => {
  if (!isSo) throw new Error(`unexpected: ${JSON.stringify(what)}`);
  return what;
};
const some = (value) => need(value, value);
const clean = (text) => need(text && !text.includes('<'), text);
const needPath = (text) => need(text === '{"path": "a b"}', text);

const o = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: 'local', maxRetries: 0, timeout: 30000 });
const a = new Anthropic({ baseURL: BASE, apiKey: 'local', maxRetries: 0, timeout: 30000 });
const chat = (more) => o.chat.completions.create({ model, messages, ...more });
const respond = (more) => o.responses.create({ model, input: 'hi', ...more });
const message = (more) => a.messages.create({ model, max_tokens: 500, messages, ...more });
const messageStream = (more) => a.messages.stream({ model, max_tokens: 500, messages, ...more });

await line('openai.models', async () => {
  const ids = [];
  for await (const one of o.models.list()) ids.push(one.id);
  return need(ids.includes(model), ids);
});
await line('openai.chat', async () => some((await chat()).choices[0].message.content));
await line('openai.chat.stream', async () => {
  let text = '';
  for await (const chunk of await chat({ stream: true })) text += chunk.choices[0]?.delta?.content ?? '';
  return some(text);
});
await line('openai.chat.tools', async () =>
  needPath((await chat({ tools })).choices[0].message.tool_calls[0].function.arguments));
await line('openai.chat.tools.stream', async () => {
  const stream = o.chat.completions.stream({ model, messages, tools });
  return needPath((await stream.finalFunctionToolCall()).arguments);
});
await line('openai.chat.runner', async () => {
  const read_file = async ({ path }) => `text of ${path}`;
  const runner = o.chat.completions.runTools({
    model, messages,
    tools: [{ type: 'function', function: { ...described, parameters, function: read_file, parse: JSON.parse } }],
  });
  return clean(await runner.finalContent());
});
await line('openai.chat.parse', async () => {
  const response_format = zodResponseFormat(City, 'city');
  const parsed = await o.chat.completions.parse({ model, messages: city, response_format });
  return need(parsed.choices[0].message.parsed.name === 'Paris', parsed.choices[0].message);
});
await line('openai.responses', async () => some((await respond()).output_text));
await line('openai.responses.stream', async () => {
  let last;
  for await (const event of await respond({ stream: true })) last = event.type;
  return need(last === 'response.completed', last);
});
await line('openai.responses.tools', async () =>
  needPath((await respond({ tools: responseTools })).output.at(-1).arguments));
await line('openai.responses.tools.stream', async () => {
  const stream = o.responses.stream({ model, input: 'hi', tools: responseTools });
  return needPath((await stream.finalResponse()).output.at(-1).arguments);
});
await line('openai.embeddings', async () =>
  (await o.embeddings.create({ model, input: 'a' })).data[0].embedding.length);
await line('anthropic.messages', async () => some((await message()).content[0].text));
await line('anthropic.stream', async () => {
  const { usage } = await messageStream().finalMessage();
  return need(usage.output_tokens > 0, usage.output_tokens);
});
await line('anthropic.tools', async () => {
  const use = (await message({ tools: messageTools })).content.at(-1);
  return need(use.input.path === 'a b', use.input);
});
await line('anthropic.tools.stream', async () => {
  const { content, stop_reason } = await messageStream({ tools: messageTools }).finalMessage();
  need(stop_reason === 'tool_use', stop_reason);
  return need(content.at(-1).input.path === 'a b', content.at(-1).input);
});
await line('anthropic.thinking.stream', async () => {
  const stream = messageStream({ messages: thinking, thinking: { type: 'enabled', budget_tokens: 1024 } });
  const kinds = (await stream.finalMessage()).content.map((block) => block.type);
  return need(kinds.join() === 'thinking,text', kinds);
});
await line('anthropic.count_tokens', async () =>
  some((await a.messages.countTokens({ model, messages })).input_tokens));
await line('anthropic.models', async () => {
  const ids = [];
  for await (const one of a.models.list()) ids.push(one.id);
  return need(ids.includes(model), ids);
});

const vercelTools = {
  read_file: tool({
    description: 'Reads a file.',
    inputSchema: jsonSchema(parameters),
    execute: async ({ path }) => `text of ${path}`,
  }),
};
const key = { baseURL: `${BASE}/v1`, apiKey: 'local' };
const vercel = [
  ['ai.openai', createOpenAI(key)(model)],
  ['ai.openai.chat', createOpenAI(key).chat(model)],
  ['ai.compatible', createOpenAICompatible({ name: 'local', ...key, supportsStructuredOutputs: true })(model)],
  ['ai.anthropic', createAnthropic(key)(model)],
];
for (const [name, model] of vercel) {
  const options = { model, maxRetries: 0 };
  await line(`${name}.text`, async () => {
    const { text, usage } = await generateText({ ...options, prompt: 'hi' });
    need(usage.inputTokens > 0, usage);
    return some(text);
  });
  await line(`${name}.stream`, async () => {
    const result = streamText({ ...options, prompt: 'hi' });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    need((await result.finishReason) === 'stop', await result.finishReason);
    return some(text);
  });
  await line(`${name}.tools`, async () => {
    const { finishReason, toolCalls } = await generateText({ ...options, prompt: 'hi', tools: vercelTools });
    need(finishReason === 'tool-calls', finishReason);
    return need(toolCalls[0].input.path === 'a b', toolCalls[0].input);
  });
  await line(`${name}.steps`, async () => {
    const result = streamText({ ...options, prompt: 'hi', tools: vercelTools, stopWhen: stepCountIs(3) });
    for await (const part of result.fullStream) if (part.type === 'error') throw part.error;
    need((await result.steps).length === 2, (await result.steps).length);
    return clean(await result.text);
  });
  await line(`${name}.thinking`, async () => {
    const providerOptions = { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } };
    const { text } = await generateText({ ...options, prompt: 'think of a city', providerOptions });
    return clean(text);
  });
  await line(`${name}.object`, async () => {
    const { object } = await generateObject({ ...options, prompt: 'a city as json', schema: City });
    return need(object.name === 'Paris', object);
  });
  await line(`${name}.object.stream`, async () => {
    const result = streamObject({ ...options, prompt: 'a city as json', schema: City });
    for await (const part of result.fullStream) if (part.type === 'error') throw part.error;
    return need((await result.object).name === 'Paris', await result.object);
  });
}
await line('ai.openai.embedding', async () => {
  const { embed } = await import('ai');
  return (await embed({ model: createOpenAI(key).embedding(model), value: 'hi', maxRetries: 0 })).embedding.length;
});

// The openai client for Node.
import OpenAI from "openai";

const url = process.env.CLIENT_URL, model = process.env.CLIENT_MODEL;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.CLIENT_KEY ?? "none" });
const hello = [{ role: "user", content: "Hello there." }];
const opening = "A conversation held by openai_node. " + "It goes on for a while before it asks. ".repeat(120);
const question = (turn) =>
  turn === 0 ? opening : `And what then, after ${turn} answers? ` + "Tell me more about it. ".repeat(12);

async function check(name, work) {
  let said;
  try {
    said = { check: name, ok: true, seen: String(await work()) };
  } catch (error) {
    said = { check: name, ok: false, seen: `${error.constructor.name}: ${error.message}`.slice(0, 500) };
  }
  console.log(JSON.stringify(said));
}

await check("models", async () => (await client.models.list()).data[0].id);
await check("chat", async () => {
  const made = await client.chat.completions.create({ model, messages: hello, max_tokens: 8 });
  return `${made.usage.completion_tokens} tokens, ${made.choices[0].finish_reason}`;
});
await check("stream", async () => {
  const stream = await client.chat.completions.create({
    model, messages: hello, max_tokens: 8, stream: true, stream_options: { include_usage: true },
  });
  let events = 0, usage = null;
  for await (const chunk of stream) { events += 1; usage = chunk.usage ?? usage; }
  if (!usage) throw new Error("no usage");
  return `${events} events, usage at the end`;
});
await check("abort", async () => {
  const stream = await client.chat.completions.create({ model, messages: hello, max_tokens: 4000, stream: true });
  let events = 0;
  for await (const _ of stream) { if (++events === 3) { stream.controller.abort(); break; } }
  return `left after ${events} events`;
});
await check("completions", async () =>
  (await client.completions.create({ model, prompt: "Once", max_tokens: 4 })).choices[0].text.slice(0, 20));
await check("responses", async () => {
  const made = await client.responses.create({ model, input: "Hello there.", max_output_tokens: 8 });
  const again = await client.responses.create({
    model, input: "Go on.", previous_response_id: made.id, max_output_tokens: 8,
  });
  return `${made.status}, continued: ${again.status}`;
});
await check("embeddings", async () =>
  `${(await client.embeddings.create({ model, input: ["one", "two"] })).data.length} vectors`);
await check("headers", async () => {
  const { response } = await client.chat.completions.create({ model, messages: hello, max_tokens: 2 }).withResponse();
  return response.headers.get("x-router-decision").split(";")[0];
});
await check("unknown model", async () => {
  try {
    await client.chat.completions.create({ model: "nobody", messages: hello });
  } catch (error) {
    if (error instanceof OpenAI.NotFoundError) return error.constructor.name;
    throw error;
  }
  throw new Error("nothing was raised");
});
await check("conversation", async () => {
  const messages = [];
  let cached = 0;
  for (let turn = 0; turn < 5; turn++) {
    messages.push({ role: "user", content: question(turn) });
    const made = await client.chat.completions.create({ model, messages, max_tokens: 8 });
    messages.push({ role: "assistant", content: made.choices[0].message.content });
    cached = made.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  }
  return `${cached} tokens cached in the last turn`;
});

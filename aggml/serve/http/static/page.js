// The page at /: a chat over /v1/chat/completions, and live figures of /metrics. No foreign hosts.
"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let abort = null;

at("key").value = sessionStorage.getItem("key") || "";
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value);
  listModels();
});

function headers() {
  const key = at("key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function listModels() {
  const answer = await fetch("/v1/models", { headers: headers() });
  if (!answer.ok) return show("error", await reason(answer));
  const { data } = await answer.json();
  at("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

function show(kind, text) {
  const box = document.createElement("div");
  box.className = `message ${kind}`;
  box.textContent = text;
  at("chat").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

function part(box, kind) {
  const found = document.createElement("div");
  found.className = kind;
  box.append(found);
  return found;
}

// A text with its blocks of code, which stand between fences.
function write(box, text) {
  box.replaceChildren(...text.split(/```[^\n]*\n?/).map((piece, i) => {
    if (i % 2 === 0) return document.createTextNode(piece);
    const code = document.createElement("pre");
    code.textContent = piece;
    return code;
  }));
}

// The result of a call, which the reader writes; null: none.
function resultOf(box, call) {
  const row = part(box, "result");
  const input = document.createElement("input");
  input.placeholder = `Result of ${call.function.name}`;
  const give = document.createElement("button"), skip = document.createElement("button");
  give.type = skip.type = "button";
  give.textContent = "Give result";
  skip.textContent = "Skip";
  row.append(input, give, skip);
  input.scrollIntoView({ block: "center" });
  input.focus();
  return new Promise((resolve) => {
    const end = (value) => { row.remove(); resolve(value); };
    give.addEventListener("click", () => end(input.value));
    skip.addEventListener("click", () => end(null));
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") end(input.value); });
    abort.signal.addEventListener("abort", () => end(null));
  });
}

// The events of a stream, as they come.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function ask() {
  const body = {
    model: at("model").value,
    messages: at("system").value
      ? [{ role: "system", content: at("system").value }, ...messages] : messages,
    temperature: Number(at("temperature").value),
    max_tokens: Number(at("tokens").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (at("tools").value.trim()) body.tools = JSON.parse(at("tools").value);
  const box = show("assistant", "");
  const said = { role: "assistant", content: "" };
  let thoughts = null, text = null;
  const calls = [], shown = [];
  abort = new AbortController();
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", body: JSON.stringify(body), signal: abort.signal,
    headers: { "content-type": "application/json", ...headers() },
  });
  if (!answer.ok) {
    box.remove();
    throw new Error(await reason(answer));
  }
  messages.push(said);  // an answer that is stopped stays, as far as it came
  for await (const event of events(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) {
      box.title = `${event.usage.prompt_tokens} tokens read, ${event.usage.completion_tokens} written`;
    }
    const delta = event.choices[0]?.delta || {};
    if (delta.reasoning_content) {
      thoughts = thoughts || part(box, "thoughts");
      thoughts.textContent += delta.reasoning_content;
    }
    if (delta.content) {
      text = text || part(box, "text");
      said.content += delta.content;
      write(text, said.content);
    }
    for (const piece of delta.tool_calls || []) {
      const call = calls[piece.index] ??= { id: "", type: "function",
        function: { name: "", arguments: "" } };
      if (piece.id) call.id = piece.id;
      call.function.name += piece.function.name || "";
      call.function.arguments += piece.function.arguments || "";
      shown[piece.index] ??= part(box, "call");
      shown[piece.index].textContent = `${call.function.name}(${call.function.arguments})`;
    }
    box.scrollIntoView({ block: "end" });
  }
  if (!calls.length) return;
  said.tool_calls = calls;
  let all = true;
  for (const call of calls) {
    const result = await resultOf(box, call);
    all &&= result !== null;
    messages.push({ role: "tool", tool_call_id: call.id, content: result ?? "not called" });
    if (result !== null) show("user", result);
  }
  if (all) await ask();
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || abort) return;
  at("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  at("send").hidden = true;
  at("stop").hidden = false;
  try {
    await ask();
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  } finally {
    abort = null;
    at("send").hidden = false;
    at("stop").hidden = true;
    at("text").focus();
  }
});
at("stop").addEventListener("click", () => abort?.abort());
at("clear").addEventListener("click", () => {
  abort?.abort();
  messages.length = 0;
  at("chat").replaceChildren();
});
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});

// -- live figures

let before = null;

function sums(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_:]+)(?:\{[^}]*\})? ([-0-9.e+]+)$/.exec(line);
    if (match) found[match[1]] = (found[match[1]] || 0) + Number(match[2]);
  }
  return found;
}

async function look() {
  if (document.hidden) return;
  const answer = await fetch("/metrics", { headers: headers() });
  if (!answer.ok) return;
  const now = { at: performance.now(), ...sums(await answer.text()) };
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const rate = (name) => before ? Math.max(0, (now[name] || 0) - (before[name] || 0)) / seconds : 0;
  const pages = now.aggml_pages || 0;
  const figures = {
    "Requests": now.aggml_under_way || 0,
    "Streams": now.aggml_active || 0,
    "Queue": now.aggml_queued || 0,
    "Tokens a second": rate("aggml_tokens").toFixed(1),
    "Read a second": rate("aggml_prompt_tokens").toFixed(1),
    "Memory of keys": pages ? `${Math.round(100 * now.aggml_pages_used / pages)} %` : "-",
    "Stored prompts": pages ? `${Math.round(100 * now.aggml_pages_stored / pages)} %` : "-",
    "Loop lag": `${(1000 * (now.aggml_loop_lag_max_seconds || 0)).toFixed(1)} ms`,
  };
  at("figures").replaceChildren(...Object.entries(figures).flatMap(([name, value]) => {
    const term = document.createElement("dt"), told = document.createElement("dd");
    term.textContent = name;
    told.textContent = value;
    return [term, told];
  }));
  before = now;
}

if (matchMedia("(max-width: 45rem)").matches) at("live").open = false;
listModels().catch((error) => show("error", error.message));
setInterval(() => look().catch(() => {}), 1000);
look().catch(() => {});

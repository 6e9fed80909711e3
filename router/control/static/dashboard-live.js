const KEY = "prefix-router-admin-key", SILENCE = 10000;
let paused = false, leave = null, wake = () => {}, last = null, grown = false;

function lock(refused) {
  text("refused", refused ? "The router refuses this key." : "");
  sessionStorage.removeItem(KEY);
  $("login").hidden = false;
  $("board").hidden = $("forget").hidden = true;
  trouble("locked");
}
function trouble(label) {
  $("status").className = "pill bad";
  text("status", label);
  $("board").classList.add("stale");
}
async function open(path, signal) {
  const key = sessionStorage.getItem(KEY), headers = key ? { authorization: "Bearer " + key } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal });
  if (answer.status === 401) {
    lock(Boolean(key));
    throw new Error("locked");
  }
  if (!answer.ok) throw new Error("the router answers " + answer.status);
  return answer;
}
const ask = async (path) => (await open(path, AbortSignal.timeout(5000))).json();

function take(name, data) {
  if (name === "history") {
    past = data;
    grown = true;
  }
  if (name === "state") {
    last = data;
    $("login").hidden = true;
    $("board").hidden = false;
    $("forget").hidden = !sessionStorage.getItem(KEY);
    $("board").classList.remove("stale");
    show(data);
    // Drawn anew only when there is something new, or what the pointer rests on would go before it says a word.
    if (grown) showHistory(data.at);
    grown = false;
  }
  if (name === "bye") trouble("the router shuts down");
}
// Server-sent events are read from a fetch: an EventSource could not send the key.
async function listen() {
  leave = new AbortController();
  let quiet = setTimeout(() => leave.abort(), SILENCE);
  try {
    const reader = (await open("events", leave.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      quiet = setTimeout(() => leave.abort(), SILENCE);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) || [];
        if (name) take(name, JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(quiet);
  }
}
const idle = () => paused || document.hidden || !$("login").hidden;
async function run() {
  for (let wait = 500; ; wait = Math.min(5000, wait * 2)) {
    if (idle()) {
      await new Promise((resolve) => { wake = resolve; });
      wait = 500;
    }
    try {
      await listen();
      wait = 500;
    } catch (error) {
      if (!idle()) trouble("no answer from the router");
    }
    if (!idle()) await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
function reconsider() {
  if (idle() && leave) leave.abort();
  if (!idle()) wake();
}
$("pause").onclick = () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  text("pause", paused ? "Go on" : "Pause");
  reconsider();
};
$("whole").onclick = () => {
  whole = !whole;
  $("whole").setAttribute("aria-expanded", String(whole));
  showFleet(last);
};
$("forget").onclick = () => { sessionStorage.removeItem(KEY); lock(false); reconsider(); };
$("login").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
  $("login").hidden = true;
  reconsider();
};
document.addEventListener("visibilitychange", reconsider);
addEventListener("resize", () => { if (last) showHistory(last.at); });
// Where a key is needed and there is none, asking would only be refused.
if (document.documentElement.dataset.locked && !sessionStorage.getItem(KEY)) lock(false);
run();

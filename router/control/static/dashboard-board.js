const FEW = 12;
let whole = false;
let past = { rows: [], reasons: [], step_seconds: 5, steps: 180 };

function showFindings(found) {
  const tone = { unreachable: "bad", problem: "bad", advice: "warn", note: "" };
  const items = found.map((one) => {
    const item = el("li", { class: one.code === "working" ? "good" : tone[one.level] || "", "data-code": one.code }, one.text);
    if (one.change) item.append(el("span", { class: "change" }, one.change));
    return item;
  });
  const mark = items.map((item) => item.outerHTML).join("");
  if ($("findings").mark !== mark) { $("findings").mark = mark; $("findings").replaceChildren(...items); }
}
function showTiles(state) {
  const reasons = Object.fromEntries(past.reasons.map((reason, at) => [reason, past.rows.reduce((sum, row) => sum + row.reasons[at], 0)]));
  const live = Object.values(reasons).some((n) => n) ? reasons : state.totals.reasons;
  const able = REASONS.filter((reason) => reason !== "short" && reason !== "bypass").reduce((sum, reason) => sum + (live[reason] || 0), 0);
  text("share", percent(live.hit || 0, able));
  text("share-of", `${count(live.hit || 0)} of ${count(able)} with a prefix, last 15 min`);
  const { with_hit: hit, without_hit: without } = state.ttft;
  $("gain").replaceChildren(seconds(hit.p50), " ", el("small", {}, `against ${seconds(without.p50)}`));
  text("gain-of", `with and without a hit (95 %: ${seconds(hit.p95)}, ${seconds(without.p95)})`);
  const { saved_seconds: saved, tokens_per_second: speed } = state.prefill;
  text("saved", known(saved) ? age(saved) : "–");
  text("saved-of", known(speed) ? `of engine time, at ${short(speed)} tokens a second` : "no engine has told yet");
  const { predicted_tokens: predicted, confirmed_tokens: confirmed, verdicts } = state.recent_hits;
  text("true", percent(confirmed, predicted));
  const judged = ["confirmed", "fell_short", "better"].filter((name) => verdicts[name]).map((name) => `${count(verdicts[name])} ${name === "better" ? "more than predicted" : words(name)}`);
  text("true-of", judged.length ? `of cached tokens; ${judged.join(", ")}` : `${count(verdicts.unknown)} answers without a report`);
}
const SOURCES = { start: "its start", emptied: "found empty", seen: "it was seen" };
// How much a worker is taken to hold, and since when; below each, who says so.
function holds(worker) {
  const { capacity_tokens: declared, learned_capacity_tokens: learned } = worker.cache;
  if (!known(declared) && !known(learned)) return "–";
  const how = !known(declared) ? "learned" : !known(learned) || learned === declared ? "as declared" : `learned, not ${short(declared)}`;
  return [`${short(learned ?? declared)} tokens`, el("br"), soft(how)];
}
function since(worker) {
  if (!known(worker.epoch)) return "unknown";
  const times = worker.emptied > 1 || (worker.emptied && worker.epoch_from !== "emptied") ? `, emptied ${worker.emptied}×` : "";
  return [age(worker.epoch_age_seconds), el("br"), soft(SOURCES[worker.epoch_from] + times)];
}
function showFleet(state) {
  const tone = (worker) => worker.draining ? "warn" : worker.state === "ready" ? "good" : worker.state === "unready" || worker.state === "ejected" ? "bad" : "warn";
  const cached = (worker) => {
    const { prompt_tokens: prompt, predicted_tokens: predicted, reported_tokens: reported } = worker.cached;
    if (!prompt) return soft("no report yet");
    return [bar(reported / prompt, "", predicted / prompt), soft(`${percent(reported, prompt)} confirmed, ${percent(predicted, prompt)} predicted`)];
  };
  // Slots are often so many that no bar would be seen; then the busiest worker is the measure.
  const busiest = Math.max(8, ...state.workers.map((worker) => worker.in_flight.all));
  const filled = (worker) => worker.in_flight.all / (worker.slots > 4 * busiest ? busiest : worker.slots);
  table("fleet", "fleet-head", [
    ["Worker", (worker) => code(worker.id)],
    ["State", (worker) => el("span", { class: "pill " + tone(worker) }, (worker.draining ? "draining, " : "") + worker.state + (worker.asleep ? ", asleep" : ""))],
    ["In flight, all replicas", (worker) => [bar(filled(worker), worker.in_flight.all < worker.slots ? "load" : "full"), soft(`${worker.in_flight.all} of ${plural(worker.slots, "slot")}, ${worker.in_flight.local} here`)], "wide"],
    ["Prompt tokens from cache", cached, "wide"],
    ["Model", (worker) => worker.models.join(", ") + (worker.model_count > worker.models.length ? ` and ${worker.model_count - worker.models.length} more` : "") || "–", "name"],
    ["Hits from", (worker) => worker.cache.enabled === false ? "cache off" : [`${count(worker.cache.floor_tokens)} tokens`, el("br"), soft(worker.cache.enabled ? "" : "assumed")], "slim"],
    ["Cache holds", holds, "slim"],
    ["Predictions", (worker) => known(worker.hits.precision) ? [`${percent(worker.hits.precision, 1)} came true`, el("br"), soft(`${percent(worker.hits.recall, 1)} foreseen`)] : "–", "slim minor spare"],
    ["Cache since", since, "slim"],
    ["Engine", (worker) => known(worker.engine.running) ? [`${count(worker.engine.running)} run`, el("br"), soft(`${count(worker.engine.waiting)} wait`)] : "–", "slim minor spare"],
  ], fleet(state.workers), (worker) => worker.id);
  $("whole").hidden = state.workers.length <= FEW;
  text("whole", whole ? `Show ${FEW} of them` : `Show all ${count(state.workers.length)} workers`);
  const sum = (pick) => state.workers.reduce((total, worker) => total + pick(worker), 0);
  const rows = past.rows.slice(-2), rate = rows.reduce((total, row) => total + row.reasons.reduce((a, b) => a + b, 0), 0) / (rows.length * past.step_seconds || 1);
  text("flight", `${plural(sum((worker) => worker.in_flight.all), "request")} in flight, ${count(sum((worker) => worker.in_flight.local))} through this replica, ${rate.toFixed(1)} decisions a second; ${count(state.index.blocks)} of at most ${count(state.index.max_blocks)} blocks remembered.`);
}
// Of a large fleet those that are not well, and then the first; the order stays, so that no row jumps.
function fleet(workers) {
  if (whole || workers.length <= FEW) return workers;
  const well = (worker) => worker.state === "ready" && !worker.draining;
  return [...workers.filter((worker) => !well(worker)), ...workers.filter(well)].slice(0, FEW);
}
function showHistory(now) {
  const { step_seconds: step, steps } = past, oldest = past.rows.length ? now - past.rows[0].at : 0;
  const span = oldest < 240 ? Math.min(300, step * steps) : step * steps, minutes = span / 60;
  const rows = past.rows.map((row) => ({ ...row, ago: Math.max(0, now - row.at), counts: Object.fromEntries(past.reasons.map((reason, at) => [reason, row.reasons[at]])) })).filter((row) => row.ago < span);
  const sums = Object.fromEntries(REASONS.map((reason) => [reason, rows.reduce((sum, row) => sum + (row.counts[reason] || 0), 0)]));
  const seen = REASONS.filter((reason) => sums[reason]), total = seen.reduce((sum, reason) => sum + sums[reason], 0);
  stack("chart", span, step, rows, `${total} decisions in ${minutes} minutes: ` + seen.map((reason) => `${sums[reason]} ${words(reason)}`).join(", "));
  text("h-chart", `Decisions by reason, last ${minutes} minutes`);
  $("legend").replaceChildren(...seen.map((reason) => tag(reason, `${words(reason)} ${count(sums[reason])} (${percent(sums[reason], total)})`)), soft(`a bar is ${step} s`));
  const mean = (pick) => { const values = rows.map(pick).filter(known); return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; };
  const hit = mean((row) => row.hit_ttft), miss = mean((row) => row.miss_ttft);
  lines("ttft", span, step, rows, [
    { name: "without a hit", kind: "miss", pick: (row) => row.miss_ttft },
    { name: "with a hit", kind: "hit", pick: (row) => row.hit_ttft, filled: true },
  ], seconds, `Time to first byte: ${seconds(hit)} with a hit, ${seconds(miss)} without`);
  $("ttft-legend").replaceChildren(tag("hit", `with a hit ${seconds(hit)}`), tag("miss", `without ${seconds(miss)}`));
  const tokens = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  lines("tokens", span, step, rows, [
    { name: "predicted", kind: "only", pick: (row) => row.predicted / step },
    { name: "reported", kind: "hit", pick: (row) => row.reported / step, filled: true },
  ], (value) => short(value), `Cached tokens: ${count(tokens("predicted"))} predicted, ${count(tokens("reported"))} reported by engines`);
  $("tokens-legend").replaceChildren(tag("only", `predicted ${short(tokens("predicted"))}`), tag("hit", `reported by engines ${short(tokens("reported"))}`));
}
function showReplicas(state) {
  const { up, peers, lag_seconds: lag, warming, gaps, dropped, others } = state.sync;
  const local = state.workers.reduce((sum, worker) => sum + worker.in_flight.local, 0);
  const facts = [
    ["This one", [code(state.replica), ` ${plural(local, "request")}`]],
    ...others.map((other) => ["Another", [code(other.replica), ` ${plural(other.in_flight, "request")}`]]),
    ["News between them", known(up) ? (up ? (warming ? "catching up" : "passes") : "cut off") : "no Redis configured"],
    ...(known(up) ? [["Others heard", count(peers)], ["News takes", seconds(lag)], ["Gaps, refusals", `${count(gaps)}, ${count(dropped)}`]] : []),
    ["Retries", count(state.totals.retries)], ["Refused for want of room", count(state.totals.shed)], ["Clients that left", count(state.totals.aborts)],
  ];
  $("replicas").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, ...[value].flat()))));
}
function showRecent(state) {
  $("none").hidden = state.decisions.length > 0;
  // New rows must not push away the one that is about to be clicked.
  const held = ($("recent").matches(":hover") && matchMedia("(hover: hover)").matches) || $("recent").querySelector(":focus-visible") !== null;
  $("held").hidden = !held;
  if (held) return;
  table("recent", "recent-head", [
    ["Time", (one, row) => {
      const button = el("button", { class: "link", "aria-label": `Explain decision ${one.request_id}` }, new Date(one.at * 1000).toLocaleTimeString("en-GB"));
      row.onclick = () => explain(row.item);
      return button;
    }],
    ["Reason", (one) => tag(one.reason)],
    ["Worker", (one) => code(one.worker)],
    ["Model", (one) => one.model, "minor"],
    ["Match", (one) => `${one.matched_blocks}/${one.blocks}`, "minor"],
    ["Prompt tokens", (one) => count(one.reported_prompt_tokens ?? one.prompt_tokens)],
    ["Predicted", (one) => count(one.predicted_cached_tokens ?? one.resumable_tokens), "minor"],
    ["From cache", (one) => count(one.reported_cached_tokens)],
    ["First byte", (one) => seconds(one.first_byte_seconds)],
    ["Outcome", (one) => one.outcome ? words(one.outcome) : "under way", "minor"],
  ], state.decisions, (one) => `${one.request_id} ${one.attempt}`);
}
function show(state) {
  const pill = (id, kind, label) => { $(id).className = "pill " + kind; text(id, label); $(id).hidden = !label; };
  pill("status", state.ready ? "good" : "bad", state.draining ? "shutting down" : state.ready ? "serving" : "no worker can serve");
  const { up, peers, lag_seconds: lag } = state.sync;
  pill("sync", up ? "good" : "bad", !known(up) ? "" : up ? `${plural(peers, "other replica")}, ${seconds(lag)} behind` : "replicas cut off");
  text("about", `replica ${state.replica}, policy ${words(state.policy)}`);
  showFindings(state.findings);
  showTiles(state); showFleet(state); showReplicas(state); showRecent(state);
}

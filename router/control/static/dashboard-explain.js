const FILTERS = {
  slots: "no free slot", draining: "draining", ejected: "ejected", probation: "on probation, busy", not_ready: "not ready",
  set_aside: "set aside: window, a refusal just before, or tried already",
};
const TERMS = ["queued", "uncached", "decoding", "score"];

// Behind a balancer another replica may answer, which does not know the decision: the next one may.
async function accountOf(one) {
  for (let attempt = 0; attempt < 6; attempt++) {
    const found = (await ask("decisions?request_id=" + encodeURIComponent(one.request_id))).decisions.find((other) => other.attempt === one.attempt);
    if (found) return found;
  }
  return null;
}
async function explain(shown) {
  let one = shown, trouble = "";
  try {
    one = await accountOf(shown) || shown;
  } catch (error) {
    trouble = "The router did not answer when it was asked about this decision.";
  }
  const account = one.account;
  $("detail-title").replaceChildren(tag(one.reason), " → ", code(one.worker));
  text("why", one.why);
  $("because").replaceChildren(...(account ? account.because : []).map((sentence) => el("li", {}, sentence)));
  showCandidates(account ? account.candidates : []);
  if (!account) trouble = trouble || "This decision is too old, or was made by another replica: ask that one.";
  else if (!account.complete) trouble = "The other candidates of this decision were not kept: it is too old, or the fleet so large that only some decisions keep them all.";
  text("incomplete", trouble);
  $("incomplete").hidden = !trouble;
  const fields = Object.entries(one).filter(([name]) => !["why", "at", "age_seconds", "account"].includes(name));
  $("fields").replaceChildren(...fields.flatMap(([name, value]) => [el("dt", {}, words(name.replace(/_seconds$/, ""))), el("dd", {}, fieldOf(name, value))]));
  if (!$("detail").open) $("detail").showModal();
}
const fieldOf = (name, value) => !known(value) ? "–" : name.endsWith("_seconds") ? seconds(value) : typeof value === "number" ? count(value) : typeof value === "object" ? JSON.stringify(value) : String(value);

function showCandidates(candidates) {
  const most = Math.max(1, ...candidates.map((one) => one.resumable_tokens || 0));
  const busiest = Math.max(1, ...candidates.map((one) => one.load || 0));
  const scored = candidates.some((one) => one.terms);
  const terms = scored ? TERMS.map((name) => [words(name), (one) => one.terms && known(one.terms[name]) ? count(Math.round(one.terms[name])) : ""]) : [];
  table("candidates", "candidates-head", [
    ["Candidate", (one) => code(one.worker)],
    ["Could resume", (one) => known(one.resumable_tokens) ? [bar(one.resumable_tokens / most), soft(`${count(one.resumable_tokens)} tokens`)] : "", "wide"],
    ["Match", (one) => known(one.matched_blocks) ? `${one.matched_blocks} blocks` : ""],
    ["In flight", (one) => known(one.load) ? [bar(one.load / busiest, one.removed_by === "slots" ? "full" : "load"), soft(known(one.slots) ? `${one.load} of ${one.slots}` : one.load)] : ""],
    ...terms,
    ["Verdict", (one) => judged(one), "wide"],
  ], candidates, (one) => one.worker, (one) => one.chosen ? "chosen" : one.removed_by || one.within_slack === false ? "out" : "");
}
function judged(one) {
  if (one.chosen) return el("strong", {}, "chosen");
  if (one.removed_by) return FILTERS[one.removed_by] || words(one.removed_by);
  if (one.within_slack === false) return "busier than the prompt's slack allows";
  return one.withheld ? words(one.withheld) : "";
}

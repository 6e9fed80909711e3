"use strict";
const REASONS = ["hit", "miss", "spill", "short", "only", "below_block_floor", "cache_disabled", "bypass"];
const $ = (id) => document.getElementById(id);
const text = (id, value) => { if ($(id).textContent !== value) $(id).textContent = value; };
const known = (value) => value !== null && value !== undefined;
const count = (n) => known(n) ? n.toLocaleString("en") : "–";
const short = (n) => n < 1e4 ? count(Math.round(n)) : n < 1e6 ? (n / 1e3).toFixed(n < 1e5 ? 1 : 0) + " k" : (n / 1e6).toFixed(1) + " M";
const percent = (part, whole) => whole ? Math.round(100 * part / whole) + " %" : "–";
const words = (name) => name.replaceAll("_", " ");
const seconds = (s) => !known(s) ? "–" : s < 1 ? Math.round(s * 1000) + " ms" : s.toFixed(s < 10 ? 2 : 0) + " s";
const age = (s) => !known(s) ? "unknown" : s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min"
  : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
const plural = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;

// Values enter as text nodes only: model names and request ids come from clients.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.map((child) => child instanceof Node ? child : String(child)));
  return node;
}
const tag = (kind, label) => el("span", { class: "tag " + kind }, label || words(kind));
const code = (value) => el("code", {}, value);
const soft = (value) => el("span", { class: "soft" }, value);

// A bar of one share of the whole, and a mark at another one.
function bar(share, kind, mark) {
  const width = (value) => Math.round(100 * Math.max(0, Math.min(1, value || 0))) + "%";
  const fill = el("i", { class: kind || "" });
  fill.style.width = width(share);
  const node = el("div", { class: "bar", "aria-hidden": "true" }, fill);
  if (known(mark)) {
    const line = el("i", { class: "mark" });
    line.style.width = width(mark);
    node.append(line);
  }
  return node;
}

// Rows are kept and updated in place, so that the keyboard's focus and a selection survive.
// A column is [label, what to show of an item, class of its cells].
function table(body, head, columns, items, keyOf, kindOf) {
  const labels = columns.map(([label]) => label).join("|");
  if ($(head).dataset.labels !== labels) {
    $(head).dataset.labels = labels;
    $(head).replaceChildren(...columns.map(([label, , kind]) => el("th", { role: "columnheader", scope: "col", class: kind || "" }, label)));
    $(body).replaceChildren();
  }
  const old = new Map([...$(body).children].map((row) => [row.dataset.key, row]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    let row = old.get(key);
    if (row) old.delete(key);
    else row = el("tr", { role: "row", "data-key": key }, ...columns.map(([label, , kind]) => el("td", { role: "cell", "data-label": label, class: kind || "" })));
    row.item = item;
    if (kindOf) row.className = kindOf(item);
    columns.forEach(([, show], column) => {
      const cell = row.children[column], parts = [show(item, row)].flat().filter((part) => part !== "");
      const mark = parts.map((part) => part instanceof Node ? part.outerHTML : part).join("\n");
      if (cell.mark !== mark) { cell.mark = mark; cell.replaceChildren(...parts); }
    });
    if ($(body).children[index] !== row) $(body).insertBefore(row, $(body).children[index] || null);
  });
  for (const row of old.values()) row.remove();
}

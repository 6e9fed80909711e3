// Charts are drawn at the size that they have on the page, so that their text is never stretched.
const LEFT = 44, BOTTOM = 18, TOP = 8;

function svg(name, attributes, label) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (label !== undefined) node.textContent = label;
  return node;
}
// The next of these times a power of ten; half of it is as round.
function roof(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}
// A frame with three levels and the minutes; gives the two scales, and adds what it is told to.
function plot(id, span, highest, level) {
  const box = $(id), width = Math.max(240, box.clientWidth), height = box.clientHeight || 150;
  const base = height - BOTTOM, inner = base - TOP;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const x = (ago) => width - (width - LEFT) * ago / span, y = (value) => base - inner * Math.min(1, value / highest);
  for (const part of [0, 0.5, 1]) {
    root.append(svg("line", { class: "axis", x1: LEFT, x2: width, y1: y(part * highest), y2: y(part * highest) }));
    root.append(svg("text", { x: LEFT - 6, y: y(part * highest) + 4, "text-anchor": "end" }, level(part * highest)));
  }
  const minutes = Math.round(span / 60);
  const step = width < 480 ? minutes : minutes > 5 ? 5 : 1;
  for (let back = minutes; back >= 0; back -= step) {
    const anchor = back === 0 ? "end" : back * 60 >= span ? "start" : "middle";
    root.append(svg("text", { x: x(back * 60), y: height - 3, "text-anchor": anchor }, back ? `${back} min ago` : "now"));
  }
  return { x, y, base, width, add: (...nodes) => root.append(...nodes), done: (label) => { box.replaceChildren(root); box.setAttribute("aria-label", label); } };
}
// A column to point at for each step, which says what it holds.
function catcher(chart, ago, step, label) {
  const left = chart.x(ago + step), node = svg("rect", { class: "catch", x: left, y: TOP, width: Math.max(1, chart.x(ago) - left), height: chart.base - TOP });
  node.append(svg("title", {}, label));
  return node;
}
function stack(id, span, step, rows, label) {
  const totals = rows.map((row) => REASONS.reduce((sum, reason) => sum + (row.counts[reason] || 0), 0));
  const chart = plot(id, span, roof(Math.max(4, ...totals)), (value) => short(value));
  rows.forEach((row, index) => {
    const left = Math.max(LEFT, chart.x(row.ago + step)), width = Math.max(1, chart.x(row.ago) - left - 1);
    let top = 0;
    for (const reason of REASONS) {
      const amount = row.counts[reason] || 0;
      if (!amount) continue;
      const from = chart.y(top), to = chart.y(top += amount);
      chart.add(svg("rect", { class: reason, x: left, width, y: to, height: from - to }));
    }
    if (totals[index]) chart.add(catcher(chart, row.ago, step, REASONS.filter((reason) => row.counts[reason]).map((reason) => `${words(reason)} ${row.counts[reason]}`).join(", ")));
  });
  chart.done(label);
}
// Lines over time; a gap in the values is a gap in the line.
function lines(id, span, step, rows, series, level, label) {
  const values = rows.flatMap((row) => series.map(({ pick }) => pick(row)).filter(known));
  const chart = plot(id, span, roof(Math.max(1e-3, ...values)), level);
  for (const { pick, kind, filled } of series) {
    for (const run of runs(rows, pick)) {
      const points = run.map((row) => `${chart.x(row.ago + step / 2).toFixed(1)},${chart.y(pick(row)).toFixed(1)}`);
      const [first, last] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
      if (points.length === 1) { const [cx, cy] = points[0].split(","); chart.add(svg("circle", { class: kind, cx, cy, r: 2.5 })); continue; }
      if (filled) chart.add(svg("polygon", { class: "area " + kind, points: `${first},${chart.base} ${points.join(" ")} ${last},${chart.base}` }));
      chart.add(svg("polyline", { class: "line " + kind, points: points.join(" ") }));
    }
  }
  for (const row of rows) {
    const said = series.filter(({ pick }) => known(pick(row))).map(({ name, pick }) => `${name} ${level(pick(row))}`);
    if (said.length) chart.add(catcher(chart, row.ago, step, said.join(", ")));
  }
  chart.done(label);
}
// Stretches of rows with values; up to three steps without one are bridged, since quiet seconds are no gap.
function runs(rows, pick) {
  const found = [];
  let since = 99;
  for (const row of rows) {
    since += 1;
    if (!known(pick(row))) continue;
    if (since > 4) found.push([]);
    found.at(-1).push(row);
    since = 0;
  }
  return found;
}

// Memory over time: a chart for each policy, all with one scale, so that heights can be compared across them.
//
// Each pixel column shows the range of values in its stretch of events: full colour up to the least, a paler
// one up to the greatest. The cursor is an element of its own, so moving it draws no chart again.
const SERIES = ["reserved", "active", "allocated", "live"];
const CHART_HEIGHT = 168;
const MARGIN = { left: 62, right: 10, top: 8, bottom: 26 };

const charts = [];

// The time or number of an event on the axis, and back.
function axisValue(event) {
  return chosen.axis === "time" ? model.times[event] : event;
}

function eventAtValue(value) {
  if (chosen.axis === "event") return Math.round(value);
  return Math.min(Math.max(lowerBound(model.times, value), 0), model.lastEvent);
}

function xOfEvent(event, width) {
  const from = axisValue(chosen.from);
  const span = axisValue(chosen.to) - from || 1;
  return MARGIN.left + ((axisValue(event) - from) / span) * (width - MARGIN.left - MARGIN.right);
}

function eventAtX(x, width) {
  const share = Math.min(Math.max((x - MARGIN.left) / (width - MARGIN.left - MARGIN.right), 0), 1);
  const from = axisValue(chosen.from);
  return eventAtValue(from + share * (axisValue(chosen.to) - from));
}

function buildCharts() {
  const parent = document.getElementById("charts");
  parent.style.setProperty("--columns", model.policies.length === 3 ? 3 : Math.min(model.policies.length, 2));
  model.policies.forEach((policy, index) => {
    const canvas = element("canvas", { role: "img" });
    const cursor = element("div", { class: "cursor" });
    const values = {};
    const legend = element("dl", { class: "legend" });
    for (const series of [...SERIES].reverse()) {
      values[series] = element("dd", { "data-series": series });
      legend.append(element("div", {}, element("dt", { class: `swatch ${series}` }, series), values[series]));
    }
    const pick = element("button", { type: "button", class: "pick", title: "Show this policy below" }, policy.name);
    pick.addEventListener("click", () => choosePolicy(index));
    const plot = element("div", { class: "plot" }, canvas, cursor);
    const box = element("figure", { class: "chart" }, element("figcaption", {}, pick, legend), plot);
    parent.append(box);
    const pyramids = Object.fromEntries(SERIES.map((series) => [series, new Pyramid(policy.timeline[series])]));
    const chart = { policy, index, box, canvas, cursor, values, pyramids, pick };
    charts.push(chart);
    listenToChart(chart, plot);
  });
  drawers.charts.push(() => charts.forEach(drawChart));
  drawers.moment.push(() => charts.forEach(moveCursor));
}

function listenToChart(chart, plot) {
  const place = (event) => event.clientX - chart.canvas.getBoundingClientRect().left;
  const choose = (event) => chooseEvent(eventAtX(place(event), chart.canvas.clientWidth));
  plot.addEventListener("pointerdown", (event) => {
    plot.setPointerCapture(event.pointerId);
    choosePolicy(chart.index);
    choose(event);
  });
  plot.addEventListener("pointermove", (event) => event.buttons === 1 && choose(event));
  plot.addEventListener("wheel", (event) => {
    // A plain wheel scrolls the page.
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, eventAtX(place(event), chart.canvas.clientWidth));
  }, { passive: false });
}

// Shows a stretch `factor` times as long, with `around` at the same place.
function zoom(factor, around = chosen.event) {
  const width = chosen.to - chosen.from;
  const wanted = Math.min(Math.max(Math.round(width * factor), Math.min(20, model.lastEvent)), model.lastEvent);
  const share = width > 0 ? (around - chosen.from) / width : 0;
  chosen.from = Math.min(Math.max(0, Math.round(around - share * wanted)), model.lastEvent - wanted);
  chosen.to = chosen.from + wanted;
  redraw("charts", "moment");
}

function moveCursor(chart) {
  // A share of the width, so that it stays right when paper scales the picture.
  const width = chart.canvas.clientWidth;
  chart.cursor.style.left = `${(xOfEvent(chosen.event, width) / width) * 100}%`;
  const index = sampleIndex(chart.policy, chosen.event);
  for (const series of SERIES) {
    const bytes = index < 0 ? 0 : chart.policy.timeline[series][index];
    chart.values[series].textContent = humanBytes(bytes);
    chart.values[series].dataset.value = bytes;
  }
}

function highestReserved() {
  return Math.max(1, ...charts.map(({ policy, pyramids }) => {
    const length = policy.timeline.event.length;
    return length === 0 ? 0 : Math.max(...SERIES.map((series) => pyramids[series].range(0, length)[1]));
  }));
}

function drawChart(chart) {
  const { context, width, ratio } = fitCanvas(chart.canvas, CHART_HEIGHT);
  const cssWidth = width / ratio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, cssWidth, CHART_HEIGHT);
  const bottom = CHART_HEIGHT - MARGIN.bottom;
  const highest = highestReserved() * 1.04;
  const y = (bytes) => bottom - (bytes / highest) * (bottom - MARGIN.top);
  drawAxes(context, cssWidth, highest, y);
  for (const series of SERIES) drawSeries(context, chart, series, cssWidth, ratio, y);
  drawTicks(context, chart.policy.oomEvents, cssWidth, "oom", bottom - 12, 12);
  drawTicks(context, model.marks.map((mark) => mark.event), cssWidth, "muted", bottom, 5);
  const isChosen = chart.index === chosen.policy;
  chart.box.classList.toggle("chosen", isChosen);
  chart.pick.setAttribute("aria-pressed", String(isChosen));
  const { peak_reserved_bytes: reserved, peak_live_bytes: live } = chart.policy.figures;
  chart.canvas.setAttribute("aria-label", `Memory under ${chart.policy.name}, from event ${humanCount(chosen.from)} to ` +
    `${humanCount(chosen.to)}. Reserved rises to ${humanBytes(reserved)}, live to ${humanBytes(live)}, over the whole run.`);
}

function drawSeries(context, chart, series, width, ratio, y) {
  const { timeline } = chart.policy;
  if (timeline.event.length === 0) return;
  const bottom = CHART_HEIGHT - MARGIN.bottom;
  const colour = themeColour(series);
  const solidColour = css(colour);
  const spreadColour = css(mixed(colour, themeColour("panel"), 0.5));
  const step = 1 / ratio;
  const right = width - MARGIN.right;
  for (let x = MARGIN.left; x < right; x += step) {
    const first = sampleIndex(chart.policy, eventAtX(x, width));
    const end = Math.max(first, sampleIndex(chart.policy, eventAtX(x + step, width) - 1)) + 1;
    if (end <= 0) continue;
    const [least, greatest] = chart.pyramids[series].range(Math.max(0, first), end);
    const solid = y(least);
    context.fillStyle = solidColour;
    context.fillRect(x, solid, step, bottom - solid);
    if (greatest === least) continue;
    context.fillStyle = spreadColour;
    context.fillRect(x, y(greatest), step, solid - y(greatest));
  }
}

// Lines at powers of two, which are round numbers in binary units.
function byteStep(highest, parts) {
  return 2 ** Math.max(0, Math.ceil(Math.log2(highest / parts)));
}

function drawAxes(context, width, highest, y) {
  context.font = "12px system-ui, sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = css(themeColour("line"));
  context.fillStyle = css(themeColour("muted"));
  context.textAlign = "right";
  context.textBaseline = "middle";
  const step = byteStep(highest, 5);
  for (let bytes = 0; bytes <= highest; bytes += step) {
    const at = Math.round(y(bytes)) + 0.5;
    context.beginPath();
    context.moveTo(MARGIN.left, at);
    context.lineTo(width - MARGIN.right, at);
    context.stroke();
    context.fillText(bytes === 0 ? "0" : humanBytes(bytes), MARGIN.left - 6, at);
  }
  context.textBaseline = "top";
  for (let part = 0; part <= 4; part += 1) {
    const value = axisValue(chosen.from) + (axisValue(chosen.to) - axisValue(chosen.from)) * (part / 4);
    const text = chosen.axis === "time" ? humanUs(value) : humanCount(Math.round(value));
    context.textAlign = part === 0 ? "left" : part === 4 ? "right" : "center";
    const x = MARGIN.left + ((width - MARGIN.left - MARGIN.right) * part) / 4;
    context.fillText(part === 0 && chosen.axis === "event" ? `event ${text}` : text, x, CHART_HEIGHT - MARGIN.bottom + 9);
  }
}

function drawTicks(context, events, width, colour, top, height) {
  if (events.length === 0) return;
  context.fillStyle = css(themeColour(colour));
  let before = -1;
  for (const event of events) {
    if (event < chosen.from || event > chosen.to) continue;
    const x = Math.round(xOfEvent(event, width));
    if (x !== before) context.fillRect(x, top, 2, height);
    before = x;
  }
}

// The page tests itself when it is opened with `#selftest=EVENT,EVENT,...`: it moves the scrubber to those events, presses
// keys, and writes what it then shows as JSON into an element that a test reads. It uses the same inputs as a reader.

function press(key, target = document.body, options = {}) {
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...options }));
  flush();
}

function shownSeries() {
  return charts.map((chart) => Object.fromEntries(SERIES.map((series) => [series, Number(chart.values[series].dataset.value)])));
}

function seenAt(event) {
  slider.value = event;
  slider.dispatchEvent(new Event("input"));
  const began = performance.now();
  flush();
  const ms = performance.now() - began;
  return { event: chosen.event, ms, words: document.getElementById("words").textContent, series: shownSeries() };
}

function pressedKeys() {
  const after = (key, options) => {
    press(key, document.body, options);
    return chosen.event;
  };
  const keys = { end: after("End"), left: after("ArrowLeft"), home: after("Home"), right: after("ArrowRight") };
  keys.far = after("ArrowRight", { shiftKey: true });
  keys.peak = after("p");
  map.canvas.focus();
  press("ArrowRight", map.canvas);
  keys.mapFocused = document.activeElement === map.canvas;
  keys.mapDetail = document.getElementById("map-detail").textContent;
  const row = document.querySelector("#tree tbody tr");
  row.focus();
  press("ArrowDown", row);
  keys.treeMoved = document.activeElement !== row && document.activeElement.parentElement === row.parentElement;
  return keys;
}

// The time of drawing all charts again, zoomed in and out.
function chartTimes() {
  return [0.1, Infinity].map((factor) => {
    zoom(factor);
    const began = performance.now();
    flush();
    return performance.now() - began;
  });
}

function runSelftest() {
  const [, list] = location.hash.match(/^#selftest=([\d,]*)$/) ?? [];
  if (list === undefined) return;
  const result = { loadMs: performance.now(), policies: {}, failures };
  if (charts.length > 0) testPictures(result, list.split(",").filter(Boolean).map(Number));
  document.body.append(element("pre", { id: "selftest" }, JSON.stringify(result)));
}

function testPictures(result, events) {
  model.policies.forEach((policy, index) => {
    press(String(index + 1));
    result.policies[policy.name] = events.map(seenAt);
  });
  result.keys = pressedKeys();
  result.chartMs = chartTimes();
  result.cells = [...document.querySelectorAll("#policies [data-key]")].map((cell) =>
    [cell.closest("tr").dataset.policy, cell.dataset.key, Number(cell.dataset.value)]);
  result.holders = [...document.querySelectorAll("#holders tbody [data-value]")].map((cell) => Number(cell.dataset.value));
  result.treeRows = document.querySelectorAll("#tree tbody tr").length;
  const { data } = map.canvas.getContext("2d").getImageData(0, 0, map.canvas.width, map.canvas.height);
  result.mapColours = new Set(new Uint32Array(data.buffer)).size;
  document.getElementById("theme").click();
  flush();
  result.theme = document.documentElement.dataset.theme;
}

// The page put together, drawn once, and opened at the live peak.

// A link can name what to show: `#event=3573&policy=classic&colouring=age&axis=time&theme=dark`, each part optional.
function openAtHash() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  chosen.policy = Math.max(0, model.policies.findIndex((policy) => policy.name === wanted.get("policy")));
  const event = Number.parseInt(wanted.get("event") ?? "", 10);
  chosen.event = Number.isNaN(event) ? livePeak() : Math.min(Math.max(event, 0), model.lastEvent);
  for (const name of ["axis", "colouring", "layout", "grouping", "tree-at"]) {
    const value = wanted.get(name);
    const input = [...document.querySelectorAll(`input[name=${name}]:enabled`)].find((radio) => radio.value === value);
    input?.click();
  }
  const theme = wanted.get("theme");
  if (theme && theme !== shownTheme()) document.getElementById("theme").click();
}

function start() {
  if (model.policies.length === 0 || model.events === 0) {
    document.getElementById("pictures").hidden = true;
    runSelftest();
    return;
  }
  buildCharts();
  buildMap();
  buildScrubber();
  buildControls();
  drawers.moment.push(drawTree, drawHolders);
  window.addEventListener("resize", () => redraw("charts", "moment"));
  openAtHash();
  redraw("charts", "moment");
  flush();
  runSelftest();
}

start();

// What the reader has chosen, and who draws it. A change marks what must be drawn; one animation frame draws it all, so
// a fast scrubber never draws more often than the screen shows.
const model = readModel();

const chosen = {
  event: 0,
  policy: 0,
  axis: "event", // or "time"
  from: 0, // the stretch of events that the charts show
  to: model.lastEvent,
  colouring: "size",
  layout: null, // "run" or "now"; null until the reader chooses
  grouping: "label", // or "stream"
  treeAt: "moment", // or "peak"
  selected: null, // {block} or {hole} of the map
};

const drawers = { charts: [], moment: [] };
const waiting = new Set();
let momentNow = null;

function chosenPolicy() {
  return model.policies[chosen.policy];
}

// The state at the chosen event, counted once however many parts of the page show it.
function currentMoment() {
  const policy = chosenPolicy();
  if (!momentNow || momentNow.event !== chosen.event || momentNow.policy !== policy.name) {
    momentNow = momentAt(model, policy, chosen.event);
  }
  return momentNow;
}

function redraw(...kinds) {
  if (waiting.size === 0) requestAnimationFrame(flush);
  for (const kind of kinds) waiting.add(kind);
}

// Draws what waits, now.
function flush() {
  const kinds = [...waiting];
  waiting.clear();
  for (const kind of kinds) for (const draw of drawers[kind]) draw();
}

function chooseEvent(event) {
  const next = Math.min(Math.max(Math.round(event), 0), model.lastEvent);
  if (next === chosen.event) return;
  chosen.event = next;
  chosen.selected = null;
  // Zoomed in, the charts follow the scrubber.
  if (next < chosen.from || next > chosen.to) {
    const width = chosen.to - chosen.from;
    chosen.from = Math.min(Math.max(0, next - Math.round(width / 2)), model.lastEvent - width);
    chosen.to = chosen.from + width;
    redraw("charts");
  }
  redraw("moment");
}

function choosePolicy(index) {
  if (index === chosen.policy) return;
  chosen.policy = index;
  chosen.selected = null;
  momentNow = null;
  redraw("charts", "moment");
}

// Element with attributes and children; text is always set as text, never as markup.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Makes a canvas as fine as the screen and gives its context, in device pixels.
function fitCanvas(canvas, cssHeight) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(cssHeight * ratio));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.height = `${cssHeight}px`;
  }
  return { context: canvas.getContext("2d"), width, height, ratio };
}

// The address-space map at the chosen moment: blocks by size, stream or age, holes between them, and what is not
// reserved left blank. Pointer and arrow keys pick a block or a hole, which is then said in words.
const ROWS = 16;
const ROW_HEIGHT = 17;
const ROW_GAP = 4;

const map = { canvas: document.getElementById("map"), extents: new Map(), layout: null };

function buildMap() {
  map.canvas.addEventListener("pointermove", (event) => pickAt(event));
  map.canvas.addEventListener("pointerleave", () => select(null));
  map.canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    selectNext(step);
  });
  drawers.moment.push(drawMap);
}

function runExtents(policy) {
  if (!map.extents.has(policy)) map.extents.set(policy, extentsOfRun(policy));
  return map.extents.get(policy);
}

// Where addresses are hardly used twice (a policy that gives everything back at once), a map of the whole run would be
// empty at every moment: until the reader chooses, such a policy is laid out by what is reserved now.
function layoutOf(policy) {
  if (chosen.layout) return chosen.layout;
  const runBytes = runExtents(policy).reduce((sum, extent) => sum + extent.end - extent.begin, 0);
  return runBytes > 4 * policy.figures.peak_reserved_bytes ? "now" : "run";
}

function mapLayout(policy, moment, width) {
  if (layoutOf(policy) === "now") return new MapLayout(moment.runs, width, ROWS);
  if (!map.layout || map.layout.policy !== policy || map.layout.width !== width) {
    map.layout = new MapLayout(runExtents(policy), width, ROWS);
    map.layout.policy = policy;
  }
  return map.layout;
}

function drawMap() {
  const policy = chosenPolicy();
  const moment = currentMoment();
  const { context, width, ratio } = fitCanvas(map.canvas, ROWS * (ROW_HEIGHT + ROW_GAP));
  const layout = mapLayout(policy, moment, width);
  map.drawn = { layout, moment, ratio };
  const line = paintLine(layout, moment, policy.blocks);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.putImageData(mapImage(policy, moment, line, width, ratio), 0, 0);
  const largest = moment.largestHole;
  if (largest && moment.holes.length > 1) outline(context, largest, css(themeColour("hole-mark")), 2 * ratio);
  const { selected } = chosen;
  if (selected) outline(context, rangeOf(policy, selected), css(themeColour("text")), 2 * ratio);
  map.canvas.setAttribute("aria-label", `Address-space map. ${describeMoment(moment)} Arrow keys walk through blocks and holes.`);
  document.getElementById("map-scale").textContent =
    `One row is ${humanBytes(layout.bytesPerPixel * width)}; one pixel is ${humanBytes(Math.round(layout.bytesPerPixel))}.`;
  describeSelected(policy, moment);
}

// Rows of pixels: each is made once and copied for its height. What waits for a stream is striped, line by line.
function mapImage(policy, moment, line, width, ratio) {
  const colours = { hole: themeColour("hole"), blank: packed(themeColour("panel")), paper: themeColour("panel") };
  const rowHeight = Math.round(ROW_HEIGHT * ratio);
  const pitch = (ROW_HEIGHT + ROW_GAP) * ratio;
  const image = new ImageData(width, map.canvas.height);
  const pixels = new Uint32Array(image.data.buffer).fill(colours.blank);
  const { colour } = COLOURINGS[chosen.colouring];
  const { died } = policy.blocks;
  const hole = packed(colours.hole);
  const known = new Map();
  const row = new Uint32Array(width);
  const stripes = new Uint32Array(width);
  for (let y = 0; y < ROWS; y += 1) {
    let striped = false;
    for (let x = 0; x < width; x += 1) {
      const pixel = y * width + x;
      const block = line.block[pixel];
      stripes[x] = 0;
      if (block < 0) {
        row[x] = line.mapped[pixel] ? hole : colours.blank;
        continue;
      }
      let full = known.get(block);
      if (!full) {
        const plain = colour(policy, block, moment.event, model.events);
        known.set(block, full = { plain, pixel: packed(plain) });
      }
      row[x] = full.pixel;
      const filled = line.filled[pixel];
      if (filled < 0.999 || line.edge[pixel]) {
        // Even one small block in a wide pixel must be seen.
        const shade = mixed(colours.hole, full.plain, Math.max(0.35, Math.min(1, filled)));
        row[x] = packed(line.edge[pixel] ? mixed(shade, colours.paper, 0.55) : shade);
      }
      if (died[block] <= moment.event) stripes[x] = hole;
      striped ||= stripes[x] !== 0;
    }
    const top = Math.round(y * pitch);
    for (let h = 0; h < rowHeight; h += 1) {
      const at = (top + h) * width;
      pixels.set(row, at);
      if (!striped) continue;
      for (let x = 0; x < width; x += 1) {
        if (stripes[x] !== 0 && (x + h) % Math.round(6 * ratio) < 3 * ratio) pixels[at + x] = stripes[x];
      }
    }
  }
  return image;
}

// Frames a range of addresses, which may go over several rows.
function outline(context, range, colour, lineWidth) {
  const { layout, ratio } = map.drawn;
  const from = layout.place(range.begin);
  const to = Math.max(from + 2, from + (range.end - range.begin) / layout.bytesPerPixel);
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  for (let row = Math.floor(from / layout.width); row * layout.width < to && row < ROWS; row += 1) {
    const left = Math.max(from - row * layout.width, 0);
    const right = Math.min(to - row * layout.width, layout.width);
    const top = Math.round(row * (ROW_HEIGHT + ROW_GAP) * ratio);
    const width = Math.max(right - left - lineWidth, 1);
    context.strokeRect(left + lineWidth / 2, top + lineWidth / 2, width, ROW_HEIGHT * ratio - lineWidth);
  }
}

function rangeOf(policy, { block, hole }) {
  if (hole) return hole;
  const begin = policy.blocks.address[block];
  return { begin, end: begin + policy.blocks.bytes[block] };
}

function select(selected) {
  const same = chosen.selected?.block === selected?.block && chosen.selected?.hole === selected?.hole;
  if (same) return;
  chosen.selected = selected;
  redraw("moment");
}

// What lies at an address: the last block or hole that begins at or before it, if it reaches that far.
function thingAt(address) {
  const { moment } = map.drawn;
  const blocks = chosenPolicy().blocks;
  const within = (begin, end) => begin <= address && address < end;
  const block = moment.used[lastNotAfter(moment.used.length, (i) => blocks.address[moment.used[i]], address)];
  if (block !== undefined && within(blocks.address[block], blocks.address[block] + blocks.bytes[block])) return { block };
  const hole = moment.holes[lastNotAfter(moment.holes.length, (i) => moment.holes[i].begin, address)];
  return hole && within(hole.begin, hole.end) ? { hole } : null;
}

function lastNotAfter(length, valueAt, value) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (valueAt(middle) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function pickAt(event) {
  if (!map.drawn) return;
  const { layout, ratio } = map.drawn;
  const box = map.canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / (ROW_HEIGHT + ROW_GAP));
  const place = row * layout.width + (event.clientX - box.left) * ratio;
  const address = layout.begins.length > 0 ? layout.address(place) : -1;
  select(address < 0 ? null : thingAt(address));
}

// The next thing by address, from the one that is picked.
function selectNext(step) {
  const moment = currentMoment();
  const policy = chosenPolicy();
  const things = [...moment.used].map((block) => ({ block })).concat(moment.holes.map((hole) => ({ hole })));
  if (things.length === 0) return;
  things.sort((a, b) => rangeOf(policy, a).begin - rangeOf(policy, b).begin);
  const { selected } = chosen;
  const now = selected ? things.findIndex((thing) => thing.block === selected.block && thing.hole === selected.hole) : -1;
  const next = now < 0 ? (step > 0 ? 0 : things.length - 1) : Math.min(Math.max(now + step, 0), things.length - 1);
  select(things[next]);
}

function describeSelected(policy, moment) {
  const { selected } = chosen;
  const text = !selected
    ? "Point at the map, or focus it and use the arrow keys, to read a block or a hole."
    : selected.hole ? describeHole(selected.hole) : describeBlock(model, policy, selected.block, moment.event);
  document.getElementById("map-detail").textContent = text;
}

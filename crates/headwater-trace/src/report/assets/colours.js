// Colours. The scale is viridis without its darkest end, the streams are Okabe and Ito's set: both are made to be told
// apart with any colour vision, and brightness alone still orders the scale.
const SCALE = [[70, 50, 126], [54, 92, 141], [39, 127, 142], [31, 161, 135], [74, 193, 109], [160, 218, 57], [253, 231, 37]];
const STREAMS = [[0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [213, 94, 0], [240, 228, 66]];

// A colour of the scale for a share between 0 and 1.
function scaleColour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const low = Math.min(Math.floor(place), SCALE.length - 2);
  return mixed(SCALE[low], SCALE[low + 1], place - low);
}

function mixed(from, to, share) {
  return from.map((part, i) => Math.round(part + (to[i] - part) * share));
}

function streamColour(stream) {
  return STREAMS[stream % STREAMS.length];
}

function css(colour) {
  return `rgb(${colour.join(" ")})`;
}

// A pixel as canvases keep it: alpha, blue, green, red from the highest byte down.
function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// The value of a colour of page.css in the theme in force, as [red, green, blue]. Custom properties keep `light-dark()`
// unresolved, so it is read through the colour of an element.
// Reading it makes the browser work out all styles, so it is kept until the theme changes.
const themeColours = new Map();

function themeColour(name) {
  if (!themeColours.has(name)) {
    const probe = document.getElementById("probe");
    probe.style.color = `var(--${name})`;
    const parts = getComputedStyle(probe).color.match(/[\d.]+/g);
    themeColours.set(name, parts.slice(0, 3).map(Number));
  }
  return themeColours.get(name);
}

// The place of a number between the ends of a logarithmic scale, 0 to 1: sizes and ages span many powers of two.
function logShare(value, least, greatest) {
  const width = Math.log2(greatest + 1) - Math.log2(least + 1);
  return width > 0 ? (Math.log2(value + 1) - Math.log2(least + 1)) / width : 0.5;
}

// Five steps of that scale, as colours and texts.
function logLegend(least, greatest, text, share = (part) => part) {
  const from = Math.log2(least + 1);
  const to = Math.log2(greatest + 1);
  return [0, 0.25, 0.5, 0.75, 1].map((part) =>
    [css(scaleColour(share(part))), text(Math.round(2 ** (from + (to - from) * part)) - 1)]);
}

// The smallest and the largest block of the run: the scale must not change while the scrubber moves.
function sizeRange(policy) {
  if (!policy.sizeRange) {
    const range = [Infinity, 0];
    for (const bytes of policy.blocks.bytes) {
      if (bytes < range[0]) range[0] = bytes;
      if (bytes > range[1]) range[1] = bytes;
    }
    policy.sizeRange = range;
  }
  return policy.sizeRange;
}

// How the map colours a block. Large blocks fill the map, so most of the scale is theirs: the share is squared.
const COLOURINGS = {
  size: {
    colour: (policy, block) => scaleColour(logShare(policy.blocks.bytes[block], ...sizeRange(policy)) ** 2),
    legend: (policy) => {
      const range = sizeRange(policy);
      return range[1] === 0 ? [] : logLegend(...range, humanBytes, (part) => part ** 2);
    },
  },
  stream: {
    colour: (policy, block) => streamColour(policy.blocks.stream[block]),
    legend: (policy, model) => model.streams.slice(0, 12).map((name, stream) => [css(streamColour(stream)), name]),
  },
  // Young blocks are bright.
  age: {
    colour: (policy, block, event, events) => scaleColour(1 - logShare(event - policy.blocks.born[block], 0, events)),
    legend: (policy, model) => logLegend(0, model.events, (age) => `${humanCount(age)} events old`, (part) => 1 - part),
  },
};

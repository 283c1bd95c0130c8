// The data of the page as typed arrays. Timelines are read at once; blocks and spans of a policy when it is first looked
// at, because they are most of the file.

function readModel() {
  const meta = JSON.parse(document.getElementById("meta").textContent);
  const model = {
    trace: meta.trace,
    events: meta.events,
    lastEvent: Math.max(0, meta.events - 1),
    times: elapsedTimes(readColumn(meta.times_us)),
    marks: meta.marks,
    streams: meta.streams,
    labels: readLabels(meta),
    policies: [],
  };
  model.policies = meta.policies.map((policy) => readPolicy(policy, model));
  return model;
}

// Times of real logs step back by microseconds; the axis must not.
function elapsedTimes(times) {
  const first = times.length > 0 ? times[0] : 0;
  let latest = 0;
  for (let i = 0; i < times.length; i += 1) {
    latest = Math.max(latest, times[i] - first);
    times[i] = latest;
  }
  return times;
}

// Labels as one tree of frames: `parent` and `frame` of each node (a parent comes before its children), and the node
// of each label. Node 0 is the root, and also the node of "no label".
function readLabels(meta) {
  const lengths = readColumn(meta.label_lengths);
  const frames = readColumn(meta.label_frames);
  const tree = { names: ["everything"], parent: [-1], nodeOf: new Uint32Array(Math.max(1, lengths.length)) };
  const children = [new Map()];
  let at = 0;
  for (let label = 0; label < lengths.length; label += 1) {
    let node = 0;
    for (let depth = 0; depth < lengths[label]; depth += 1) {
      const frame = frames[at++];
      let child = children[node].get(frame);
      if (child === undefined) {
        child = tree.names.length;
        tree.names.push(meta.frames[frame]);
        tree.parent.push(node);
        children.push(new Map());
        children[node].set(frame, child);
      }
      node = child;
    }
    tree.nodeOf[label] = node;
  }
  return tree;
}

function readPolicy(meta, model) {
  const columns = meta.timeline;
  const live = readColumn(columns.live);
  const allocated = added(readColumn(columns.allocated_less_live), live);
  const active = added(readColumn(columns.active_less_allocated), allocated);
  const event = Uint32Array.from(readColumn(columns.event));
  let blocks = null;
  let spans = null;
  return {
    name: meta.figures.policy,
    figures: meta.figures,
    oomEvents: readColumn(meta.oom_events),
    timeline: { event, live, allocated, active, reserved: readColumn(columns.reserved) },
    get blocks() {
      blocks ??= readBlocks(meta.blocks, model.events);
      return blocks;
    },
    get spans() {
      spans ??= readSpans(meta.spans, model.events);
      return spans;
    },
  };
}

function added(values, to) {
  for (let i = 0; i < values.length; i += 1) values[i] += to[i];
  return values;
}

function readBlocks(columns, events) {
  const born = Uint32Array.from(readColumn(columns.born));
  const died = endsOf(born, readColumn(columns.life));
  const completed = endsOf(died, readColumn(columns.wait));
  const address = readColumn(columns.address);
  return {
    address,
    bytes: readColumn(columns.bytes),
    requested: readColumn(columns.requested_bytes),
    stream: Uint16Array.from(readColumn(columns.stream)),
    label: Uint32Array.from(readColumn(columns.label)),
    born,
    died,
    completed,
    lives: new Lives(address, born, completed, events),
  };
}

function readSpans(columns, events) {
  const born = Uint32Array.from(readColumn(columns.born));
  const died = endsOf(born, readColumn(columns.life));
  const address = readColumn(columns.address);
  return {
    address,
    bytes: readColumn(columns.bytes),
    arena: readColumn(columns.arena),
    lives: new Lives(address, born, died, events),
  };
}

// A length of 0 means: to the end. What never began to end never ends.
function endsOf(from, lengths) {
  const ends = new Uint32Array(from.length);
  for (let i = 0; i < ends.length; i += 1) {
    ends[i] = lengths[i] === 0 || from[i] === NEVER ? NEVER : from[i] + lengths[i] - 1;
  }
  return ends;
}

// The place of the sample that holds at `event`, -1 before the first.
function sampleIndex(policy, event) {
  return lowerBound(policy.timeline.event, event + 1) - 1;
}

// The first event at which `series` is at its highest.
function peakEvent(policy, values) {
  let best = 0;
  for (let i = 1; i < values.length; i += 1) if (values[i] > values[best]) best = i;
  return values.length === 0 ? 0 : policy.timeline.event[best];
}

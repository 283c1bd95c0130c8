// The state of one policy after one event: what report/moment.rs counts, with the index of lives.js.

function momentAt(model, policy, event) {
  const index = sampleIndex(policy, event);
  const timeline = policy.timeline;
  const value = (series) => (index < 0 ? 0 : timeline[series][index]);
  const moment = {
    policy: policy.name,
    event,
    timeUs: model.times.length > 0 ? model.times[event] : 0,
    live: value("live"),
    allocated: value("allocated"),
    active: value("active"),
    reserved: value("reserved"),
    used: policy.blocks.lives.at(event),
    heldBlocks: 0,
    runs: runsAt(policy, event),
    mappedBytes: 0,
    freeBytes: 0,
    holes: [],
    largestHole: null,
  };
  const { died } = policy.blocks;
  for (const block of moment.used) if (died[block] > event) moment.heldBlocks += 1;
  findHoles(moment, policy.blocks);
  return moment;
}

// Spans that exist, with neighbours of one arena joined: `{begin, end}` by address.
function runsAt(policy, event) {
  const { address, bytes, arena, lives } = policy.spans;
  const runs = [];
  let arenaBefore = -1;
  for (const span of lives.at(event)) {
    const begin = address[span];
    const last = runs[runs.length - 1];
    if (last && last.end === begin && arenaBefore === arena[span]) last.end += bytes[span];
    else runs.push({ begin, end: begin + bytes[span] });
    arenaBefore = arena[span];
  }
  return runs;
}

function findHoles(moment, blocks) {
  const { used, runs } = moment;
  let next = 0;
  function hole(begin, end) {
    if (end <= begin) return;
    const found = { begin, end };
    moment.holes.push(found);
    moment.freeBytes += end - begin;
    const largest = moment.largestHole;
    if (!largest || end - begin > largest.end - largest.begin) moment.largestHole = found;
  }
  for (const run of runs) {
    moment.mappedBytes += run.end - run.begin;
    let reached = run.begin;
    while (next < used.length && blocks.address[used[next]] < run.end) {
      const begin = blocks.address[used[next]];
      hole(reached, begin);
      reached = Math.max(reached, begin + blocks.bytes[used[next]]);
      next += 1;
    }
    hole(reached, run.end);
  }
}

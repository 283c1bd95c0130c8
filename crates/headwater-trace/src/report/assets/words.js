// What a moment shows, in words. report/words.rs writes the same text; a browser test compares the two.

function describeMoment(moment) {
  const held = moment.live === 0 ? "nothing" : humanBytes(moment.live);
  const blocks = moment.heldBlocks === 0 ? "" : ` in ${plural(moment.heldBlocks, "block")}`;
  let text = `At event ${humanCount(moment.event)} (${humanUs(moment.timeUs)}) the program holds ${held}${blocks}. `;
  if (moment.mappedBytes === 0) return `${text}${moment.policy} has nothing reserved.`;
  text += `${moment.policy} has ${humanBytes(moment.mappedBytes)} reserved in ${plural(moment.runs.length, "piece")}. `;
  const pending = moment.active - moment.allocated;
  if (pending > 0) text += `${humanBytes(pending)} was given back but is still used by a stream. `;
  return text + describeHoles(moment);
}

function describeHoles(moment) {
  const count = moment.holes.length;
  if (count === 0) return "All of it is in use.";
  const share = humanShare(moment.freeBytes / moment.mappedBytes);
  const free = `${share} of reserved memory (${humanBytes(moment.freeBytes)}) is free`;
  if (count === 1) return `${free}, in one hole.`;
  const largest = humanBytes(moment.largestHole.end - moment.largestHole.begin);
  const holes = humanCount(count);
  return `${free} but split among ${holes} holes; the largest is ${largest}. A larger request fits none of them.`;
}

// One block of the map, in words.
function describeBlock(model, policy, block, event) {
  const { address, bytes, requested, stream, label, born, died } = policy.blocks;
  const parts = [
    `Block of ${humanBytes(bytes[block])} at ${humanAddress(address[block])}`,
    `asked for ${humanCount(requested[block])} bytes`,
    model.streams[stream[block]] ?? `stream ${stream[block]}`,
    `born at event ${humanCount(born[block])}, ${plural(event - born[block], "event")} ago`,
  ];
  if (died[block] <= event) parts.push("given back, but still used by a stream");
  else parts.push(died[block] === NEVER ? "held to the end" : `given back at event ${humanCount(died[block])}`);
  const node = model.labels.nodeOf[label[block]];
  if (node > 0) parts.push(model.labels.names[node]);
  return parts.join(" · ");
}

function describeHole(hole) {
  return `Hole of ${humanBytes(hole.end - hole.begin)} at ${humanAddress(hole.begin)}: reserved and free`;
}

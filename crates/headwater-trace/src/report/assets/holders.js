// The largest holders at the peak of live memory: by label where the trace has labels, else by size and stream. The peak
// does not move with the scrubber, so this is made once for each policy.
const HOLDERS = 15;
const peaks = new Map();

function peakMoment() {
  const policy = chosenPolicy();
  if (!peaks.has(policy)) peaks.set(policy, momentAt(model, policy, peakEvent(policy, policy.timeline.live)));
  return peaks.get(policy);
}

function largestHolders(policy, moment) {
  const { blocks } = policy;
  const groups = new Map();
  for (const block of moment.used) {
    if (blocks.died[block] <= moment.event) continue;
    const label = blocks.label[block];
    const key = label > 0 ? `label ${label}` : `size ${blocks.requested[block]} ${blocks.stream[block]}`;
    const group = groups.get(key) ?? { label, bytes: 0, count: 0, largest: 0, oldest: NEVER, stream: blocks.stream[block] };
    group.bytes += blocks.requested[block];
    group.count += 1;
    group.largest = Math.max(group.largest, blocks.requested[block]);
    group.oldest = Math.min(group.oldest, blocks.born[block]);
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes || a.oldest - b.oldest);
}

// A call stack in one line, innermost first, as far as it can help.
function labelPath(node) {
  const { names, parent } = model.labels;
  const path = [];
  for (let at = node; at > 0 && path.length < 6; at = parent[at]) path.push(names[at]);
  return path.join(" ‹ ");
}

function holderName(group) {
  const node = model.labels.nodeOf[group.label];
  if (group.label > 0 && node > 0) return labelPath(node);
  const stream = model.streams[group.stream] ?? `stream ${group.stream}`;
  return `${group.count === 1 ? "a block" : "blocks"} of ${humanBytes(group.largest)} on ${stream}`;
}

let holdersOf = null;

function drawHolders() {
  const policy = chosenPolicy();
  if (holdersOf === policy) return;
  holdersOf = policy;
  const moment = peakMoment();
  const groups = largestHolders(policy, moment);
  const total = groups.reduce((sum, group) => sum + group.bytes, 0) || 1;
  const rows = groups.slice(0, HOLDERS).map((group) => element("tr", {},
    element("th", { scope: "row", class: "name", title: holderName(group) }, holderName(group)),
    element("td", { class: "n", "data-value": group.bytes }, humanBytes(group.bytes)),
    element("td", { class: "n" }, humanShare(group.bytes / total)),
    element("td", { class: "n" }, humanCount(group.count)),
    element("td", { class: "n" }, humanCount(group.oldest))));
  document.querySelector("#holders tbody").replaceChildren(...rows);
  const shown = groups.slice(0, HOLDERS).reduce((sum, group) => sum + group.bytes, 0);
  document.getElementById("holders-words").textContent =
    `At event ${humanCount(moment.event)} the program holds the most, ${humanBytes(total === 1 ? 0 : total)}. ` +
    `These ${plural(Math.min(HOLDERS, groups.length), "holder")} have ${humanShare(shown / total)} of it.`;
}

// Who holds the memory: a tree of labels or call stacks, or of streams and sizes where the trace has no labels. Sums are
// made bottom-up over a fixed tree (a parent comes before its children), so a moment costs its blocks plus the nodes.
const TREE_CHILDREN = 12;
const opened = new Map();

// Streams, and in each the powers of two of sizes.
function sizeTree() {
  const tree = { names: ["everything"], parent: [-1] };
  const nodes = model.streams.map((name) => {
    tree.names.push(name);
    tree.parent.push(0);
    const stream = tree.names.length - 1;
    const sizes = [];
    for (let log = 0; log < 54; log += 1) {
      tree.names.push(log === 0 ? "up to 1 B" : `${humanBytes(2 ** (log - 1))} to ${humanBytes(2 ** log)}`);
      tree.parent.push(stream);
      sizes.push(tree.names.length - 1);
    }
    return sizes;
  });
  tree.leaf = (blocks, block) => nodes[blocks.stream[block]]?.[Math.ceil(Math.log2(Math.max(1, blocks.requested[block])))] ?? 0;
  return tree;
}

function labelTree() {
  const { names, parent, nodeOf } = model.labels;
  return { names, parent, leaf: (blocks, block) => nodeOf[blocks.label[block]] };
}

const trees = {};

function chosenTree() {
  const name = chosen.grouping;
  trees[name] ??= name === "label" ? labelTree() : sizeTree();
  return trees[name];
}

function sumTree(tree, policy, moment) {
  const bytes = new Float64Array(tree.names.length);
  const count = new Uint32Array(tree.names.length);
  const { blocks } = policy;
  for (const block of moment.used) {
    if (blocks.died[block] <= moment.event) continue;
    const leaf = tree.leaf(blocks, block);
    bytes[leaf] += blocks.requested[block];
    count[leaf] += 1;
  }
  for (let node = bytes.length - 1; node > 0; node -= 1) {
    bytes[tree.parent[node]] += bytes[node];
    count[tree.parent[node]] += count[node];
  }
  const children = new Map();
  for (let node = 1; node < bytes.length; node += 1) {
    if (count[node] === 0) continue;
    if (!children.has(tree.parent[node])) children.set(tree.parent[node], []);
    children.get(tree.parent[node]).push(node);
  }
  for (const list of children.values()) list.sort((a, b) => bytes[b] - bytes[a]);
  return { bytes, count, children };
}

// The rows to show, top down. A chain of calls with one callee each is one row: its last frame behind those before it.
function treeRows(sums) {
  const rows = [];
  function visit(node, level) {
    const skipped = [];
    let list = sums.children.get(node) ?? [];
    while (node !== 0 && list.length === 1 && sums.count[list[0]] === sums.count[node]) {
      skipped.push(node);
      node = list[0];
      list = sums.children.get(node) ?? [];
    }
    const large = sums.bytes[node] > sums.bytes[0] * 0.25 && level < 4;
    const open = list.length > 0 && (opened.get(node) ?? (level === 0 || large));
    rows.push({ node, level, skipped, leaf: list.length === 0, open });
    if (!open) return;
    for (const child of list.slice(0, TREE_CHILDREN)) visit(child, level + 1);
    const others = list.slice(TREE_CHILDREN);
    if (others.length > 0) rows.push({ others, level: level + 1, leaf: true });
  }
  visit(0, 0);
  return rows;
}

function drawTree() {
  const policy = chosenPolicy();
  const atPeak = chosen.treeAt === "peak";
  const moment = atPeak ? peakMoment() : currentMoment();
  const tree = chosenTree();
  const sums = sumTree(tree, policy, moment);
  const body = document.querySelector("#tree tbody");
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.node : null;
  const total = sums.bytes[0] || 1;
  const rows = treeRows(sums).map((row) => treeRow(tree, sums, row, total));
  body.replaceChildren(...rows);
  const target = rows.find((row) => row.dataset.node === focused) ?? rows[0];
  target.tabIndex = 0;
  if (focused !== null) target.focus();
}

function treeRow(tree, sums, row, total) {
  const nodes = row.others ?? [row.node];
  const bytes = nodes.reduce((sum, node) => sum + sums.bytes[node], 0);
  const count = nodes.reduce((sum, node) => sum + sums.count[node], 0);
  const name = row.others ? `${humanCount(row.others.length)} others` : tree.names[row.node];
  const cell = element("th", { scope: "row", class: "name", title: name });
  cell.style.setProperty("--level", row.level);
  cell.append(element("span", { class: "twist", "aria-hidden": "true" }, row.leaf ? "" : row.open ? "▾" : "▸"));
  const skipped = row.skipped ?? [];
  if (skipped.length > 0) {
    const before = skipped.map((node) => tree.names[node]).join(" › ");
    cell.append(element("span", { class: "muted" }, `${skipped.length > 2 ? plural(skipped.length, "call") : before} › `));
  }
  cell.append(...frameParts(name));
  const bar = element("td", { class: "bar" }, element("span", {}));
  bar.firstChild.style.width = `${(bytes / total) * 100}%`;
  const out = element("tr", { "aria-level": row.level + 1, tabindex: -1, "data-node": row.node ?? "" }, cell, bar,
    element("td", { class: "n" }, humanBytes(bytes)),
    element("td", { class: "n" }, humanShare(bytes / total)),
    element("td", { class: "n" }, humanCount(count)));
  if (!row.leaf) out.setAttribute("aria-expanded", String(row.open));
  out.addEventListener("click", () => !row.leaf && openRow(row.node, !row.open));
  out.addEventListener("keydown", (event) => treeKey(event, out, row));
  return out;
}

// A frame with its place in the source paler than its function.
function frameParts(name) {
  const [, call, place] = name.match(/^(.+) (\(.*:\d+\))$/s) ?? [null, name, ""];
  return place ? [call, " ", element("span", { class: "muted" }, place)] : [call];
}

function openRow(node, open) {
  opened.set(node, open);
  drawTree();
}

function treeKey(event, out, row) {
  const focus = (to) => {
    if (!to) return;
    out.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };
  const actions = {
    ArrowDown: () => focus(out.nextElementSibling),
    ArrowUp: () => focus(out.previousElementSibling),
    ArrowRight: () => (row.leaf || row.open ? focus(out.nextElementSibling) : openRow(row.node, true)),
    ArrowLeft: () => (row.open ? openRow(row.node, false) : focus(out.previousElementSibling)),
    Enter: () => !row.leaf && openRow(row.node, !row.open),
    " ": () => !row.leaf && openRow(row.node, !row.open),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  actions[event.key]();
}

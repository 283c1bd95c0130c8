// The choices beside the pictures: policy, colours, layout, axis, grouping, theme.

function bindRadios(name, apply) {
  for (const input of document.querySelectorAll(`input[name=${name}]`)) {
    input.addEventListener("change", () => input.checked && apply(input.value));
  }
}

function buildPolicyChoice() {
  const parent = document.getElementById("policy-choice");
  model.policies.forEach((policy, index) => {
    const input = element("input", { type: "radio", name: "policy", value: index });
    input.addEventListener("change", () => choosePolicy(index));
    parent.append(element("label", {}, input, policy.name));
  });
  drawers.moment.push(() => {
    for (const input of parent.querySelectorAll("input")) input.checked = Number(input.value) === chosen.policy;
    document.querySelector(`input[name=layout][value=${layoutOf(chosenPolicy())}]`).checked = true;
    if (legendOf !== chosenPolicy()) drawLegend();
  });
}

let legendOf = null;

function drawLegend() {
  legendOf = chosenPolicy();
  const swatch = (colour, text) => {
    const mark = element("i", { "aria-hidden": "true" });
    mark.style.background = colour;
    return element("span", {}, mark, text);
  };
  const blocks = COLOURINGS[chosen.colouring].legend(chosenPolicy(), model).map(([colour, text]) => swatch(colour, text));
  document.getElementById("map-legend").replaceChildren(...blocks,
    swatch("var(--hole)", "hole: reserved, free"),
    element("span", {}, element("i", { class: "largest", "aria-hidden": "true" }), "largest hole"),
    element("span", {}, element("i", { class: "waiting", "aria-hidden": "true" }), "given back, still used"));
}

function buildControls() {
  buildPolicyChoice();
  bindRadios("axis", (value) => { chosen.axis = value; redraw("charts", "moment"); });
  bindRadios("colouring", (value) => { chosen.colouring = value; drawLegend(); redraw("moment"); });
  bindRadios("layout", (value) => { chosen.layout = value; redraw("moment"); });
  bindRadios("grouping", (value) => { chosen.grouping = value; redraw("moment"); });
  bindRadios("tree-at", (value) => { chosen.treeAt = value; redraw("moment"); });
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => zoom(Infinity));
  const hasLabels = model.labels.names.length > 1;
  if (!hasLabels) {
    chosen.grouping = "stream";
    document.querySelector("input[name=grouping][value=stream]").checked = true;
    document.querySelector("input[name=grouping][value=label]").disabled = true;
    document.getElementById("no-labels").hidden = false;
  }
  buildTheme();
}

const darkSystem = matchMedia("(prefers-color-scheme: dark)");

function shownTheme() {
  return document.documentElement.dataset.theme ?? (darkSystem.matches ? "dark" : "light");
}

// The theme follows the system until the button is pressed; paper is always light.
function buildTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const changed = () => {
    themeColours.clear();
    button.textContent = shownTheme() === "dark" ? "Light mode" : "Dark mode";
    redraw("charts", "moment");
  };
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    changed();
  };
  changed();
  button.addEventListener("click", () => setTheme(shownTheme() === "dark" ? "light" : "dark"));
  darkSystem.addEventListener("change", changed);
  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    setTheme("light");
    flush();
  });
  window.addEventListener("afterprint", () => setTheme(before));
}

// The chosen moment: the slider, its keys and buttons, and the words that follow it.
const slider = document.getElementById("slider");
let spoken = 0;

function buildScrubber() {
  slider.max = model.lastEvent;
  slider.addEventListener("input", () => chooseEvent(Number(slider.value)));
  const jumps = { start: () => 0, peak: livePeak, free: mostFree, end: () => model.lastEvent };
  for (const [name, event] of Object.entries(jumps)) {
    document.getElementById(`jump-${name}`).addEventListener("click", () => chooseEvent(event()));
  }
  document.addEventListener("keydown", scrubberKey);
  drawers.moment.push(drawWords);
}

function livePeak() {
  return peakEvent(chosenPolicy(), chosenPolicy().timeline.live);
}

// Where most of what is reserved lies idle.
function mostFree() {
  const { timeline } = chosenPolicy();
  return peakEvent(chosenPolicy(), timeline.reserved.map((bytes, i) => bytes - timeline.active[i]));
}

// Keys work wherever they mean nothing else. The slider has keys of its own, but steps them by its own measure.
function scrubberKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const target = event.target;
  if (target instanceof HTMLSelectElement || (target instanceof HTMLInputElement && target !== slider)) return;
  const large = Math.max(1, Math.round((chosen.to - chosen.from) / 100));
  const step = event.shiftKey ? large : 1;
  const actions = {
    ArrowLeft: () => chooseEvent(chosen.event - step),
    ArrowRight: () => chooseEvent(chosen.event + step),
    Home: () => chooseEvent(0),
    End: () => chooseEvent(model.lastEvent),
    p: () => chooseEvent(livePeak()),
    f: () => chooseEvent(mostFree()),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: () => zoom(Infinity),
  };
  // Page keys move the slider when it has the focus, and scroll the page elsewhere.
  if (target === slider) {
    actions.PageUp = () => chooseEvent(chosen.event + large * 10);
    actions.PageDown = () => chooseEvent(chosen.event - large * 10);
    actions.ArrowUp = actions.ArrowRight;
    actions.ArrowDown = actions.ArrowLeft;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= model.policies.length) actions[event.key] = () => choosePolicy(number - 1);
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function lastMark() {
  const { marks } = model;
  return marks[lastNotAfter(marks.length, (i) => marks[i].event, chosen.event)]?.text ?? "";
}

function drawWords() {
  const moment = currentMoment();
  const text = describeMoment(moment);
  slider.value = chosen.event;
  const [event, last, time] = [humanCount(chosen.event), humanCount(model.lastEvent), humanUs(moment.timeUs)];
  slider.setAttribute("aria-valuetext", `event ${event} of ${last}, ${time}`);
  document.getElementById("words").textContent = text;
  const mark = lastMark();
  document.getElementById("place").textContent =
    `event ${event} / ${last} · ${time}${mark ? ` · after “${mark}”` : ""}`;
  // Spoken once the scrubber rests: a reader would be flooded otherwise.
  clearTimeout(spoken);
  spoken = setTimeout(() => { document.getElementById("spoken").textContent = text; }, 400);
}

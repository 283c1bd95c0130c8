// What goes wrong is shown, not left to the console: a page that stays blank explains nothing.
const failures = [];

function showFailure(text) {
  failures.push(text);
  const banner = document.getElementById("failure");
  banner.textContent = "This page failed: " + text;
  banner.hidden = false;
}

window.addEventListener("error", (event) => showFailure(event.message));

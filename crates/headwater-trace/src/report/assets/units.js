// Numbers for people. report/units.rs writes the same texts; a browser test compares the two.
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// Rounds half up and drops trailing zeros.
function rounded(value, digits) {
  const scale = 10 ** digits;
  return String(Math.floor(value * scale + 0.5) / scale);
}

function threeDigits(value) {
  return rounded(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function humanBytes(bytes) {
  let value = bytes;
  let unit = 0;
  // 1023.6 would be written as "1024": it belongs to the next unit.
  while (value >= 1023.5 && unit + 1 < BYTE_UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${threeDigits(value)} ${BYTE_UNITS[unit]}`;
}

function humanUs(us) {
  if (us < 999.5) return `${threeDigits(us)} µs`;
  if (us < 999500) return `${threeDigits(us / 1e3)} ms`;
  return `${threeDigits(us / 1e6)} s`;
}

function humanShare(share) {
  const percent = share * 100;
  return `${rounded(percent, Math.abs(percent) < 9.95 ? 1 : 0)} %`;
}

function humanCount(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

function plural(count, noun) {
  return `${humanCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function humanAddress(address) {
  return "0x" + address.toString(16);
}

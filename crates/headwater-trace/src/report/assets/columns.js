// Reads the columns that report/columns.rs wrote: base64, then `unit`, `count` and tokens as LEB128 numbers. A token is
// the zigzag difference to the value before; a token 0 is followed by how many more equal values come.

function columnBytes(number) {
  const text = document.getElementById(`column-${number}`).textContent;
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function decodeColumn(bytes) {
  let at = 0;
  // Numbers go up to 2^54: the low 28 bits by shifts, the rest by multiplication, since shifts end at 32 bits.
  function next() {
    let byte = bytes[at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    for (let shift = 7; shift < 28; shift += 7) {
      byte = bytes[at++];
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    for (let scale = 2 ** 28; byte >= 128; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
    }
    return value;
  }
  const unit = next();
  const values = new Float64Array(next());
  let value = 0;
  for (let i = 0; i < values.length; ) {
    const token = next();
    if (token === 0) {
      const end = i + next() + 1;
      values.fill(value * unit, i, end);
      i = end;
    } else {
      value += token % 2 === 0 ? token / 2 : -(token + 1) / 2;
      values[i++] = value * unit;
    }
  }
  return values;
}

function readColumn(number) {
  return decodeColumn(columnBytes(number));
}

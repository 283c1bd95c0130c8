// Where an address lies on the map. The map is one long line of pixels, folded into rows: addresses follow one another
// from left to right, row by row. What has no memory behind it at all is left out, with a small gap in its place.

// The stretches of addresses that had memory at any time, by address. The map laid out by them keeps every block at its
// place while the scrubber moves.
function extentsOfRun(policy) {
  const { address, bytes, lives } = policy.spans;
  const extents = [];
  for (const span of lives.byRank) {
    const begin = address[span];
    const end = begin + bytes[span];
    const last = extents[extents.length - 1];
    if (last && begin < last.end) last.end = Math.max(last.end, end);
    else extents.push({ begin, end });
  }
  return extents;
}

class MapLayout {
  constructor(extents, width, rows) {
    this.begins = Float64Array.from(extents, (extent) => extent.begin);
    this.ends = Float64Array.from(extents, (extent) => extent.end);
    this.pixels = width * rows;
    this.width = width;
    const bytes = extents.reduce((sum, extent) => sum + extent.end - extent.begin, 0);
    // With thousands of segments the gaps would take all the room.
    this.gap = extents.length * 3 < this.pixels / 8 ? 3 : 0;
    this.bytesPerPixel = Math.max(bytes, 1) / (this.pixels - this.gap * extents.length);
    this.starts = new Float64Array(extents.length);
    let at = 0;
    for (let i = 0; i < extents.length; i += 1) {
      this.starts[i] = at;
      at += (this.ends[i] - this.begins[i]) / this.bytesPerPixel + this.gap;
    }
  }

  // The place on the line, as a fraction of pixels, of an address inside an extent.
  place(address) {
    const extent = Math.max(0, lowerBound(this.begins, address + 1) - 1);
    return this.starts[extent] + (address - this.begins[extent]) / this.bytesPerPixel;
  }

  // The same for addresses that rise from call to call: the extent is found by walking on.
  walker() {
    let extent = 0;
    return (address) => {
      while (extent + 1 < this.begins.length && this.begins[extent + 1] <= address) extent += 1;
      return this.starts[extent] + (address - this.begins[extent]) / this.bytesPerPixel;
    };
  }

  // The address at a place, or -1 in a gap.
  address(place) {
    const extent = Math.max(0, lowerBound(this.starts, place + 1e-9) - 1);
    const address = this.begins[extent] + (place - this.starts[extent]) * this.bytesPerPixel;
    return address < this.ends[extent] ? address : -1;
  }
}

// What each pixel of the line shows. A pixel can hold many small blocks: it shows the one that fills most of it, and how
// much of it is filled at all. The cost is the pixels plus the blocks, not their product.
function paintLine(layout, moment, blocks) {
  const line = {
    block: new Int32Array(layout.pixels).fill(-1),
    filled: new Float32Array(layout.pixels),
    mapped: new Uint8Array(layout.pixels),
    edge: new Uint8Array(layout.pixels),
  };
  const placeOfRun = layout.walker();
  for (const run of moment.runs) {
    const from = placeOfRun(run.begin);
    const to = from + (run.end - run.begin) / layout.bytesPerPixel;
    line.mapped.fill(1, Math.floor(from), Math.max(Math.floor(from) + 1, Math.round(to)));
  }
  const most = new Float32Array(layout.pixels);
  const placeOfBlock = layout.walker();
  for (const block of moment.used) {
    const from = placeOfBlock(blocks.address[block]);
    const to = Math.min(from + blocks.bytes[block] / layout.bytesPerPixel, layout.pixels);
    for (let pixel = Math.floor(from); pixel < to; pixel += 1) {
      const share = Math.min(to, pixel + 1) - Math.max(from, pixel);
      line.filled[pixel] += share;
      if (share > most[pixel]) {
        most[pixel] = share;
        line.block[pixel] = block;
      }
    }
    // A darker last pixel parts neighbours of one colour.
    if (to - from >= 4) line.edge[Math.ceil(to) - 1] = 1;
  }
  return line;
}

// Which things exist at a moment, in the order of their addresses. Things are sorted by birth.
//
// Every few events a checkpoint keeps the list of what exists, by address. A moment is the last checkpoint before it, less
// what has ended since, merged with what was born since: only the few newborn are sorted. The cost is what exists plus
// one stretch, however long the trace is.
const NEVER = 0xffffffff;
const CHECKPOINT_BUDGET = 8e6;

class Lives {
  constructor(address, born, end, events) {
    this.born = born;
    this.end = end;
    this.byRank = addressOrder(address);
    this.rank = new Uint32Array(address.length);
    for (let i = 0; i < this.byRank.length; i += 1) this.rank[this.byRank[i]] = i;
    this.checkpoint(events);
  }

  // Memory is bounded: when the lists get too long, every second one is dropped and the stretch doubles.
  checkpoint(events) {
    this.stretch = 1024;
    this.lists = [new Uint32Array(0)];
    let entries = 0;
    for (let event = this.stretch; event <= events; event += this.stretch) {
      const list = this.from(this.lists[this.lists.length - 1], event - this.stretch, event - 1);
      this.lists.push(list);
      entries += list.length;
      if (entries > CHECKPOINT_BUDGET && this.lists.length % 2 === 1) {
        this.lists = this.lists.filter((_, index) => index % 2 === 0);
        this.stretch *= 2;
        entries = this.lists.reduce((sum, kept) => sum + kept.length, 0);
      }
    }
  }

  // What exists after `event`, given the list of what existed before `start`.
  from(list, start, event) {
    const { born, end, rank } = this;
    const newborn = this.newborn(lowerBound(born, start), lowerBound(born, event + 1), event);
    const out = new Uint32Array(list.length + newborn.length);
    let count = 0;
    let next = 0;
    for (let i = 0; i < list.length; i += 1) {
      const thing = list[i];
      if (end[thing] <= event) continue;
      while (next < newborn.length && newborn[next] < rank[thing]) out[count++] = this.byRank[newborn[next++]];
      out[count++] = thing;
    }
    while (next < newborn.length) out[count++] = this.byRank[newborn[next++]];
    return out.subarray(0, count);
  }

  // The ranks of those from `first` up to and without `last` that still exist after `event`, rising.
  newborn(first, last, event) {
    const ranks = new Uint32Array(last - first);
    let count = 0;
    for (let i = first; i < last; i += 1) if (this.end[i] > event) ranks[count++] = this.rank[i];
    return ranks.subarray(0, count).sort();
  }

  // The indices of what exists after `event`, by address.
  at(event) {
    const number = Math.min(Math.floor((event + 1) / this.stretch), this.lists.length - 1);
    return this.from(this.lists[number], number * this.stretch, event);
  }
}

// Indices in the order of addresses. Numbers sort in native code, where a comparison function would cost ten times as much:
// so each thing becomes a number that sorts by address and has the thing as its remainder.
function addressOrder(address) {
  const count = address.length;
  const sorted = Float64Array.from(address).sort();
  const keys = Float64Array.from(address, (value, i) => lowerBound(sorted, value) * count + i).sort();
  return Uint32Array.from(keys, (key) => key - Math.floor(key / count) * count);
}

// The first place in a rising array whose value is at least `value`.
function lowerBound(array, value) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

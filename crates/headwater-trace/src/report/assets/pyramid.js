// The least and the greatest value of any stretch of a series, quickly: each level keeps both for groups of 16 of the
// level below, so a stretch is some loose ends and a few groups. A chart then costs its pixels, not its events.
const GROUP = 16;

class Pyramid {
  constructor(values) {
    this.levels = [{ least: values, greatest: values }];
    let below = this.levels[0];
    while (below.least.length > GROUP) {
      const length = Math.ceil(below.least.length / GROUP);
      const level = { least: new Float64Array(length), greatest: new Float64Array(length) };
      for (let i = 0; i < length; i += 1) {
        let least = Infinity;
        let greatest = -Infinity;
        const end = Math.min((i + 1) * GROUP, below.least.length);
        for (let j = i * GROUP; j < end; j += 1) {
          if (below.least[j] < least) least = below.least[j];
          if (below.greatest[j] > greatest) greatest = below.greatest[j];
        }
        level.least[i] = least;
        level.greatest[i] = greatest;
      }
      this.levels.push(level);
      below = level;
    }
  }

  // [least, greatest] of the values from `first` up to and without `end`.
  range(first, end) {
    let least = Infinity;
    let greatest = -Infinity;
    const top = this.levels.length - 1;
    for (let depth = 0; first < end; depth += 1) {
      const level = this.levels[depth];
      const take = (i) => {
        least = Math.min(least, level.least[i]);
        greatest = Math.max(greatest, level.greatest[i]);
      };
      while (first < end && (depth === top || first % GROUP !== 0)) take(first++);
      while (first < end && end % GROUP !== 0) take(--end);
      first /= GROUP;
      end /= GROUP;
    }
    return [least, greatest];
  }
}

// One line of the result, as CSV on standard output. The names are those of `headwater bench`.
#pragma once

#include <cstdint>
#include <cstdio>

#include "timing.hpp"

namespace peers {

// Where to say what was seen, and under whose name.
struct Report {
  const char* contestant;

  // `size` is 0 where sizes are mixed. Lines go out at once: what a contestant did before it failed is kept.
  void row(const char* bench, uint64_t size, int threads, const Seen& seen) const {
    const double ns = seen.best();
    const double mops = ns > 0 ? threads * 1000.0 / ns : 0;
    std::printf("%s,%s,%llu,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.4f\n", contestant, bench,
                static_cast<unsigned long long>(size), threads, ns, seen.mean(), seen.share(0), seen.share(0.5),
                seen.share(0.99), seen.share(0.999), mops);
    std::fflush(stdout);
  }
};

}  // namespace peers

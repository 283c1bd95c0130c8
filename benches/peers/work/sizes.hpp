// The same pseudo-random sizes for everybody, and the same as in `headwater bench` (Knuth's linear congruential generator).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace peers {

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t below(uint64_t end) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state_ >> 33) % (end == 0 ? 1 : end);
  }

  // 512 bytes to 16 MiB, every doubling as likely.
  uint64_t size() {
    const uint64_t magnitude = 512ULL << below(15);
    return magnitude + below(magnitude);
  }

 private:
  uint64_t state_;
};

}  // namespace peers

// 256 live blocks of 512 bytes to 16 MiB; each step gives one back and takes another. The operation is one call.
#pragma once

#include <cstddef>
#include <vector>

#include "sizes.hpp"
#include "timing.hpp"

namespace peers {

template <class Contestant>
class Mixed {
 public:
  static constexpr size_t kLive = 256;
  static constexpr size_t kSteps = 4096;  // before the sequence begins again

  Mixed(Contestant& contestant, typename Contestant::Stream stream, uint64_t seed)
      : contestant_(contestant), stream_(stream) {
    Draws draws(seed);
    steps_.reserve(kSteps);
    for (size_t n = 0; n < kSteps; ++n) {
      const auto place = static_cast<size_t>(draws.below(kLive));
      steps_.push_back({place, static_cast<size_t>(draws.size())});
    }
    live_.reserve(kLive);
    for (size_t n = 0; n < kLive; ++n) {
      const auto bytes = static_cast<size_t>(draws.size());
      live_.push_back({contestant_.allocate(bytes, stream_), bytes});
    }
  }

  Mixed(const Mixed&) = delete;
  Mixed& operator=(const Mixed&) = delete;

  ~Mixed() {
    for (const Block& block : live_) {
      try {
        if (block.ptr != nullptr) contestant_.deallocate(block.ptr, block.bytes, stream_);
      } catch (...) {
        // The measurement is over; what failed before is what is reported.
      }
    }
  }

  void step() {
    const Step& step = steps_[next_ % kSteps];
    ++next_;
    Block& block = live_[step.place];
    contestant_.deallocate(block.ptr, block.bytes, stream_);
    block.ptr = nullptr;
    block = {contestant_.allocate(step.bytes, stream_), step.bytes};
  }

  // Once through, so that everything has been allocated; or as far as the time goes, for the slow.
  void warm(double ms) {
    const auto begun = Clock::now();
    for (size_t n = 0; n < kSteps && ns_between(begun, Clock::now()) < ms * 1e6; ++n) step();
  }

 private:
  struct Step {
    size_t place;
    size_t bytes;
  };
  struct Block {
    void* ptr;
    size_t bytes;
  };

  Contestant& contestant_;
  typename Contestant::Stream stream_;
  std::vector<Step> steps_;
  std::vector<Block> live_;
  size_t next_ = 0;
};

}  // namespace peers

// Nanoseconds on a machine that others use too.
//
// A round repeats an operation many times and divides; the best round counts, because a disturbance only ever adds.
// Percentiles need single operations: those are timed one by one, and what the clock itself takes is taken off.
// How often an operation is repeated follows from how long it takes, so that a contestant a thousand times slower than
// another takes no longer to measure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace peers {

using Clock = std::chrono::steady_clock;

inline double ns_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

// How long everything may take.
struct Effort {
  int rounds = 7;
  double round_ms = 10;    // one round of repeated operations
  double singles_ms = 80;  // all operations that are timed one by one
  double threads_ms = 200; // one number of threads
};

// What was seen of one operation.
class Seen {
 public:
  void note_round(double ns) { rounds_.push_back(ns); }

  // Rounds of `operation`, and then single ones. A call of it is `operations` operations.
  template <class Operation>
  void measure(const Effort& effort, double operations, Operation&& operation) {
    const double once_ns = std::max(estimate(operation), 1.0);
    const auto repetitions = static_cast<int64_t>(std::clamp(effort.round_ms * 1e6 / once_ns, 4.0, 100000.0));
    for (int round = 0; round < effort.rounds; ++round) {
      const auto begun = Clock::now();
      for (int64_t n = 0; n < repetitions; ++n) operation();
      note_round(ns_between(begun, Clock::now()) / (static_cast<double>(repetitions) * operations));
    }
    const double clock_ns = clock_floor_ns();
    const auto singles = static_cast<int64_t>(std::clamp(effort.singles_ms * 1e6 / (once_ns + 60), 20.0, 200000.0));
    singles_.reserve(static_cast<size_t>(singles));
    for (int64_t n = 0; n < singles; ++n) {
      const auto begun = Clock::now();
      operation();
      const double ns = ns_between(begun, Clock::now()) - clock_ns;
      singles_.push_back(std::max(ns, 0.0) / operations);
    }
    std::sort(singles_.begin(), singles_.end());
  }

  double best() const { return rounds_.empty() ? 0 : *std::min_element(rounds_.begin(), rounds_.end()); }

  double mean() const {
    double sum = 0;
    for (double ns : rounds_) sum += ns;
    return rounds_.empty() ? 0 : sum / static_cast<double>(rounds_.size());
  }

  // The time that this share of the single operations did not exceed; 0 where none were timed.
  double share(double of_one) const {
    if (singles_.empty()) return 0;
    const auto place = static_cast<size_t>(of_one * static_cast<double>(singles_.size() - 1) + 0.5);
    return singles_[std::min(place, singles_.size() - 1)];
  }

 private:
  template <class Operation>
  static double estimate(Operation&& operation) {
    double least = 1e18;
    for (int n = 0; n < 8; ++n) {
      const auto begun = Clock::now();
      operation();
      least = std::min(least, ns_between(begun, Clock::now()));
    }
    return least;
  }

  // What two readings of the clock with nothing between them are apart, at least.
  static double clock_floor_ns() {
    double least = 1e18;
    for (int n = 0; n < 1000; ++n) {
      const auto begun = Clock::now();
      least = std::min(least, ns_between(begun, Clock::now()));
    }
    return least;
  }

  std::vector<double> rounds_;
  std::vector<double> singles_;
};

}  // namespace peers

// The work, in the order of the table: pair by size, mixed, threads, record_stream, miss; and the C library's 64-byte
// malloc/free pair as the yardstick.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "contestant.hpp"
#include "mixed.hpp"
#include "row.hpp"
#include "threads.hpp"
#include "timing.hpp"

namespace peers {

constexpr size_t kMib = size_t{1} << 20;

inline void malloc_pairs(const Effort& effort) {
  Seen seen;
  seen.measure(effort, 1, [] {
    void* volatile block = std::malloc(64);
    std::free(block);
  });
  Report{"malloc"}.row("pair", 64, 1, seen);
}

template <class Contestant>
void pairs(Contestant& contestant, const Effort& effort, const Report& report) {
  auto stream = contestant.make_stream();
  for (size_t bytes : {size_t{512}, size_t{64} << 10, kMib, 16 * kMib, 64 * kMib}) {
    Seen seen;
    seen.measure(effort, 1, [&] { contestant.deallocate(contestant.allocate(bytes, stream), bytes, stream); });
    report.row("pair", bytes, 1, seen);
  }
}

template <class Contestant>
void mixed(Contestant& contestant, const Effort& effort, const Report& report) {
  auto stream = contestant.make_stream();
  Mixed<Contestant> work(contestant, stream, 1);
  work.warm(400);
  Seen seen;
  seen.measure(effort, 2, [&] { work.step(); });
  report.row("mixed", 0, 1, seen);
}

template <class Contestant>
void threads(Contestant& contestant, const Effort& effort, const Report& report, const std::vector<int>& counts) {
  std::vector<typename Contestant::Stream> streams;
  for (int count : counts) {
    while (streams.size() < static_cast<size_t>(count)) streams.push_back(contestant.make_stream());
    Seen mixed_seen, pair_seen;
    struct MixedStep {
      Mixed<Contestant> work;
      void operator()() { work.step(); }
    };
    together(contestant, effort, count, mixed_seen, [&](int place) {
      auto stream = streams[static_cast<size_t>(place)];
      std::unique_ptr<MixedStep> step(new MixedStep{{contestant, stream, 1 + static_cast<uint64_t>(place)}});
      step->work.warm(300);
      return step;
    });
    report.row("threads", 0, count, mixed_seen);
    struct PairStep {
      Contestant& contestant;
      typename Contestant::Stream stream;
      void operator()() { contestant.deallocate(contestant.allocate(kMib, stream), kMib, stream); }
    };
    together(contestant, effort, count, pair_seen, [&](int place) {
      std::unique_ptr<PairStep> step(new PairStep{contestant, streams[static_cast<size_t>(place)]});
      (*step)();
      return step;
    });
    report.row("threads", kMib, count, pair_seen);
  }
}

// Announcing another user of a live block, each of many blocks once.
template <class Contestant>
void record_stream(Contestant& contestant, const Effort& effort, const Report& report) {
  if constexpr (Contestant::has_record_stream) {
    constexpr size_t kBlocks = 1024, kBytes = size_t{64} << 10;
    auto stream = contestant.make_stream(), user = contestant.make_stream();
    Seen seen;
    for (int round = 0; round < effort.rounds; ++round) {
      std::vector<typename Contestant::Held> blocks;
      blocks.reserve(kBlocks);
      for (size_t n = 0; n < kBlocks; ++n) blocks.push_back(contestant.hold(kBytes, stream));
      const auto begun = Clock::now();
      for (auto& block : blocks) contestant.announce(block, user);
      seen.note_round(ns_between(begun, Clock::now()) / kBlocks);
      for (auto& block : blocks) contestant.release(block, kBytes, stream);
      contestant.finish(user);
    }
    report.row("record_stream", kBytes, 1, seen);
  }
}

// Requests for which the allocator has nothing, so that the driver is asked.
template <class Contestant>
void miss(Contestant& contestant, const Effort& effort, const Report& report) {
  if constexpr (Contestant::can_be_emptied) {
    constexpr size_t kBlocks = 64;
    auto stream = contestant.make_stream();
    Seen seen;
    for (int round = 0; round < std::min(effort.rounds, 5); ++round) {
      contestant.empty();
      std::vector<void*> blocks;
      blocks.reserve(kBlocks);
      const auto begun = Clock::now();
      for (size_t n = 0; n < kBlocks; ++n) blocks.push_back(contestant.allocate(16 * kMib, stream));
      seen.note_round(ns_between(begun, Clock::now()) / kBlocks);
      for (void* block : blocks) contestant.deallocate(block, 16 * kMib, stream);
      contestant.finish(stream);
    }
    report.row("miss", 16 * kMib, 1, seen);
  }
}

// All of it. `--quick` is for a look whether it works: every figure is there, and none is worth anything.
template <class Contestant>
void run(Contestant& contestant, bool quick) {
  Effort effort;
  std::vector<int> counts{1, 2, 4, 8, 16};
  if (quick) {
    effort = Effort{2, 0.2, 0.5, 20};
    counts = {1, 2};
  }
  const Report report{contestant.name()};
  contestant.enter_thread();
  malloc_pairs(effort);
  pairs(contestant, effort, report);
  mixed(contestant, effort, report);
  record_stream(contestant, effort, report);
  miss(contestant, effort, report);
  threads(contestant, effort, report, counts);
}

inline bool has_option(int argc, char** argv, const char* name) {
  for (int n = 1; n < argc; ++n) {
    if (std::strcmp(argv[n], name) == 0) return true;
  }
  return false;
}

inline std::string option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int n = 1; n + 1 < argc; ++n) {
    if (std::strcmp(argv[n], name) == 0) return argv[n + 1];
  }
  return otherwise;
}

// The body of every program's `main`: makes the contestant, runs it, and says what went wrong.
template <class Make>
int main_of(int argc, char** argv, Make make) {
  try {
    auto contestant = make();
    run(*contestant, has_option(argc, argv, "--quick"));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace peers

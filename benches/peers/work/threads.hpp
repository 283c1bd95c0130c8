// Several threads at once, each in a stream of its own, for a fixed time. The operation is one call.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "mixed.hpp"
#include "timing.hpp"

namespace peers {

// Lets threads do `prepare(place)` and then steps of what that returned, two calls each, until the time is over.
template <class Contestant, class Prepare>
void together(Contestant& contestant, const Effort& effort, int threads, Seen& seen, Prepare prepare) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<uint64_t> steps(static_cast<size_t>(threads) * 16);  // a cache line apart
  std::mutex failure_lock;
  std::exception_ptr failure;
  auto work = [&](int place) {
    bool counted = false;
    try {
      contestant.enter_thread();
      auto step = prepare(place);
      counted = true;
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      uint64_t done = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        for (int n = 0; n < 8; ++n) (*step)();
        done += 8;
      }
      steps[static_cast<size_t>(place) * 16] = done;
    } catch (...) {
      if (!counted) ready.fetch_add(1);
      std::lock_guard<std::mutex> lock(failure_lock);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> running;
  for (int place = 0; place < threads; ++place) running.emplace_back(work, place);
  while (ready.load() < threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begun = Clock::now();
  go.store(true);
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(effort.threads_ms));
  stop.store(true);
  const auto ended = Clock::now();
  for (auto& thread : running) thread.join();
  if (failure) std::rethrow_exception(failure);
  uint64_t calls = 0;
  for (int place = 0; place < threads; ++place) calls += 2 * steps[static_cast<size_t>(place) * 16];
  if (calls > 0) seen.note_round(ns_between(begun, ended) * threads / static_cast<double>(calls));
}

}  // namespace peers

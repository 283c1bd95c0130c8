// The history of events with the stacks of those who caused them, as PyTorch keeps it: a ring for each device, off by default.
// Headwater knows no stacks, so this part of an allocator is kept here. While it is off, it costs one load a call.
#pragma once

#include "calls.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#define HEADWATER_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace headwater {

namespace cca = c10::cuda::CUDACachingAllocator;

class History {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Action = cca::TraceEntry::Action;
  using Annotation = decltype(cca::SnapshotInfo::external_annotations)::value_type;

  // Whether anybody wants to know of events.
  bool isOn() const {
    return on_.load(std::memory_order_relaxed);
  }
  bool isRecording();

  void record(
      bool enabled,
      cca::CreateContextFn recorder,
      size_t most,
      cca::RecordContext when,
      bool clear,
      const std::vector<std::string>& skip);
  void addTracker(cca::AllocatorTraceTracker tracker);
  void annotate(int device, const std::vector<std::pair<std::string, std::string>>& words);

  // A block was given out.
  void allocated(int device, uint64_t ptr, size_t bytes, void* stream);
  // A block is about to be given back: forgets its context.
  void freeing(int device, uint64_t ptr);
  void outOfMemory(int device, size_t bytes, size_t device_free, void* stream);
  // Segments may have come or gone: notes which.
  void segmentsChanged(int device, const Calls& calls);
  void snapshotTaken(int device);

  // The stack of whoever asked for the block, where it was kept.
  Context contextOf(uint64_t ptr);
  std::vector<cca::TraceEntry> traces(int device);
  std::vector<Annotation> annotations();

  static std::vector<std::string>& compileContexts();
  static std::string& userMetadata();

 private:
  struct Held {
    Context context;
    size_t bytes;
    void* stream;
  };

  Context gather(cca::RecordContext needed);
  void add(Action action, int device, uint64_t address, size_t bytes, void* stream, Context context);
  void updateOn();

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  bool recording_ = false;
  cca::CreateContextFn recorder_ = nullptr;
  cca::RecordContext when_ = cca::RecordContext::NEVER;
  size_t most_ = 1;
  std::unordered_set<int> skipped_;
  std::map<int, std::deque<cca::TraceEntry>> rings_;
  std::unordered_map<uint64_t, Held> held_;
  std::map<int, std::map<uint64_t, uint64_t>> segments_;
  std::map<int, int64_t> device_calls_;
  std::vector<cca::AllocatorTraceTracker> trackers_;
  std::vector<Annotation> annotations_;
};

} // namespace headwater

// What PyTorch's users see of the memory: statistics, snapshots, history.
#include "allocator.h"

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdlib>

namespace headwater {

namespace {

using Stat = decltype(cca::DeviceStats::oversize_segments);
using StatArray = decltype(cca::DeviceStats::allocation);

Stat statOf(const StatFigures& figures) {
  Stat stat;
  stat.current = figures.current;
  stat.peak = figures.peak;
  stat.allocated = figures.allocated;
  stat.freed = figures.freed;
  return stat;
}

StatArray arrayOf(const StatFigures (&figures)[3]) {
  // PyTorch's order too: all, small, large.
  return {statOf(figures[0]), statOf(figures[1]), statOf(figures[2])};
}

struct Collector {
  std::vector<cca::SegmentInfo>& segments;
  History& history;
  c10::DeviceIndex device;

  Walker walker() {
    return {
        this,
        [](void* self, const WalkedSegment* segment) { static_cast<Collector*>(self)->add(*segment); },
        [](void* self, const WalkedBlock* block) { static_cast<Collector*>(self)->add(*block); }};
  }

  void add(const WalkedSegment& walked) {
    cca::SegmentInfo segment;
    segment.device = device;
    segment.address = walked.address;
    segment.total_size = walked.total_bytes;
    segment.requested_size = walked.requested_bytes;
    segment.allocated_size = walked.allocated_bytes;
    segment.active_size = walked.active_bytes;
    segment.stream = reinterpret_cast<decltype(segment.stream)>(walked.stream);
    segment.is_large = walked.is_large;
    segment.is_expandable = walked.is_expandable;
    segment.owner_private_pool_id = {walked.pool[0], walked.pool[1]};
    segments.push_back(std::move(segment));
  }

  void add(const WalkedBlock& walked) {
    cca::BlockInfo block;
    block.size = walked.bytes;
    block.requested_size = walked.requested_bytes;
    block.allocated = walked.state == BlockState::Live;
    block.active = walked.state != BlockState::Free;
    if (block.allocated) {
      block.context_when_allocated = history.contextOf(walked.address);
    }
    segments.back().blocks.push_back(std::move(block));
  }
};

} // namespace

// ---- Statistics ----

cca::DeviceStats Allocator::getDeviceStats(c10::DeviceIndex device) {
  Figures figures{};
  calls_.figures(device, &figures);
  cca::DeviceStats stats;
  stats.allocation = arrayOf(figures.allocation);
  stats.segment = arrayOf(figures.segment);
  stats.active = arrayOf(figures.active);
  stats.inactive_split = arrayOf(figures.inactive_split);
  stats.allocated_bytes = arrayOf(figures.allocated_bytes);
  stats.reserved_bytes = arrayOf(figures.reserved_bytes);
  stats.active_bytes = arrayOf(figures.active_bytes);
  stats.inactive_split_bytes = arrayOf(figures.inactive_split_bytes);
  stats.requested_bytes = arrayOf(figures.requested_bytes);
  stats.oversize_allocations = statOf(figures.oversize_allocations);
  stats.oversize_segments = statOf(figures.oversize_segments);
  stats.num_alloc_retries = figures.num_alloc_retries;
  stats.num_ooms = figures.num_ooms;
  stats.num_sync_all_streams = figures.num_sync_all_streams;
  stats.num_device_alloc = figures.num_device_alloc;
  stats.num_device_free = figures.num_device_free;
  stats.max_split_size = figures.max_split_size;
  return stats;
}

void Allocator::resetAccumulatedStats(c10::DeviceIndex device) {
  calls_.reset_totals(device);
}

void Allocator::resetPeakStats(c10::DeviceIndex device) {
  calls_.reset_peaks(device);
}

void Allocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  if (*largest == 0) {
    // PyTorch's rule: who has no idea yet starts from what the device has free.
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  *largest = std::max<size_t>(*largest, calls_.largest_free_bytes(device));
}

// ---- Snapshots ----

#if HEADWATER_TORCH_AT_LEAST(11)
cca::SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool include_traces) {
#elif HEADWATER_TORCH_AT_LEAST(8)
cca::SnapshotInfo Allocator::snapshot(MempoolId_t pool) {
  constexpr bool include_traces = true;
#else
cca::SnapshotInfo Allocator::snapshot() {
  constexpr bool include_traces = true;
  const MempoolId_t pool = {0, 0};
#endif
  cca::SnapshotInfo shown;
  for (int device = 0; device < c10::cuda::device_count(); ++device) {
    Collector collector{shown.segments, history_, static_cast<c10::DeviceIndex>(device)};
    auto walker = collector.walker();
    if (pool == MempoolId_t{0, 0}) {
      calls_.walk(device, &walker);
      history_.snapshotTaken(device);
    } else {
      calls_.walk_pool(device, pool.first, pool.second, &walker);
    }
    shown.device_traces.emplace_back();
    if (include_traces) {
      shown.device_traces.back() = history_.traces(device);
    }
  }
  std::sort(shown.segments.begin(), shown.segments.end(), [](const auto& one, const auto& other) { return one.address < other.address; });
  if (include_traces) {
    shown.external_annotations = history_.annotations();
  }
  auto& settings = shown.config_metadata;
  settings = {};
  settings.expandable_segments = std::any_of(shown.segments.begin(), shown.segments.end(), [](const auto& segment) { return segment.is_expandable; });
  Figures figures{};
  calls_.figures(0, &figures);
  settings.max_split_size = figures.max_split_size < 0 ? SIZE_MAX : static_cast<size_t>(figures.max_split_size);
  for (const char* name : {"HEADWATER_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* value = std::getenv(name)) {
      settings.last_allocator_settings = value;
      break;
    }
  }
  return shown;
}

// ---- History ----

#if HEADWATER_TORCH_AT_LEAST(11)
void Allocator::recordHistory(
    bool enabled,
    cca::CreateContextFn recorder,
    size_t most,
    cca::RecordContext when,
    bool clear,
    const std::vector<std::string>& skip) {
  history_.record(enabled, recorder, most, when, clear, skip);
}
#elif HEADWATER_TORCH_AT_LEAST(8)
void Allocator::recordHistory(bool enabled, cca::CreateContextFn recorder, size_t most, cca::RecordContext when, bool clear) {
  history_.record(enabled, recorder, most, when, clear, {});
}
#else
void Allocator::recordHistory(bool enabled, cca::CreateContextFn recorder, size_t most, cca::RecordContext when) {
  history_.record(enabled, recorder, most, when, false, {});
}
#endif

bool Allocator::isHistoryEnabled() {
  return history_.isRecording();
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) {
  if (history_.isOn()) {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    history_.annotate(device, words);
  }
}

#if HEADWATER_TORCH_AT_LEAST(8)
void Allocator::pushCompileContext(std::string& words) {
  History::compileContexts().push_back(words);
}

void Allocator::popCompileContext() {
  if (!History::compileContexts().empty()) {
    History::compileContexts().pop_back();
  }
}
#endif

#if HEADWATER_TORCH_AT_LEAST(10)
void Allocator::setUserMetadata(const std::string& metadata) {
  History::userMetadata() = metadata;
}

std::string Allocator::getUserMetadata() {
  return History::userMetadata();
}
#endif

void Allocator::attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  observers_.push_back(std::move(observer));
}

void Allocator::attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) {
  history_.addTracker(std::move(tracker));
}

} // namespace headwater

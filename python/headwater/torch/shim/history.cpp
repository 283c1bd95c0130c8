#include "history.h"

#include <c10/util/ApproximateClock.h>

namespace headwater {

namespace {

// Made when the shim is loaded: the converter compares two clocks, and the longer it has seen both the better it knows.
c10::ApproximateClockToUnixTimeConverter clock_converter;

cca::TraceEntry entry(
    History::Action action,
    int device,
    uint64_t address,
    size_t bytes,
    void* stream,
    History::Context context) {
  auto index = static_cast<c10::DeviceIndex>(device);
  std::string compiling = History::compileContexts().empty() ? "" : History::compileContexts().back();
  auto time = c10::getApproximateTime();
  auto on = static_cast<decltype(cca::TraceEntry::stream_)>(stream);
#if HEADWATER_TORCH_AT_LEAST(10)
  return {action, index, address, bytes, on, {0, 0}, time, std::move(context), compiling, History::userMetadata()};
#elif HEADWATER_TORCH_AT_LEAST(8)
  return {action, index, address, bytes, on, {0, 0}, time, std::move(context), compiling};
#else
  (void)compiling;
  return {action, index, address, bytes, on, time, std::move(context)};
#endif
}

} // namespace

std::vector<std::string>& History::compileContexts() {
  thread_local std::vector<std::string> contexts;
  return contexts;
}

std::string& History::userMetadata() {
  thread_local std::string metadata;
  return metadata;
}

bool History::isRecording() {
  std::lock_guard<std::mutex> guard(mutex_);
  return recording_;
}

void History::updateOn() {
  on_.store(recording_ || !trackers_.empty(), std::memory_order_relaxed);
}

void History::record(
    bool enabled,
    cca::CreateContextFn recorder,
    size_t most,
    cca::RecordContext when,
    bool clear,
    const std::vector<std::string>& skip) {
  TORCH_CHECK(when == cca::RecordContext::NEVER || recorder, "a context recorder is needed to record contexts");
  std::lock_guard<std::mutex> guard(mutex_);
  recording_ = enabled;
  recorder_ = recorder;
  most_ = std::max<size_t>(1, most);
  when_ = enabled ? when : cca::RecordContext::NEVER;
  skipped_.clear();
#if HEADWATER_TORCH_AT_LEAST(11)
  for (const auto& name : skip) {
    skipped_.insert(static_cast<int>(c10::CachingDeviceAllocator::parseTraceEntryAction(name)));
  }
#else
  (void)skip;
#endif
  if (!enabled || clear) {
    rings_.clear();
    annotations_.clear();
  }
  if (!enabled) {
    held_.clear();
  }
  updateOn();
}

void History::addTracker(cca::AllocatorTraceTracker tracker) {
  std::lock_guard<std::mutex> guard(mutex_);
  trackers_.push_back(std::move(tracker));
  updateOn();
}

void History::annotate(int device, const std::vector<std::pair<std::string, std::string>>& words) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!recording_) {
    return;
  }
  Annotation made(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
  for (const auto& [name, value] : words) {
    made.recordUserMetadata(name, value);
  }
  annotations_.push_back(std::move(made));
  if (annotations_.size() > most_) {
    annotations_.erase(annotations_.begin());
  }
}

History::Context History::gather(cca::RecordContext needed) {
  cca::CreateContextFn recorder = nullptr;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    recorder = when_ >= needed ? recorder_ : nullptr;
  }
  // Outside of the lock: it may take the interpreter's.
  return recorder ? recorder() : nullptr;
}

void History::add(
    Action action,
    int device,
    uint64_t address,
    size_t bytes,
    void* stream,
    Context context) {
  if (!recording_ && trackers_.empty()) {
    return;
  }
  auto made = entry(action, device, address, bytes, stream, when_ >= cca::RecordContext::ALLOC ? std::move(context) : nullptr);
  for (const auto& tracker : trackers_) {
    tracker(made);
  }
  if (recording_ && skipped_.count(static_cast<int>(action)) == 0) {
    auto& ring = rings_[device];
    ring.push_back(std::move(made));
    while (ring.size() > most_) {
      ring.pop_front();
    }
  }
}

void History::allocated(int device, uint64_t ptr, size_t bytes, void* stream) {
  auto context = gather(cca::RecordContext::STATE);
  std::lock_guard<std::mutex> guard(mutex_);
  held_[ptr] = {context, bytes, stream};
  add(Action::ALLOC, device, ptr, bytes, stream, std::move(context));
}

void History::freeing(int device, uint64_t ptr) {
  auto context = gather(cca::RecordContext::ALL);
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = held_.find(ptr);
  if (found == held_.end()) {
    return;
  }
  auto held = std::move(found->second);
  held_.erase(found);
  auto shown = context ? context : held.context;
  add(Action::FREE_REQUESTED, device, ptr, held.bytes, held.stream, shown);
  add(Action::FREE_COMPLETED, device, ptr, held.bytes, held.stream, shown);
}

void History::outOfMemory(int device, size_t bytes, size_t device_free, void* stream) {
  auto context = gather(cca::RecordContext::STATE);
  std::lock_guard<std::mutex> guard(mutex_);
  add(Action::OOM, device, device_free, bytes, stream, std::move(context));
}

void History::snapshotTaken(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  add(Action::SNAPSHOT, device, 0, 0, nullptr, nullptr);
}

void History::segmentsChanged(int device, const Calls& calls) {
  Figures figures{};
  calls.figures(device, &figures);
  int64_t made = figures.num_device_alloc + figures.num_device_free;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto known = device_calls_.find(device);
    if (known != device_calls_.end() && known->second == made) {
      return;
    }
    device_calls_[device] = made;
  }
  std::map<uint64_t, uint64_t> now;
  Walker walker{
      &now,
      [](void* map, const WalkedSegment* segment) {
        (*static_cast<std::map<uint64_t, uint64_t>*>(map))[segment->address] = segment->total_bytes;
      },
      [](void*, const WalkedBlock*) {}};
  calls.walk(device, &walker);
  auto context = gather(cca::RecordContext::ALLOC);
  std::lock_guard<std::mutex> guard(mutex_);
  auto& before = segments_[device];
  // A segment that grew or shrank is shown by the part at its end that came or went.
  for (const auto& [address, bytes] : now) {
    auto old = before.find(address);
    uint64_t had = old == before.end() ? 0 : old->second;
    if (bytes > had) {
      add(Action::SEGMENT_MAP, device, address + had, bytes - had, nullptr, context);
    }
  }
  for (const auto& [address, bytes] : before) {
    auto still = now.find(address);
    uint64_t has = still == now.end() ? 0 : still->second;
    if (bytes > has) {
      add(Action::SEGMENT_UNMAP, device, address + has, bytes - has, nullptr, context);
    }
  }
  before = std::move(now);
}

History::Context History::contextOf(uint64_t ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = held_.find(ptr);
  return found == held_.end() ? nullptr : found->second.context;
}

std::vector<cca::TraceEntry> History::traces(int device) {
  auto nanoseconds = clock_converter.makeConverter();
  std::lock_guard<std::mutex> guard(mutex_);
  auto ring = rings_.find(device);
  if (ring == rings_.end()) {
    return {};
  }
  std::vector<cca::TraceEntry> shown(ring->second.begin(), ring->second.end());
  for (auto& made : shown) {
    made.time_.t_ = nanoseconds(made.time_.approx_t_) / 1000;
  }
  return shown;
}

std::vector<History::Annotation> History::annotations() {
  auto nanoseconds = clock_converter.makeConverter();
  std::lock_guard<std::mutex> guard(mutex_);
  auto shown = annotations_;
  for (auto& made : shown) {
    made.time_.t_ = nanoseconds(made.time_.approx_t_) / 1000;
  }
  return shown;
}

} // namespace headwater

#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace headwater {

namespace {

constexpr size_t kExabyte = 1152921504606846976ULL;

// The one that PyTorch uses: deleters are plain functions.
Allocator* instance = nullptr;

void giveBack(void* ptr) {
  instance->raw_delete(ptr);
}

uint64_t number(const void* ptr) {
  return reinterpret_cast<uint64_t>(ptr);
}

void* pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

c10::DeviceIndex currentDevice() {
  c10::DeviceIndex device = -1;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// PyTorch's own wording: programs and tests look for it.
std::string words(uint64_t bytes) {
  char text[40];
  auto value = static_cast<double>(bytes);
  if (bytes <= 1024) {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  } else if (bytes <= 1048576) {
    std::snprintf(text, sizeof text, "%.2f KiB", value / 1024.0);
  } else if (bytes <= 1073741824ULL) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / 1048576.0);
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", value / 1073741824.0);
  }
  return text;
}

// Another try may help: something outside of the allocator (such as memory shared with other processes) was freed.
bool askOthersToFree() {
  bool freed = false;
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

} // namespace

Allocator::Allocator(const Calls& calls)
    : CUDAPluggableAllocator(
          // The base class's own way to memory; it is not used, because everything that leads there is overridden.
          [this](size_t size, int device, cudaStream_t stream) { return take(size, static_cast<c10::DeviceIndex>(device), stream); },
          [this](void* ptr, size_t, int, cudaStream_t) { raw_delete(ptr); }),
      calls_(calls) {
  instance = this;
}

// ---- Memory out and back ----

c10::DataPtr Allocator::allocate(size_t size) {
  TORCH_CHECK_WITH(OutOfMemoryError, size < kExabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  auto device = currentDevice();
  void* ptr = size == 0 ? nullptr : take(size, device, c10::cuda::getCurrentCUDAStream(device));
  if (size != 0) {
    const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interpreter)) {
      (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, number(ptr));
    }
  }
  return {ptr, ptr, &giveBack, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return &giveBack;
}

void* Allocator::raw_alloc(size_t size) {
  if (size == 0) {
    return nullptr;
  }
  auto device = currentDevice();
  return take(size, device, c10::cuda::getCurrentCUDAStream(device));
}

void* Allocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  return size == 0 ? nullptr : take(size, currentDevice(), stream);
}

void* Allocator::take(size_t size, c10::DeviceIndex device, cudaStream_t stream) {
  if (C10_UNLIKELY(!enabled_.load(std::memory_order_relaxed))) {
    return foreign_.takePlain(size);
  }
  if (C10_UNLIKELY(foreign_.any())) {
    if (void* ptr = foreign_.take(size, device, stream)) {
      return ptr;
    }
  }
  uint64_t address = 0;
  Failure failure;
  void* ptr = C10_LIKELY(calls_.allocate(size, device, number(stream), &address, &failure))
      ? pointer(address)
      : takeAgain(size, device, stream, failure);
  if (C10_UNLIKELY(history_.isOn() || c10::memoryProfilingEnabled())) {
    told(ptr, size, device, stream);
  }
  return ptr;
}

void* Allocator::takeAgain(size_t size, c10::DeviceIndex device, cudaStream_t stream, Failure& failure) {
  uint64_t address = 0;
  if (failure.out_of_memory && askOthersToFree() && calls_.allocate(size, device, number(stream), &address, &failure)) {
    return pointer(address);
  }
  if (failure.out_of_memory) {
    if (void* ptr = takeFromLastResort(size, device, stream)) {
      return ptr;
    }
  }
  fail(size, device, stream, failure);
}

void Allocator::fail(size_t size, c10::DeviceIndex device, cudaStream_t stream, const Failure& failure) {
  TORCH_CHECK(failure.out_of_memory, "Headwater: ", failure.message);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  Figures figures{};
  calls_.figures(device, &figures);
  auto allocated = static_cast<uint64_t>(figures.allocated_bytes[0].current);
  auto reserved = static_cast<uint64_t>(figures.reserved_bytes[0].current);
  auto allowed = failure.limit_bytes == UINT64_MAX ? total : failure.limit_bytes;
  if (history_.isOn()) {
    history_.outOfMemory(device, size, free, stream);
  }
  std::vector<cca::OutOfMemoryObserver> observers;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) {
    observer(device, size, allowed, free);
  }
  std::string limit = failure.limit_bytes == UINT64_MAX ? "" : words(failure.limit_bytes) + " allowed; ";
  std::string pools = failure.private_bytes == 0 ? "" : "with " + words(failure.private_bytes) + " reserved in private pools (e.g., CUDA Graphs), ";
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "CUDA out of memory. Tried to allocate ",
      words(size),
      ". GPU ",
      std::to_string(static_cast<int>(device)),
      " has a total capacity of ",
      words(total),
      " of which ",
      words(free),
      " is free. ",
      limit,
      "Of the allocated memory ",
      words(allocated),
      " is allocated by PyTorch, ",
      pools,
      "and ",
      words(reserved > allocated ? reserved - allocated : 0),
      " is reserved by Headwater but unallocated. Headwater: ",
      failure.message);
  std::abort(); // Not reached: the check above throws.
}

void Allocator::raw_delete(void* ptr) {
  if (ptr == nullptr) {
    return;
  }
  const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(interpreter)) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, number(ptr));
  }
  if (C10_UNLIKELY(foreign_.any()) && foreign_.giveBack(ptr)) {
    return;
  }
  if (C10_UNLIKELY(history_.isOn() || c10::memoryProfilingEnabled())) {
    toldOfEnd(ptr);
  }
  Failure failure;
  TORCH_CHECK(calls_.give_back(number(ptr), &failure), "Headwater: ", failure.message);
}

void Allocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // Memory of others (shared by another process, say) has other deleters, and its owner looks after it.
  if (ptr.get() != nullptr && ptr.get_deleter() == &giveBack) {
    calls_.record_stream(number(ptr.get()), number(stream.stream()));
  }
}

void* Allocator::getBaseAllocation(void* ptr, size_t* size) {
  Place place{};
  if (!calls_.place_of(number(ptr), &place)) {
    return CUDAPluggableAllocator::getBaseAllocation(ptr, size);
  }
  if (size != nullptr) {
    *size = place.bytes;
  }
  return pointer(place.address);
}

// ---- Being told, where somebody wants to know ----

void Allocator::told(void* ptr, size_t size, c10::DeviceIndex device, cudaStream_t stream) {
  if (history_.isOn()) {
    history_.segmentsChanged(device, calls_);
    history_.allocated(device, number(ptr), size, stream);
  }
  report(ptr, static_cast<int64_t>(size), device);
}

void Allocator::toldOfEnd(void* ptr) {
  Place place{};
  if (!calls_.place_of(number(ptr), &place)) {
    return;
  }
  if (history_.isOn()) {
    history_.freeing(place.device, number(ptr));
  }
  report(ptr, -static_cast<int64_t>(place.requested_bytes), place.device);
}

void Allocator::report(void* ptr, int64_t bytes, int device) {
  if (!c10::memoryProfilingEnabled()) {
    return;
  }
  Figures figures{};
  calls_.figures(device, &figures);
  c10::reportMemoryUsageToProfiler(
      ptr,
      bytes,
      static_cast<size_t>(figures.allocated_bytes[0].current),
      static_cast<size_t>(figures.reserved_bytes[0].current),
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
}

// ---- What is in force ----

std::string Allocator::name() {
  return "headwater";
}

void Allocator::init(int) {
  Failure failure;
  TORCH_CHECK(calls_.start(&failure), "Headwater cannot start: ", failure.message);
}

void Allocator::enable(bool value) {
  enabled_.store(value, std::memory_order_relaxed);
}

bool Allocator::isEnabled() const {
  return enabled_.load(std::memory_order_relaxed);
}

void Allocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  Failure failure;
  TORCH_CHECK(calls_.set_fraction(fraction, device, &failure), failure.message);
}

#if HEADWATER_TORCH_AT_LEAST(7)
double Allocator::getMemoryFraction(c10::DeviceIndex device) {
  return calls_.fraction(device);
}
#endif

#if HEADWATER_TORCH_AT_LEAST(10)
std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(c10::DeviceIndex) {
  return {};
}
#endif

#if HEADWATER_TORCH_AT_LEAST(8)
void Allocator::emptyCache(MempoolId_t pool) {
  if (pool != MempoolId_t{0, 0}) {
    foreign_.empty({currentDevice(), pool});
  }
#else
void Allocator::emptyCache() {
#endif
  Failure failure;
  bool emptied = calls_.empty_cache(&failure);
  if (history_.isOn()) {
    for (int device = 0; device < c10::cuda::device_count(); ++device) {
      history_.segmentsChanged(device, calls_);
    }
  }
  TORCH_CHECK(emptied, "Headwater: ", failure.message);
}

// ---- Other devices ----

void Allocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) {
  CUDAPluggableAllocator::enablePeerAccess(device, other);
  Failure failure;
  TORCH_CHECK(calls_.enable_peer(other, device, &failure), "Headwater: ", failure.message);
}

cudaError_t Allocator::memcpyAsync(
    void* dst,
    int dst_device,
    const void* src,
    int src_device,
    size_t count,
    cudaStream_t stream,
    bool p2p_enabled) {
  // Mapped memory without peer access can be copied by the peer call only.
  if (p2p_enabled || dst_device == src_device) {
    return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, count, stream);
}

} // namespace headwater

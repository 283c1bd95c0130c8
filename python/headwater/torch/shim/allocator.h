// PyTorch's CUDA allocator on Headwater's memory, with everything PyTorch's own offers that Headwater can answer.
//
// It derives from the pluggable allocator and not from the interface, so that what a release of PyTorch adds to the interface
// has an answer ("not supported") until it has a better one here.
#pragma once

#include "calls.h"
#include "foreign_pools.h"
#include "history.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace headwater {

using c10::cuda::MempoolId_t;

class Allocator final : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  explicit Allocator(const Calls& calls);

  // Memory out and back.
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* ptr, size_t* size) override;

  // What is in force.
  std::string name() override;
  void init(int device_count) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
#if HEADWATER_TORCH_AT_LEAST(7)
  double getMemoryFraction(c10::DeviceIndex device) override;
#endif
#if HEADWATER_TORCH_AT_LEAST(10)
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
#endif
#if HEADWATER_TORCH_AT_LEAST(8)
  void emptyCache(MempoolId_t pool) override;
#else
  void emptyCache() override;
#endif

  // Figures.
  cca::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
#if HEADWATER_TORCH_AT_LEAST(11)
  cca::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;
#elif HEADWATER_TORCH_AT_LEAST(8)
  cca::SnapshotInfo snapshot(MempoolId_t pool) override;
#else
  cca::SnapshotInfo snapshot() override;
#endif

  // History.
#if HEADWATER_TORCH_AT_LEAST(11)
  void recordHistory(
      bool enabled,
      cca::CreateContextFn recorder,
      size_t most,
      cca::RecordContext when,
      bool clear,
      const std::vector<std::string>& skip) override;
#elif HEADWATER_TORCH_AT_LEAST(8)
  void recordHistory(bool enabled, cca::CreateContextFn recorder, size_t most, cca::RecordContext when, bool clear) override;
#else
  void recordHistory(bool enabled, cca::CreateContextFn recorder, size_t most, cca::RecordContext when) override;
#endif
  bool isHistoryEnabled() override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override;
#if HEADWATER_TORCH_AT_LEAST(8)
  void pushCompileContext(std::string& words) override;
  void popCompileContext() override;
#endif
#if HEADWATER_TORCH_AT_LEAST(10)
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
#endif
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override;

  // Pools.
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
#if HEADWATER_TORCH_AT_LEAST(8)
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
#if HEADWATER_TORCH_AT_LEAST(11)
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, std::shared_ptr<cca::CUDAAllocator> source) override;
#else
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, cca::CUDAAllocator* source) override;
#endif
#if HEADWATER_TORCH_AT_LEAST(10)
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override;
#endif
  void setUseOnOOM(
      c10::DeviceIndex device,
      MempoolId_t pool
#if HEADWATER_TORCH_AT_LEAST(11)
      ,
      bool use_on_oom
#endif
      ) override;
#else
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool) override;
#endif
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override;
  std::shared_ptr<cca::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) override;
  cca::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) override;

  // Other devices.
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override;
  cudaError_t memcpyAsync(
      void* dst,
      int dst_device,
      const void* src,
      int src_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override;

 private:
  void* take(size_t size, c10::DeviceIndex device, cudaStream_t stream);
  void* takeAgain(size_t size, c10::DeviceIndex device, cudaStream_t stream, Failure& failure);
  void* takeFromLastResort(size_t size, c10::DeviceIndex device, cudaStream_t stream);
  [[noreturn]] void fail(size_t size, c10::DeviceIndex device, cudaStream_t stream, const Failure& failure);
  void told(void* ptr, size_t size, c10::DeviceIndex device, cudaStream_t stream);
  void toldOfEnd(void* ptr);
  void report(void* ptr, int64_t bytes, int device);

  const Calls& calls_;
  History history_;
  ForeignPools foreign_;
  std::atomic<bool> enabled_{true};
  std::mutex mutex_;
  std::vector<cca::OutOfMemoryObserver> observers_;
  // Pools that may serve anybody when memory has run out.
  std::vector<std::pair<c10::DeviceIndex, MempoolId_t>> last_resort_;
};

} // namespace headwater

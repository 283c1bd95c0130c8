// Memory that is not Headwater's: pools that a program gave an allocator of its own (`torch.cuda.MemPool(allocator)`, as NCCL's
// registered buffers use it), and plain `cudaMalloc` while caching is switched off.
//
// A block of such a pool is one allocation of its source. Given back, it is kept for the next request of the same size in the same
// stream, and returns to its source when the pool is emptied or ends, after all work on the device has finished.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace headwater {

class ForeignPools {
 public:
  using Id = c10::cuda::MempoolId_t;
  using Source = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using Key = std::pair<int, Id>;

  // Whether there is anything here that a request or a give-back could be about.
  bool any() const {
    return count_.load(std::memory_order_acquire) != 0;
  }

  void create(Key key, std::shared_ptr<Source> source);
  bool owns(Key key);
  void retain(Key key);
  void release(Key key);
  int uses(Key key);
  void begin(Key key, std::function<bool(cudaStream_t)> filter);
  void end(Key key);
  void empty(Key key);

  // Memory of the pool that a stream's requests go to; null where there is none.
  void* take(size_t bytes, int device, cudaStream_t stream);
  // Memory of the driver's own.
  void* takePlain(size_t bytes);
  // Takes back what came from here; says whether it did.
  bool giveBack(void* ptr);

 private:
  struct Pool {
    std::shared_ptr<Source> source;
    int uses = 1;
    std::map<std::pair<cudaStream_t, size_t>, std::vector<void*>> free;
    size_t live = 0;
  };
  struct Block {
    Key pool;
    size_t bytes;
    cudaStream_t stream;
    bool plain;
  };
  struct Route {
    Key pool;
    std::function<bool(cudaStream_t)> filter;
  };

  void returnFree(Pool& pool, int device);
  void count();

  std::atomic<size_t> count_{0};
  std::recursive_mutex mutex_;
  std::map<Key, Pool> pools_;
  std::unordered_map<void*, Block> blocks_;
  std::vector<Route> routes_;
};

} // namespace headwater

#include "foreign_pools.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace headwater {

using Guard = std::lock_guard<std::recursive_mutex>;

void ForeignPools::count() {
  count_.store(blocks_.size() + routes_.size() + pools_.size(), std::memory_order_release);
}

void ForeignPools::create(Key key, std::shared_ptr<Source> source) {
  Guard guard(mutex_);
  auto [place, fresh] = pools_.try_emplace(key);
  if (fresh) {
    place->second.source = std::move(source);
  } else {
    place->second.uses += 1;
  }
  count();
}

bool ForeignPools::owns(Key key) {
  Guard guard(mutex_);
  return pools_.count(key) != 0;
}

void ForeignPools::retain(Key key) {
  Guard guard(mutex_);
  pools_.at(key).uses += 1;
}

int ForeignPools::uses(Key key) {
  Guard guard(mutex_);
  return pools_.at(key).uses;
}

void ForeignPools::release(Key key) {
  Guard guard(mutex_);
  auto& pool = pools_.at(key);
  pool.uses -= 1;
  if (pool.uses == 0) {
    returnFree(pool, key.first);
    if (pool.live == 0) {
      pools_.erase(key);
    }
  }
  count();
}

void ForeignPools::begin(Key key, std::function<bool(cudaStream_t)> filter) {
  Guard guard(mutex_);
  pools_.at(key).uses += 1;
  routes_.push_back({key, std::move(filter)});
  count();
}

void ForeignPools::end(Key key) {
  Guard guard(mutex_);
  auto newest = std::find_if(routes_.rbegin(), routes_.rend(), [&](const Route& route) { return route.pool == key; });
  TORCH_CHECK(newest != routes_.rend(), "no requests are routed to this pool");
  routes_.erase(std::next(newest).base());
  count();
}

void ForeignPools::empty(Key key) {
  Guard guard(mutex_);
  auto pool = pools_.find(key);
  if (pool != pools_.end()) {
    returnFree(pool->second, key.first);
  }
}

void ForeignPools::returnFree(Pool& pool, int device) {
  if (pool.free.empty()) {
    return;
  }
  c10::cuda::CUDAGuard current(static_cast<c10::DeviceIndex>(device));
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  for (auto& [shape, blocks] : pool.free) {
    for (void* ptr : blocks) {
      pool.source->raw_delete(ptr);
    }
  }
  pool.free.clear();
}

void* ForeignPools::take(size_t bytes, int device, cudaStream_t stream) {
  Guard guard(mutex_);
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->pool.first != device || !route->filter(stream)) {
      continue;
    }
    auto& pool = pools_.at(route->pool);
    void* ptr = nullptr;
    auto kept = pool.free.find({stream, bytes});
    if (kept != pool.free.end() && !kept->second.empty()) {
      ptr = kept->second.back();
      kept->second.pop_back();
    } else {
      ptr = pool.source->raw_alloc_with_stream(bytes, stream);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, ptr != nullptr, "CUDA out of memory. The memory pool's own allocator gave nothing for ", bytes, " bytes.");
    pool.live += 1;
    blocks_[ptr] = {route->pool, bytes, stream, false};
    count();
    return ptr;
  }
  return nullptr;
}

void* ForeignPools::takePlain(size_t bytes) {
  void* ptr = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
  Guard guard(mutex_);
  blocks_[ptr] = {{}, bytes, nullptr, true};
  count();
  return ptr;
}

bool ForeignPools::giveBack(void* ptr) {
  Guard guard(mutex_);
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) {
    return false;
  }
  Block block = found->second;
  blocks_.erase(found);
  if (block.plain) {
    C10_CUDA_CHECK(cudaFree(ptr));
    count();
    return true;
  }
  auto& pool = pools_.at(block.pool);
  pool.free[{block.stream, block.bytes}].push_back(ptr);
  pool.live -= 1;
  if (pool.uses == 0) {
    returnFree(pool, block.pool.first);
    if (pool.live == 0) {
      pools_.erase(block.pool);
    }
  }
  count();
  return true;
}

} // namespace headwater

// Pools: private memory for graphs, for parts of a program, and for compiled graphs, whose pools are brought back into earlier states.
#include "allocator.h"

#include <algorithm>
#include <thread>

namespace headwater {

namespace {

void* pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

Filter filterOf(std::function<bool(cudaStream_t)> filter) {
  using Function = std::function<bool(cudaStream_t)>;
  return {
      new Function(std::move(filter)),
      [](void* context, uint64_t stream) { return (*static_cast<Function*>(context))(static_cast<cudaStream_t>(pointer(stream))); },
      [](void* context) { delete static_cast<Function*>(context); }};
}

struct PoolCheckpoint final : cca::AllocatorState {
  PoolCheckpoint(const Calls& calls, PoolState* state) : calls(calls), state(state) {}
  PoolCheckpoint(const PoolCheckpoint&) = delete;
  PoolCheckpoint& operator=(const PoolCheckpoint&) = delete;
  ~PoolCheckpoint() override {
    calls.state_drop(state);
  }
  const Calls& calls;
  PoolState* state;
};

} // namespace

void Allocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
  if (foreign_.any() && foreign_.owns({device, pool})) {
    return foreign_.begin({device, pool}, std::move(filter));
  }
  Failure failure;
  auto owned = filterOf(std::move(filter));
  TORCH_CHECK(calls_.pool_begin(device, pool.first, pool.second, &owned, &failure), "Headwater: ", failure.message);
}

void Allocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  if (foreign_.any() && foreign_.owns({device, pool})) {
    return foreign_.end({device, pool});
  }
  Failure failure;
  TORCH_CHECK(calls_.pool_end(device, pool.first, pool.second, &failure), "Headwater: ", failure.message);
}

void Allocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  if (foreign_.any() && foreign_.owns({device, pool})) {
    return foreign_.release({device, pool});
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (calls_.pool_uses(device, pool.first, pool.second) <= 1) {
      auto mine = [&](const auto& other) { return other.first == device && other.second == pool; };
      last_resort_.erase(std::remove_if(last_resort_.begin(), last_resort_.end(), mine), last_resort_.end());
    }
  }
  Failure failure;
  TORCH_CHECK(calls_.pool_release(device, pool.first, pool.second, &failure), "Headwater: ", failure.message);
}

int Allocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) {
  if (foreign_.any() && foreign_.owns({device, pool})) {
    return foreign_.uses({device, pool});
  }
  return static_cast<int>(calls_.pool_uses(device, pool.first, pool.second));
}

#if HEADWATER_TORCH_AT_LEAST(8)
#if HEADWATER_TORCH_AT_LEAST(11)
void Allocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, std::shared_ptr<cca::CUDAAllocator> source) {
#else
void Allocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, cca::CUDAAllocator* borrowed) {
  std::shared_ptr<cca::CUDAAllocator> source(borrowed, [](cca::CUDAAllocator*) {});
#endif
  if (source || (foreign_.any() && foreign_.owns({device, pool}))) {
    return foreign_.create({device, pool}, std::move(source));
  }
#else
void Allocator::ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool) {
#endif
  Failure failure;
  TORCH_CHECK(calls_.pool_retain(device, pool.first, pool.second, &failure), "Headwater: ", failure.message);
}

#if HEADWATER_TORCH_AT_LEAST(8)
void Allocator::setUseOnOOM(
    c10::DeviceIndex device,
    MempoolId_t pool
#if HEADWATER_TORCH_AT_LEAST(11)
    ,
    bool use_on_oom
#endif
) {
  std::lock_guard<std::mutex> guard(mutex_);
#if HEADWATER_TORCH_AT_LEAST(11)
  if (!use_on_oom) {
    auto mine = [&](const auto& other) { return other.first == device && other.second == pool; };
    last_resort_.erase(std::remove_if(last_resort_.begin(), last_resort_.end(), mine), last_resort_.end());
    return;
  }
#endif
  last_resort_.emplace_back(device, pool);
}
#endif

#if HEADWATER_TORCH_AT_LEAST(10)
void Allocator::setNoSplit(c10::DeviceIndex, MempoolId_t) {
  // A hint against fragmentation in PyTorch's own pools; Headwater's keep what they have together anyway.
}
#endif

// When memory has run out: pools that were made for that (`use_on_oom`) may serve anybody from what they have free.
void* Allocator::takeFromLastResort(size_t size, c10::DeviceIndex device, cudaStream_t stream) {
  std::vector<std::pair<c10::DeviceIndex, MempoolId_t>> pools;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    pools = last_resort_;
  }
  for (const auto& [of, pool] : pools) {
    if (of != device) {
      continue;
    }
    Failure failure;
    auto thread = std::this_thread::get_id();
    auto filter = filterOf([thread](cudaStream_t) { return std::this_thread::get_id() == thread; });
    if (!calls_.pool_begin(device, pool.first, pool.second, &filter, &failure)) {
      continue;
    }
    uint64_t address = 0;
    bool served = calls_.allocate(size, device, reinterpret_cast<uint64_t>(stream), &address, &failure);
    calls_.pool_end(device, pool.first, pool.second, &failure);
    calls_.pool_release(device, pool.first, pool.second, &failure);
    if (served) {
      return pointer(address);
    }
  }
  return nullptr;
}

// ---- States of pools, for compiled graphs ----

bool Allocator::checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) {
  std::unordered_set<void*> live;
  Walker walker{
      &live,
      [](void*, const WalkedSegment*) {},
      [](void* set, const WalkedBlock* block) {
        if (block->state == BlockState::Live) {
          static_cast<std::unordered_set<void*>*>(set)->insert(reinterpret_cast<void*>(block->address));
        }
      }};
  calls_.walk_pool(device, pool.first, pool.second, &walker);
  return live == expected;
}

std::shared_ptr<cca::AllocatorState> Allocator::getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) {
  Failure failure;
  PoolState* state = calls_.state_take(device, pool.first, pool.second, &failure);
  TORCH_CHECK(state != nullptr, "Headwater: ", failure.message);
  return std::make_shared<PoolCheckpoint>(calls_, state);
}

cca::CheckpointDelta Allocator::setCheckpointPoolState(c10::DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) {
  auto checkpoint = std::dynamic_pointer_cast<PoolCheckpoint>(state);
  TORCH_CHECK(checkpoint, "the state was not taken of one of Headwater's pools");
  struct Change {
    std::vector<void*> freed;
    std::vector<void*> allocated;
  } change;
  CheckpointVisitor visitor{
      &change,
      [](void* context, uint64_t ptr) { static_cast<Change*>(context)->freed.push_back(reinterpret_cast<void*>(ptr)); },
      [](void* context, uint64_t ptr) { static_cast<Change*>(context)->allocated.push_back(reinterpret_cast<void*>(ptr)); }};
  Failure failure;
  TORCH_CHECK(calls_.state_restore(device, checkpoint->state, &visitor, &failure), "Headwater: ", failure.message);
  cca::CheckpointDelta delta;
  delta.ptrs_freed = std::move(change.freed);
  for (void* ptr : change.allocated) {
    delta.dataptrs_allocd.emplace_back(ptr, ptr, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

} // namespace headwater

// RMM's pool and arena, over cudaMalloc. `--kind pool` or `--kind arena`.
//
// Both are given memory enough at the start, as their users do: 24 GiB, or a half of what is free where that is less. Neither
// can be emptied, so there is no `miss`; neither has a record_stream.
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <algorithm>

#include "work/cuda.hpp"
#include "work/run.hpp"

namespace {

constexpr size_t kAlignment = 256;

size_t starting_bytes() {
  peers::check(cudaSetDevice(0), "cudaSetDevice");
  size_t free_bytes = 0, total_bytes = 0;
  peers::check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return std::min(free_bytes / 2, size_t{24} << 30) / peers::kMib * peers::kMib;
}

struct Pool {
  static constexpr const char* name = "rmm_pool";
  rmm::mr::pool_memory_resource resource{rmm::mr::cuda_memory_resource{}, starting_bytes()};
};

struct Arena {
  static constexpr const char* name = "rmm_arena";
  rmm::mr::arena_memory_resource resource{rmm::mr::cuda_memory_resource{}, starting_bytes()};
};

template <class Kind>
struct Rmm : peers::OnCuda {
  static constexpr bool can_be_emptied = false;
  Kind kind;

  const char* name() const { return Kind::name; }

  void* allocate(size_t bytes, Stream stream) {
    return kind.resource.allocate(cuda::stream_ref{stream}, bytes, kAlignment);
  }

  void deallocate(void* block, size_t bytes, Stream stream) {
    kind.resource.deallocate(cuda::stream_ref{stream}, block, bytes, kAlignment);
  }

  void empty() {}
};

}  // namespace

int main(int argc, char** argv) {
  if (peers::option(argc, argv, "--kind", "pool") == "arena") {
    return peers::main_of(argc, argv, [] { return std::make_unique<Rmm<Arena>>(); });
  }
  return peers::main_of(argc, argv, [] { return std::make_unique<Rmm<Pool>>(); });
}

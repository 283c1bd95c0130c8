// cudaMalloc and cudaFree: what there is without an allocator.
#include "work/cuda.hpp"
#include "work/run.hpp"

namespace {

struct CudaMalloc : peers::OnCuda {
  const char* name() const { return "cudaMalloc"; }

  void* allocate(size_t bytes, Stream) {
    void* block = nullptr;
    peers::check(cudaMalloc(&block, bytes), "cudaMalloc");
    return block;
  }

  void deallocate(void* block, size_t, Stream) { peers::check(cudaFree(block), "cudaFree"); }

  void empty() {}
};

}  // namespace

int main(int argc, char** argv) {
  return peers::main_of(argc, argv, [] { return std::make_unique<CudaMalloc>(); });
}

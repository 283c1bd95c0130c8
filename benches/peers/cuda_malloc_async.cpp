// cudaMallocAsync and cudaFreeAsync on the device's own pool, which is told to keep what it is given: with the default it
// returns everything at the next synchronisation, and there would be no hits to measure.
#include <cstdint>

#include "work/cuda.hpp"
#include "work/run.hpp"

namespace {

class CudaMallocAsync : public peers::OnCuda {
 public:
  CudaMallocAsync() {
    enter_thread();
    peers::check(cudaDeviceGetDefaultMemPool(&pool_, 0), "cudaDeviceGetDefaultMemPool");
    uint64_t everything = UINT64_MAX;
    peers::check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &everything),
                 "cudaMemPoolSetAttribute");
  }

  const char* name() const { return "cudaMallocAsync"; }

  void* allocate(size_t bytes, Stream stream) {
    void* block = nullptr;
    peers::check(cudaMallocAsync(&block, bytes, stream), "cudaMallocAsync");
    return block;
  }

  void deallocate(void* block, size_t, Stream stream) { peers::check(cudaFreeAsync(block, stream), "cudaFreeAsync"); }

  void empty() {
    peers::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    peers::check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo");
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return peers::main_of(argc, argv, [] { return std::make_unique<CudaMallocAsync>(); });
}

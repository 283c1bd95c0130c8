// PyTorch's caching allocator through its C++ interface, without Python. Which of its two ways is measured,
// PYTORCH_CUDA_ALLOC_CONF says as for any program; the name in the result follows what is in force.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "work/cuda.hpp"
#include "work/run.hpp"

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

class TorchCaching : public peers::OnCuda {
 public:
  // Without Python's part of PyTorch in the process, `recordStream` ends it (seen with 2.11 on an H200).
  static constexpr bool has_record_stream = false;

  TorchCaching() {
    enter_thread();
    caching::init(1);
  }

  const char* name() const {
    return caching::CUDAAllocatorConfig::expandable_segments() ? "torch_expandable" : "torch";
  }

  void* allocate(size_t bytes, Stream stream) { return caching::raw_alloc_with_stream(bytes, stream); }

  void deallocate(void* block, size_t, Stream) { caching::raw_delete(block); }

  void empty() { caching::emptyCache(); }
};

}  // namespace

int main(int argc, char** argv) {
  return peers::main_of(argc, argv, [] { return std::make_unique<TorchCaching>(); });
}

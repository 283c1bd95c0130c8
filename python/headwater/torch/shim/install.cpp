#include "allocator.h"

namespace {

std::string problem;

} // namespace

// Puts Headwater in the place of PyTorch's allocator. Returns null, or why that cannot be done.
extern "C" __attribute__((visibility("default"))) const char* headwater_shim_install(const headwater::Calls* calls) {
  if (calls->version != headwater::kCallsVersion || calls->table_bytes != sizeof(headwater::Calls)) {
    return "the shim and the package are of different versions";
  }
  try {
    // Never destroyed: tensors of static duration outlive everything that could destroy it.
    static auto* allocator = new std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>(
        std::make_shared<headwater::Allocator>(*calls));
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*allocator);
    // `torch.accelerator` asks for the device's allocator here.
    c10::SetAllocator(c10::DeviceType::CUDA, allocator->get(), 0);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

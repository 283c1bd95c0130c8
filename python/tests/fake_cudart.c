// The few calls of CUDA's run-time library that the shim's way through PyTorch makes, for machines without a GPU: preloaded, so that
// PyTorch finds these first. Everything else of the library fails there as it does without a driver.
#include <stddef.h>

int cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cudaSetDevice(int device) {
  return device == 0 ? 0 : 101;
}

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = 5ull << 30;
  *total_bytes = 8ull << 30;
  return 0;
}

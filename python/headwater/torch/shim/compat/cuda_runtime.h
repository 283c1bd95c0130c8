// In the place of CUDA's own: PyTorch's headers ask for it but need the plain API only, and the full one includes headers of the
// compiler nvcc, which PyTorch's wheels do not bring along.
#pragma once
#include <cuda_runtime_api.h>

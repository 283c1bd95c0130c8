// In the place of a header of the compiler nvcc, for machines that have CUDA's run-time headers alone: what they use of it, as it is
// for a C++ compiler that knows no device code.
#pragma once
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __location__(a)
#define __specialization_static
#define __thread__ __thread
#define CUDARTAPI
#define CUDARTAPI_CDECL

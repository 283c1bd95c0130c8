// The kernels that the conformance suite, the stress tests and the demo launch. The text that ships is
// test_kernels.ptx, made by `nvcc -ptx -arch=compute_75 -o test_kernels.ptx test_kernels.cu`; the simulated device runs
// its own implementation of the same names (crates/headwater-sim/src/builtin_kernels.rs).
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 stride() { return gridDim.x * (u64)blockDim.x; }
__device__ __forceinline__ u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ void spin(u64 us) { u64 t = now_ns(); while (now_ns() - t < us * 1000) { } }

// Keeps the stream busy.
extern "C" __global__ void hw_spin(u64 us) { spin(us); }
// p[i] = value
extern "C" __global__ void hw_fill(u32* p, u64 n, u32 value) { for (u64 i = first(); i < n; i += stride()) p[i] = value; }
// The same, late: whoever reuses the memory too early is overwritten and notices.
extern "C" __global__ void hw_fill_late(u32* p, u64 n, u32 value, u64 us) { spin(us); for (u64 i = first(); i < n; i += stride()) p[i] = value; }
// p[i] += value
extern "C" __global__ void hw_add(u32* p, u64 n, u32 value) { for (u64 i = first(); i < n; i += stride()) p[i] += value; }
// dst[i] = src[i]
extern "C" __global__ void hw_copy(u32* dst, const u32* src, u64 n) { for (u64 i = first(); i < n; i += stride()) dst[i] = src[i]; }
// *wrong += how many p[i] are not value
extern "C" __global__ void hw_check(const u32* p, u64 n, u32 value, u32* wrong) { for (u64 i = first(); i < n; i += stride()) if (p[i] != value) atomicAdd(wrong, 1u); }

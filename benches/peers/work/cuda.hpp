// What contestants on the CUDA runtime have in common.
#pragma once

#include <cuda_runtime_api.h>

#include "contestant.hpp"

namespace peers {

inline void check(cudaError_t answer, const char* call) {
  if (answer != cudaSuccess) throw Failed(std::string(call) + ": " + cudaGetErrorString(answer));
}

struct OnCuda {
  using Stream = cudaStream_t;
  using Held = void*;
  static constexpr bool has_record_stream = false;
  static constexpr bool can_be_emptied = true;

  void enter_thread() { check(cudaSetDevice(0), "cudaSetDevice"); }

  Stream make_stream() {
    enter_thread();
    Stream stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;  // for as long as the program runs
  }

  void finish(Stream stream) { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
};

}  // namespace peers

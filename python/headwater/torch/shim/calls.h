// What the shim is given of Headwater: the table of crates/headwater-capi/src/torch/calls.rs, in C++'s words.
// The fields are in the same order there; version and size are compared before the first call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headwater {

constexpr uint32_t kCallsVersion = 1;

struct StatFigures {
  int64_t current, peak, allocated, freed;
};

struct Figures {
  StatFigures allocation[3], segment[3], active[3], inactive_split[3];
  StatFigures allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
  StatFigures oversize_allocations, oversize_segments;
  int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
  int64_t max_split_size, num_oom_rejections;
};

struct Failure {
  bool out_of_memory, over_limit;
  uint64_t allocated_bytes, reserved_bytes, private_bytes, limit_bytes, device_free_bytes, device_total_bytes;
  char message[512];
};

struct Place {
  uint64_t address, requested_bytes, bytes, stream;
  int device;
};

enum class BlockState : int32_t { Live = 0, Pending = 1, Free = 2 };

struct WalkedSegment {
  uint64_t address, total_bytes, allocated_bytes, active_bytes, requested_bytes, stream;
  uint64_t pool[2];
  bool is_large, is_expandable;
};

struct WalkedBlock {
  uint64_t address, bytes, requested_bytes;
  BlockState state;
};

struct Walker {
  void* context;
  void (*segment)(void*, const WalkedSegment*);
  void (*block)(void*, const WalkedBlock*);
};

struct CheckpointVisitor {
  void* context;
  void (*freed)(void*, uint64_t);
  void (*allocated)(void*, uint64_t);
};

struct Filter {
  void* context;
  bool (*accepts)(void*, uint64_t);
  void (*drop)(void*);
};

struct PoolState;

struct Calls {
  uint32_t version, table_bytes;
  bool (*start)(Failure*);
  bool (*allocate)(uint64_t bytes, int device, uint64_t stream, uint64_t* ptr, Failure*);
  bool (*give_back)(uint64_t ptr, Failure*);
  bool (*record_stream)(uint64_t ptr, uint64_t stream);
  bool (*place_of)(uint64_t ptr, Place*);
  bool (*empty_cache)(Failure*);
  bool (*set_fraction)(double, int device, Failure*);
  double (*fraction)(int device);
  void (*figures)(int device, Figures*);
  void (*reset_peaks)(int device);
  void (*reset_totals)(int device);
  uint64_t (*largest_free_bytes)(int device);
  bool (*enable_peer)(int device, int peer, Failure*);
  void (*walk)(int device, const Walker*);
  void (*walk_pool)(int device, uint64_t, uint64_t, const Walker*);
  bool (*pool_retain)(int device, uint64_t, uint64_t, Failure*);
  bool (*pool_release)(int device, uint64_t, uint64_t, Failure*);
  uint64_t (*pool_uses)(int device, uint64_t, uint64_t);
  bool (*pool_begin)(int device, uint64_t, uint64_t, Filter*, Failure*);
  bool (*pool_end)(int device, uint64_t, uint64_t, Failure*);
  PoolState* (*state_take)(int device, uint64_t, uint64_t, Failure*);
  void (*state_drop)(PoolState*);
  bool (*state_restore)(int device, const PoolState*, const CheckpointVisitor*, Failure*);
};

} // namespace headwater

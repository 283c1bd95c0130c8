/*
 * Headwater: GPU memory management. The C interface.
 *
 * This file is written from crates/headwater-capi/src by its test `header`; do not edit it. docs/c-api.md explains it.
 *
 * Every function that can fail returns an hw_status; hw_last_error_message() then says why, in the calling thread. Handles are checked:
 * a destroyed one is an error. Texts and lists that are given out belong to the caller. All functions may be called from any thread; a
 * handle must not be destroyed while another thread is inside of a call with it.
 */

#ifndef HEADWATER_H
#define HEADWATER_H

#include <stddef.h>
#include <stdint.h>
#if defined(_WIN32) || defined(__CYGWIN__)
#error "Headwater runs on Linux"
#endif

/**
 * How a call ended. Zero is success; numbers are never given a new meaning.
 */
typedef enum {
    /**
     * It did what it was asked.
     */
    HW_STATUS_OK = 0,
    /**
     * A null pointer, a number out of its range, an unknown constant, a text that is not UTF-8.
     */
    HW_STATUS_INVALID_ARGUMENT = 1,
    /**
     * A handle that was destroyed, that never was one, or that is one of another kind.
     */
    HW_STATUS_INVALID_HANDLE = 2,
    /**
     * Not enough memory, after everything that could be tried. `hw_last_oom` has the numbers.
     */
    HW_STATUS_OUT_OF_MEMORY = 3,
    /**
     * A device address that names no block: foreign, inside of one, already given back, or asleep.
     */
    HW_STATUS_INVALID_POINTER = 4,
    /**
     * A stream or event that does not exist, or is of another device.
     */
    HW_STATUS_INVALID_STREAM = 5,
    /**
     * The device, the allocator's policy or its options do not have this.
     */
    HW_STATUS_NOT_SUPPORTED = 6,
    /**
     * No such driver, device or call on this machine.
     */
    HW_STATUS_UNAVAILABLE = 7,
    /**
     * A setting that is unknown, malformed or contradicts another.
     */
    HW_STATUS_BAD_CONFIG = 8,
    /**
     * Not allowed while a stream is being captured; or the capture is lost.
     */
    HW_STATUS_ILLEGAL_IN_CAPTURE = 9,
    /**
     * Work that must have finished has not.
     */
    HW_STATUS_NOT_READY = 10,
    /**
     * The device is lost to this process.
     */
    HW_STATUS_DEVICE_LOST = 11,
    /**
     * The driver refused for another reason.
     */
    HW_STATUS_DRIVER = 12,
    /**
     * Somebody still uses it: blocks are live, data is pinned, a pool is routed to already.
     */
    HW_STATUS_STILL_IN_USE = 13,
    /**
     * The object is not in a state for this: closed, finished, not capturing, of another allocator.
     */
    HW_STATUS_WRONG_STATE = 14,
    /**
     * The deadline came first.
     */
    HW_STATUS_TIMED_OUT = 15,
    /**
     * The tiers have no room: now, ever, or within the reservation.
     */
    HW_STATUS_NO_ROOM = 16,
    /**
     * A file could not be read or written.
     */
    HW_STATUS_IO = 17,
    /**
     * The tiers are shut down, or the wait was called off.
     */
    HW_STATUS_CANCELLED = 18,
    /**
     * A mistake in Headwater itself, stopped before it crossed into the caller.
     */
    HW_STATUS_INTERNAL = 19,
} hw_status;

/**
 * How memory is managed.
 */
typedef enum {
    /**
     * Caching: paged where the device can, classic otherwise; or as the settings say.
     */
    HW_POLICY_AUTO = 0,
    /**
     * No cache: every request is a driver call.
     */
    HW_POLICY_DIRECT = 1,
    /**
     * Blocks of fixed sizes, cached by thread: the fastest.
     */
    HW_POLICY_BINNED = 2,
    /**
     * PyTorch's rules. Without settings exactly those; with settings as they say.
     */
    HW_POLICY_CLASSIC = 3,
    /**
     * One arena of addresses, pages mapped into it on demand: the least fragmentation.
     */
    HW_POLICY_PAGED = 4,
} hw_policy;

/**
 * What a block is doing.
 */
typedef enum {
    /**
     * A caller holds it.
     */
    HW_BLOCK_STATE_LIVE = 0,
    /**
     * It was given back, and cannot be handed out or returned to the driver yet.
     */
    HW_BLOCK_STATE_PENDING = 1,
    /**
     * It is ready to be handed out.
     */
    HW_BLOCK_STATE_CACHED = 2,
} hw_block_state;

/**
 * What happened.
 */
typedef enum {
    /**
     * Memory was asked for.
     */
    HW_LOG_KIND_ALLOCATE = 0,
    /**
     * A block was given back.
     */
    HW_LOG_KIND_GIVE_BACK = 1,
    /**
     * A stream was announced.
     */
    HW_LOG_KIND_RECORD_STREAM = 2,
    /**
     * The cache was emptied; `bytes` is what was released.
     */
    HW_LOG_KIND_EMPTY_CACHE = 3,
} hw_log_kind;

/**
 * What happens to the contents of blocks that sleep.
 */
typedef enum {
    /**
     * They are copied to pinned host memory, and back on waking.
     */
    HW_CONTENTS_SAVED = 0,
    /**
     * They are lost.
     */
    HW_CONTENTS_LOST = 1,
} hw_contents;

/**
 * How strictly potentially unsafe calls are refused during a capture.
 */
typedef enum {
    /**
     * Refused in every thread.
     */
    HW_CAPTURE_MODE_GLOBAL = 0,
    /**
     * Refused in the capturing thread.
     */
    HW_CAPTURE_MODE_THREAD_LOCAL = 1,
    /**
     * Not refused.
     */
    HW_CAPTURE_MODE_RELAXED = 2,
} hw_capture_mode;

/**
 * A kind of memory, fastest first.
 */
typedef enum {
    /**
     * Device memory.
     */
    HW_TIER_GPU = 0,
    /**
     * Pinned host memory.
     */
    HW_TIER_HOST = 1,
    /**
     * Files.
     */
    HW_TIER_DISK = 2,
} hw_tier;

/**
 * An allocator of device memory. Used from any thread.
 */
typedef struct hw_allocator hw_allocator;

/**
 * A device that was opened.
 */
typedef struct hw_device hw_device;

/**
 * A captured graph.
 */
typedef struct hw_graph hw_graph;

/**
 * A graph that can be launched.
 */
typedef struct hw_graph_exec hw_graph_exec;

/**
 * A pool of blocks with fixed addresses, for graphs that a program builds by hand.
 */
typedef struct hw_graph_pool hw_graph_pool;

/**
 * A private pool: memory for captured graphs that never run at the same time. The handle keeps the pool's name and not its
 * memory: that is kept by graphs, by captures under way and by blocks.
 */
typedef struct hw_pool hw_pool;

/**
 * The blocks that a pool had at one moment.
 */
typedef struct hw_pool_checkpoint hw_pool_checkpoint;

/**
 * A promise of bytes in one space.
 */
typedef struct hw_reservation hw_reservation;

/**
 * Device memory that belongs to a reservation.
 */
typedef struct hw_reserved_block hw_reserved_block;

/**
 * Blocks that sleep together.
 */
typedef struct hw_sleep hw_sleep;

/**
 * A spillable buffer pinned on the device: it stays where it is until the access ends.
 */
typedef struct hw_spill_access hw_spill_access;

/**
 * Bytes that are in one tier at a time.
 */
typedef struct hw_spill_buffer hw_spill_buffer;

/**
 * The tiers of a machine.
 */
typedef struct hw_tiers hw_tiers;

/**
 * What was asked for, who holds what, and what the device has: the numbers of an out-of-memory error.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_oom_report)`.
     */
    uint64_t struct_bytes;
    /**
     * The device's ordinal; `UINT32_MAX` where it is not known.
     */
    uint32_t device;
    /**
     * 1 where a limit stood in the way rather than the device.
     */
    uint32_t over_limit;
    /**
     * What was asked for.
     */
    uint64_t requested_bytes;
    /**
     * What callers asked for earlier and hold.
     */
    uint64_t live_bytes;
    /**
     * The same, rounded as the allocator does.
     */
    uint64_t allocated_bytes;
    /**
     * What the allocator holds ready for reuse.
     */
    uint64_t cached_bytes;
    /**
     * What was given back and is still used by a stream.
     */
    uint64_t pending_bytes;
    /**
     * What the driver gave the allocator.
     */
    uint64_t reserved_bytes;
    /**
     * The limit in force; `UINT64_MAX` where there is none.
     */
    uint64_t limit_bytes;
    /**
     * Free memory of the device; `UINT64_MAX` where it could not be asked.
     */
    uint64_t device_free_bytes;
    /**
     * All memory of the device; `UINT64_MAX` where it could not be asked.
     */
    uint64_t device_total_bytes;
} hw_oom_report;

/**
 * What a device is and has.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_device_info)`.
     */
    uint64_t struct_bytes;
    /**
     * Its ordinal.
     */
    uint32_t ordinal;
    /**
     * How many devices the driver has.
     */
    uint32_t device_count;
    /**
     * 1 for the simulated device.
     */
    uint32_t is_simulated;
    /**
     * Streaming multiprocessors.
     */
    uint32_t multiprocessors;
    /**
     * Compute capability, major.
     */
    uint32_t compute_major;
    /**
     * Compute capability, minor.
     */
    uint32_t compute_minor;
    /**
     * 1 where it has virtual memory management, which the paged policy needs.
     */
    uint32_t has_virtual_memory;
    /**
     * 1 where streams can be captured.
     */
    uint32_t has_capture;
    /**
     * All of its memory.
     */
    uint64_t total_bytes;
    /**
     * What is free for anyone at this moment.
     */
    uint64_t free_bytes;
} hw_device_info;

/**
 * A CUDA stream's value (`CUstream`). 0 and 1 are the legacy default stream, 2 is the calling thread's default stream, as in
 * CUDA; any other is a stream that Headwater made or that is adopted when it is first named.
 */
typedef uint64_t hw_stream;

/**
 * An event's value (`CUevent`).
 */
typedef uint64_t hw_event;

/**
 * An address on a device (`CUdeviceptr`). Zero is none.
 */
typedef uint64_t hw_device_ptr;

/**
 * How an allocator is made. Zeros are defaults: `hw_allocator_options options = {sizeof options};` is a good start.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_allocator_options)`.
     */
    uint64_t struct_bytes;
    /**
     * An `hw_policy`.
     */
    uint32_t policy;
    /**
     * 1 to have private pools for captured graphs. A request then costs one load more.
     */
    uint32_t graph_pools;
    /**
     * Settings as `key:value,key:value`, in the grammar of `PYTORCH_CUDA_ALLOC_CONF` (docs/configuration.md); null for none. The
     * policies direct and binned heed the limits in it and nothing else.
     */
    const char *settings;
    /**
     * 1 to take the settings from the environment (`HEADWATER_ALLOC_CONF`, then PyTorch's variables); `settings` is then null.
     */
    uint32_t settings_from_environment;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The most that is reserved from the driver at any time; 0 for no limit of its own. With a limit in the settings as well, the
     * smaller one holds.
     */
    uint64_t limit_bytes;
} hw_allocator_options;

/**
 * What an allocator knows about one block.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_block_facts)`.
     */
    uint64_t struct_bytes;
    /**
     * Its first address.
     */
    hw_device_ptr ptr;
    /**
     * What was asked for.
     */
    uint64_t requested_bytes;
    /**
     * What it takes up, rounding and alignment included.
     */
    uint64_t allocated_bytes;
    /**
     * The stream it belongs to.
     */
    hw_stream stream;
    /**
     * An `hw_block_state`.
     */
    uint32_t state;
    /**
     * Zero.
     */
    uint32_t reserved;
} hw_block_facts;

/**
 * Called when memory ran out, after the cache was given up. Returns 1 where it freed something and asking again may help, 0
 * otherwise.
 *
 * It runs in the thread that asked, with no lock held, and from several threads at once: it may give blocks back, empty the cache, ask
 * for statistics. It does not return by `longjmp` or an exception.
 */
typedef uint32_t (*hw_oom_callback)(void *user, const hw_oom_report *report);

/**
 * One call and its outcome.
 */
typedef struct {
    /**
     * The struct's size in the library.
     */
    uint64_t struct_bytes;
    /**
     * An `hw_log_kind`.
     */
    uint32_t kind;
    /**
     * An `hw_status`.
     */
    uint32_t status;
    /**
     * What was asked for, or released.
     */
    uint64_t bytes;
    /**
     * The alignment that was asked for.
     */
    uint64_t alignment_bytes;
    /**
     * The block; 0 where there is none.
     */
    hw_device_ptr ptr;
    /**
     * The stream; 0 where there is none.
     */
    hw_stream stream;
} hw_log_event;

/**
 * Called after every call to the allocator, in the thread that made it, with no lock held, and from several threads at once. The event
 * is good until it returns. A call that it makes to the same allocator is told as well: it is for the callback to end that.
 */
typedef void (*hw_log_callback)(void *user, const hw_log_event *event);

/**
 * A block of a graph pool.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_graph_block)`.
     */
    uint64_t struct_bytes;
    /**
     * Its name: no two blocks of a process have the same.
     */
    uint64_t id;
    /**
     * Its address, for as long as the block exists.
     */
    hw_device_ptr ptr;
    /**
     * What was asked for when it was last handed out.
     */
    uint64_t bytes;
    /**
     * What it takes up.
     */
    uint64_t extent_bytes;
    /**
     * 1 where it is handed out, 0 where it is available.
     */
    uint32_t in_use;
    /**
     * Zero.
     */
    uint32_t reserved;
} hw_graph_block;

/**
 * A graph pool at one moment.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_graph_pool_stats)`.
     */
    uint64_t struct_bytes;
    /**
     * What the driver gave, in use or available.
     */
    uint64_t allocated_bytes;
    /**
     * Blocks there are, in use or available.
     */
    uint64_t block_count;
    /**
     * What blocks in use take up.
     */
    uint64_t in_use_bytes;
    /**
     * Blocks in use.
     */
    uint64_t in_use_blocks;
    /**
     * What was asked for and is in use.
     */
    uint64_t requested_bytes;
    /**
     * The most the pool may have; `UINT64_MAX` where there is no limit.
     */
    uint64_t max_capacity_bytes;
    /**
     * What of the initial capacity the device had.
     */
    uint64_t initial_bytes;
} hw_graph_pool_stats;

/**
 * Says whether requests of a stream go to the pool: 1 for yes. Called for every request of every thread while the route lasts, with no lock
 * held; it makes no calls to the allocator.
 */
typedef uint32_t (*hw_stream_filter)(void *user, hw_stream stream);

/**
 * A count that rises and falls.
 */
typedef struct {
    /**
     * What it is now.
     */
    uint64_t current;
    /**
     * The most it was since the peaks were reset.
     */
    uint64_t peak;
    /**
     * All it rose by since the totals were reset.
     */
    uint64_t allocated;
    /**
     * All it fell by since the totals were reset.
     */
    uint64_t freed;
} hw_stat;

/**
 * The same for all blocks, those of the small pool and those of the large pool.
 */
typedef struct {
    /**
     * Of all blocks.
     */
    hw_stat all;
    /**
     * Of the small pool, up to 1 MiB.
     */
    hw_stat small_pool;
    /**
     * Of the large pool.
     */
    hw_stat large_pool;
} hw_stat_array;

/**
 * What an allocator counts, by PyTorch's names. At rest the figures add up to the byte.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_stats)`.
     */
    uint64_t struct_bytes;
    /**
     * Blocks that callers hold.
     */
    hw_stat_array allocation;
    /**
     * Segments that the driver gave us.
     */
    hw_stat_array segment;
    /**
     * Blocks that callers hold or a stream still uses.
     */
    hw_stat_array active;
    /**
     * Free blocks of segments that are partly in use.
     */
    hw_stat_array inactive_split;
    /**
     * Bytes of `allocation`, rounded.
     */
    hw_stat_array allocated_bytes;
    /**
     * Bytes that the driver gave us.
     */
    hw_stat_array reserved_bytes;
    /**
     * Bytes of `active`.
     */
    hw_stat_array active_bytes;
    /**
     * Bytes of `inactive_split`.
     */
    hw_stat_array inactive_split_bytes;
    /**
     * Bytes that callers asked for and hold.
     */
    hw_stat_array requested_bytes;
    /**
     * Blocks of at least `max_split_size` that callers hold.
     */
    hw_stat oversize_allocations;
    /**
     * Segments of at least `max_split_size`.
     */
    hw_stat oversize_segments;
    /**
     * Requests that were tried again after the driver had no memory.
     */
    uint64_t num_alloc_retries;
    /**
     * Requests that ended in an out-of-memory error.
     */
    uint64_t num_ooms;
    /**
     * Requests refused at the limit before the driver was asked.
     */
    uint64_t num_oom_rejections;
    /**
     * How often all streams with pending give-backs were waited for.
     */
    uint64_t num_sync_all_streams;
    /**
     * Segments or handles got from the driver.
     */
    uint64_t num_device_alloc;
    /**
     * Segments or handles returned to the driver.
     */
    uint64_t num_device_free;
    /**
     * Requests served from the cache.
     */
    uint64_t num_hits;
    /**
     * Requests that needed the driver.
     */
    uint64_t num_misses;
    /**
     * Give-backs to the driver that could not be made at once.
     */
    uint64_t num_owed_give_backs;
    /**
     * The setting in bytes; `UINT64_MAX` where there is none.
     */
    uint64_t max_split_size;
    /**
     * 1 - peak live / peak reserved.
     */
    double fragmentation;
    /**
     * The same for this moment.
     */
    double current_fragmentation;
} hw_stats;

/**
 * How the tiers are set up. Zeros are defaults, or "no such space".
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_tiers_options)`.
     */
    uint64_t struct_bytes;
    /**
     * Gives out the memory of the GPU space.
     */
    const hw_allocator *allocator;
    /**
     * The hard cap on what the GPU space gives out.
     */
    uint64_t gpu_bytes;
    /**
     * The hard cap on pinned host memory; 0 for no HOST space.
     */
    uint64_t host_bytes;
    /**
     * The NUMA node of the host memory.
     */
    uint32_t host_numa_node;
    /**
     * 1 to have an engine that spills by itself; it needs a HOST space.
     */
    uint32_t spill;
    /**
     * The size of a pinned block, a multiple of 4096; 0 for 1 MiB.
     */
    uint64_t host_block_bytes;
    /**
     * How many blocks are pinned in one go; 0 for 128.
     */
    uint32_t host_blocks_per_slab;
    /**
     * How many slabs are pinned at the start.
     */
    uint32_t host_initial_slabs;
    /**
     * A directory on the disk to spill to; null for no DISK space.
     */
    const char *disk_directory;
    /**
     * The hard cap on what the DISK space gives out.
     */
    uint64_t disk_bytes;
    /**
     * How much of each capacity reservations can take, from 0 to 1; 0 for 0.85.
     */
    double reservation_limit;
    /**
     * Use at or above this share calls for data to be moved down; 0 for 0.85.
     */
    double downgrade_trigger;
    /**
     * Use at or below this share is low enough to stop; 0 for 0.65.
     */
    double downgrade_stop;
} hw_tiers_options;

/**
 * A reservation at one moment.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_reservation_facts)`.
     */
    uint64_t struct_bytes;
    /**
     * An `hw_tier`.
     */
    uint32_t tier;
    /**
     * The device's ordinal, the NUMA node or the number of the mount.
     */
    uint32_t place;
    /**
     * What is promised.
     */
    uint64_t bytes;
    /**
     * What is allocated from it.
     */
    uint64_t in_use_bytes;
    /**
     * What is promised and not allocated.
     */
    uint64_t unused_bytes;
} hw_reservation_facts;

/**
 * The gauge of a space at one moment.
 */
typedef struct {
    /**
     * Set by the caller to `sizeof(hw_space_use)`.
     */
    uint64_t struct_bytes;
    /**
     * The hard cap.
     */
    uint64_t capacity_bytes;
    /**
     * The most that can be promised.
     */
    uint64_t limit_bytes;
    /**
     * What is promised.
     */
    uint64_t reserved_bytes;
    /**
     * What is allocated beyond or outside of reservations.
     */
    uint64_t unreserved_bytes;
    /**
     * The most that was ever taken.
     */
    uint64_t used_bytes_peak;
    /**
     * How many requests wait for this space.
     */
    uint64_t waiting;
    /**
     * How many bytes they want.
     */
    uint64_t waiting_bytes;
} hw_space_use;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The code of the calling thread's latest failed call; `HW_STATUS_OK` where none has failed.
 */
hw_status hw_last_status(void);

/**
 * The message of the calling thread's latest failed call, in one line; empty where none has failed. The text is
 * Headwater's, and good until the next call of this thread that fails.
 */
const char *hw_last_error_message(void);

/**
 * The numbers of the calling thread's latest failed call, where that was `HW_STATUS_OUT_OF_MEMORY`; otherwise
 * `HW_STATUS_WRONG_STATE`, and nothing is written (nor does the message change).
 */
hw_status hw_last_oom(hw_oom_report *report);

/**
 * A status in a few words that never change: for logs.
 */
const char *hw_status_text(int32_t status);

/**
 * Gives back a text that Headwater gave out. Null is no error.
 */
void hw_string_free(char *text);

/**
 * Gives back bytes that Headwater gave out, with the count it gave with them. Null is no error.
 */
void hw_bytes_free(uint8_t *bytes, size_t count);

/**
 * The library's version, `major.minor.patch`. The text is Headwater's and always good.
 */
const char *hw_version(void);

/**
 * Opens a device: `auto` (CUDA device 0 where CUDA works, the simulated device otherwise), `sim`, `cuda` or `cuda:N`. Each
 * simulated device is one of its own.
 */
hw_status hw_device_open(const char *choice,
                         hw_device **device);

/**
 * Closes a device handle. Allocators and pools that were made with it go on working.
 */
hw_status hw_device_close(hw_device *device);

/**
 * What the device is and has.
 */
hw_status hw_device_get_info(const hw_device *device, hw_device_info *info);

/**
 * The maker's name for the device. Give the text back with `hw_string_free`.
 */
hw_status hw_device_name(const hw_device *device, char **name);

/**
 * The driver's version in its own words. Give the text back with `hw_string_free`.
 */
hw_status hw_device_driver_version(const hw_device *device, char **version);

/**
 * Why it is this device, in one sentence. Give the text back with `hw_string_free`.
 */
hw_status hw_device_why(const hw_device *device, char **why);

/**
 * What the simulated device noticed so far and CUDA would have hidden: how many mistakes, and (where `hazards_text` is not null)
 * one line for each, to be given back with `hw_string_free`. `HW_STATUS_NOT_SUPPORTED` on a real device.
 */
hw_status hw_sim_hazards(const hw_device *device,
                         uint64_t *count,
                         char **hazards_text);

/**
 * Makes a stream. `non_blocking` is 1 for one that is not ordered against the legacy default stream; smaller priorities run first.
 */
hw_status hw_stream_create(const hw_device *device,
                           uint32_t non_blocking,
                           int32_t priority,
                           hw_stream *stream);

/**
 * Destroys a stream that `hw_stream_create` made; work in it still finishes. Allocators that it was used with are told first, with
 * `hw_forget_stream`.
 */
hw_status hw_stream_destroy(const hw_device *device,
                            hw_stream stream);

/**
 * Waits until all work in the stream has finished.
 */
hw_status hw_stream_synchronize(const hw_device *device, hw_stream stream);

/**
 * `is_done` becomes 1 where all work in the stream has finished, and 0 otherwise.
 */
hw_status hw_stream_query(const hw_device *device, hw_stream stream, uint32_t *is_done);

/**
 * Makes all later work in `stream` wait on the device for what `event` last recorded.
 */
hw_status hw_stream_wait_event(const hw_device *device, hw_stream stream, hw_event event);

/**
 * Makes an event; `timing` is 1 for one that keeps the time.
 */
hw_status hw_event_create(const hw_device *device, uint32_t timing, hw_event *event);

/**
 * Destroys an event. Waits on it that are already queued still hold.
 */
hw_status hw_event_destroy(const hw_device *device, hw_event event);

/**
 * Marks the present end of `stream`.
 */
hw_status hw_event_record(const hw_device *device, hw_event event, hw_stream stream);

/**
 * Waits until the work before the recorded point has finished.
 */
hw_status hw_event_synchronize(const hw_device *device, hw_event event);

/**
 * `is_done` becomes 1 where the work before the recorded point has finished, and 0 otherwise.
 */
hw_status hw_event_query(const hw_device *device, hw_event event, uint32_t *is_done);

/**
 * Microseconds of device time from `start` to `end`, two events that keep the time.
 */
hw_status hw_event_elapsed_us(const hw_device *device, hw_event start, hw_event end, double *microseconds);

/**
 * Copies `bytes` from the host to the device.
 */
hw_status hw_copy_to_device(const hw_device *device,
                            hw_device_ptr dst,
                            const void *src,
                            uint64_t bytes,
                            hw_stream stream);

/**
 * Copies `bytes` from the device to the host.
 */
hw_status hw_copy_to_host(const hw_device *device,
                          void *dst,
                          hw_device_ptr src,
                          uint64_t bytes,
                          hw_stream stream);

/**
 * Copies `bytes` within the device's memory. The ranges do not overlap.
 */
hw_status hw_copy_on_device(const hw_device *device,
                            hw_device_ptr dst,
                            hw_device_ptr src,
                            uint64_t bytes,
                            hw_stream stream);

/**
 * Sets `bytes` bytes to `value`.
 */
hw_status hw_fill(const hw_device *device,
                  hw_device_ptr dst,
                  uint8_t value,
                  uint64_t bytes,
                  hw_stream stream);

/**
 * Allocates `bytes` of pinned host memory, aligned to a page. Slow: 1.6 ms for 1 MiB on an H200's host.
 */
hw_status hw_host_allocate(const hw_device *device, uint64_t bytes, void **ptr);

/**
 * Frees what `hw_host_allocate` gave out; waits for running work. Null is no error.
 */
hw_status hw_host_free(const hw_device *device, void *ptr);

/**
 * Makes an allocator of a device's memory. `options` may be null: then all are defaults.
 */
hw_status hw_allocator_create(const hw_device *device,
                              const hw_allocator_options *options,
                              hw_allocator **allocator);

/**
 * Makes another handle around the same memory, whose own callers hold at most `limit_bytes` of it at any time. What it counts
 * is what they asked for. Several such handles share out one allocator.
 */
hw_status hw_allocator_create_limited(const hw_allocator *inner,
                                      uint64_t limit_bytes,
                                      hw_allocator **allocator);

/**
 * Destroys a handle, and with the last handle the memory.
 *
 * Where callers still hold blocks and this is the last handle, it is refused with `HW_STATUS_STILL_IN_USE` and the number of blocks in
 * the message, unless `force` is 1: then their memory goes too, once all work that uses it has finished. No other thread is
 * inside of a call with this handle.
 */
hw_status hw_allocator_destroy(hw_allocator *allocator,
                               uint32_t force);

/**
 * The policy in force: `direct`, `binned`, `classic` or `paged`. Give the text back with `hw_string_free`.
 */
hw_status hw_allocator_policy(const hw_allocator *allocator, char **name);

/**
 * The settings that are not the default, as a settings string; empty for policies that have none. Give the text back with
 * `hw_string_free`.
 */
hw_status hw_allocator_settings(const hw_allocator *allocator,
                                char **settings);

/**
 * From now on at most `limit_bytes` are reserved from the driver; `UINT64_MAX` is no limit. What is reserved beyond a smaller limit
 * stays until it is released. `HW_STATUS_NOT_SUPPORTED` for direct and binned, whose limit is an option.
 */
hw_status hw_set_limit_bytes(const hw_allocator *allocator,
                             uint64_t limit_bytes);

/**
 * The same as a share of the device's memory, between 0 and 1; 1 is no limit.
 */
hw_status hw_set_memory_fraction(const hw_allocator *allocator, double fraction);

/**
 * The limit in force; `UINT64_MAX` where there is none. `HW_STATUS_NOT_SUPPORTED` for direct and binned.
 */
hw_status hw_get_limit_bytes(const hw_allocator *allocator, uint64_t *limit_bytes);

/**
 * Gives kernels of the device with ordinal `peer` access to the allocator's memory, what there is and what will be. Twice is no
 * error.
 */
hw_status hw_enable_peer(const hw_allocator *allocator,
                         uint32_t peer);

/**
 * Gives out `bytes` of device memory for use in `stream`; the address is a multiple of 256 at least, and the content
 * undefined. Zero bytes get the address zero. Work in `stream` may use it at once; work in other streams is ordered after that
 * stream by the caller, and announced with `hw_record_stream`.
 */
hw_status hw_allocate(const hw_allocator *allocator,
                      uint64_t bytes,
                      hw_stream stream,
                      hw_device_ptr *ptr);

/**
 * Takes a block back. Work that was queued before in its own stream and in recorded streams may still use it. Zero is taken back as
 * often as one likes.
 */
hw_status hw_give_back(const hw_allocator *allocator,
                       hw_device_ptr ptr);

/**
 * Announces that work in `stream` uses the block too: after give-back it is not handed out again before the work that `stream` has
 * by then is finished. The block's own stream needs no announcement.
 */
hw_status hw_record_stream(const hw_allocator *allocator,
                           hw_device_ptr ptr,
                           hw_stream stream);

/**
 * As `hw_allocate`, with an address that is a multiple of `alignment_bytes`: a power of two up to 2 MiB.
 */
hw_status hw_allocate_aligned(const hw_allocator *allocator,
                              uint64_t bytes,
                              uint64_t alignment_bytes,
                              hw_stream stream,
                              hw_device_ptr *ptr);

/**
 * Takes a block back for a caller who cannot be told that it failed, such as a destructor: where the driver refuses, the allocator owes
 * it the block and tries again later. Bad addresses are errors all the same.
 */
hw_status hw_give_back_or_owe(const hw_allocator *allocator,
                              hw_device_ptr ptr);

/**
 * Takes leave of a stream whose owner is about to destroy it: its memory becomes available to all streams when its work has finished.
 * After this call no work is queued in it, and no call names it.
 */
hw_status hw_forget_stream(const hw_allocator *allocator,
                           hw_stream stream);

/**
 * The block that contains `ptr`, which need not be its first address. `HW_STATUS_INVALID_POINTER` where there is none.
 */
hw_status hw_block_at(const hw_allocator *allocator,
                      hw_device_ptr ptr,
                      hw_block_facts *facts);

/**
 * Returns to the driver everything that no caller holds and no stream uses. `released_bytes` may be null.
 */
hw_status hw_empty_cache(const hw_allocator *allocator, uint64_t *released_bytes);

/**
 * Returns memory to the driver until at most `keep_bytes` are reserved, where so much is free. `released_bytes` may be null.
 */
hw_status hw_trim(const hw_allocator *allocator,
                  uint64_t keep_bytes,
                  uint64_t *released_bytes);

/**
 * Looks after blocks that wait for streams, which requests do as well: for programs that give memory back and then do not ask for any
 * for long. `ended` (may be null) gets the number of waits that ended.
 */
hw_status hw_poll(const hw_allocator *allocator,
                  uint64_t *ended);

/**
 * Walks everything there is and compares it with what is counted, for those in doubt: `HW_STATUS_INTERNAL` with the differences
 * where it does not add up. Stops the allocator meanwhile.
 */
hw_status hw_reconcile(const hw_allocator *allocator);

/**
 * Sets the out-of-memory callback; null takes it out. It replaces an earlier one. With a caching policy it is asked
 * before streams are waited for, and belongs to all handles around the same memory; with others, after everything else, and to this
 * handle.
 */
hw_status hw_set_oom_callback(const hw_allocator *allocator,
                              hw_oom_callback callback,
                              void *user);

/**
 * Sets the log callback of this handle; null takes it out. It replaces an earlier one.
 */
hw_status hw_set_log_callback(const hw_allocator *allocator, hw_log_callback callback, void *user);

/**
 * Releases the physical memory behind `count` live blocks, whose addresses stay theirs. Until `hw_wake` nothing touches them, a launch
 * of a captured graph included, and they can neither be given back nor recorded on streams. Every other stream that used them has
 * finished, or was ordered before `stream`, which is waited for. `released_bytes` may be null. Paged policy only.
 */
hw_status hw_sleep_blocks(const hw_allocator *allocator,
                          const hw_device_ptr *ptrs,
                          size_t count,
                          uint32_t contents,
                          hw_stream stream,
                          hw_sleep **group,
                          uint64_t *released_bytes);

/**
 * Brings the memory of a group back at its addresses, with its contents where they were saved, and ends the handle. Where there is no
 * room the group still sleeps, and can be woken later.
 */
hw_status hw_wake(hw_sleep *group,
                  hw_stream stream);

/**
 * Makes a pool that starts with `initial_bytes` and never has more than `max_bytes` (`UINT64_MAX`: no limit). `plain_memory` is 1 to take
 * plain memory even where the device has virtual memory.
 */
hw_status hw_graph_pool_create(const hw_device *device,
                               uint64_t initial_bytes,
                               uint64_t max_bytes,
                               uint32_t plain_memory,
                               hw_graph_pool **pool);

/**
 * Frees everything, after all work on the device has finished, and ends the handle.
 */
hw_status hw_graph_pool_destroy(hw_graph_pool *pool);

/**
 * A block of at least `bytes`, with an address that is a multiple of `alignment_bytes` (a power of two up to 2 MiB; 0 is 256).
 */
hw_status hw_graph_pool_allocate(const hw_graph_pool *pool,
                                 uint64_t bytes,
                                 uint64_t alignment_bytes,
                                 hw_graph_block *block);

/**
 * The block called `id`, in use or available: the address is the one it always had.
 */
hw_status hw_graph_pool_block(const hw_graph_pool *pool, uint64_t id, hw_graph_block *block);

/**
 * The block around an address. `HW_STATUS_INVALID_POINTER` where there is none.
 */
hw_status hw_graph_pool_block_at(const hw_graph_pool *pool, hw_device_ptr ptr, hw_graph_block *block);

/**
 * Returns a block: it stays where it is, and can be handed out again. Nothing that still runs uses it, or whatever uses it next comes
 * after.
 */
hw_status hw_graph_pool_return(const hw_graph_pool *pool,
                               uint64_t id);

/**
 * Makes all blocks available, as between two iterations. `were_in_use` may be null.
 */
hw_status hw_graph_pool_reset(const hw_graph_pool *pool, uint64_t *were_in_use);

/**
 * The figures at this moment.
 */
hw_status hw_graph_pool_get_stats(const hw_graph_pool *pool, hw_graph_pool_stats *stats);

/**
 * Makes a pool of its own. The allocator was made with `graph_pools`.
 */
hw_status hw_pool_create(const hw_allocator *allocator, hw_pool **pool);

/**
 * Ends a pool handle. Graphs of the pool keep its memory.
 */
hw_status hw_pool_destroy(hw_pool *pool);

/**
 * The pool's number in snapshots and statistics.
 */
hw_status hw_pool_id(const hw_pool *pool, uint64_t *id);

/**
 * Routes requests of streams that `filter` accepts to the pool (null accepts all), until `hw_pool_end_allocate`: for captures that somebody
 * else begins and ends. The newest route that accepts a stream wins. The pool is in use from now on, until `hw_pool_release`.
 */
hw_status hw_pool_begin_allocate(const hw_pool *pool,
                                 hw_stream_filter filter,
                                 void *user);

/**
 * Ends what `hw_pool_begin_allocate` began. The captures that used it have ended.
 */
hw_status hw_pool_end_allocate(const hw_pool *pool);

/**
 * Ends one use that `hw_pool_begin_allocate` began: its graph is destroyed. With the last use the memory goes back, after all work on the
 * device has finished.
 */
hw_status hw_pool_release(const hw_pool *pool);

/**
 * Every private pool of an allocator at this moment, with its blocks, as a JSON array. Give the text back with `hw_string_free`.
 */
hw_status hw_pools_json(const hw_allocator *allocator,
                        char **text);

/**
 * Remembers the blocks that the pool has now.
 */
hw_status hw_pool_checkpoint_take(const hw_pool *pool, hw_pool_checkpoint **checkpoint);

/**
 * Ends a checkpoint's handle.
 */
hw_status hw_pool_checkpoint_destroy(hw_pool_checkpoint *checkpoint);

/**
 * Puts a pool back into the state of a checkpoint. Blocks that are held now and were not then are `freed`: their holders neither use them
 * nor give them back any more. Blocks that were held then and are not now are `allocated`: they are to be given back. Each list is given
 * back with `hw_ptrs_free`.
 */
hw_status hw_pool_restore(const hw_pool *pool,
                          const hw_pool_checkpoint *checkpoint,
                          hw_device_ptr **freed,
                          size_t *freed_count,
                          hw_device_ptr **allocated,
                          size_t *allocated_count);

/**
 * Gives back a list of addresses, with the count that Headwater gave with it. Null is no error.
 */
void hw_ptrs_free(hw_device_ptr *ptrs, size_t count);

/**
 * Starts capturing `stream`: what it, and streams that join its capture, ask for comes from `pool`, or from a fresh one where that is null.
 * `used_pool` (may be null) gets a new handle for the pool.
 */
hw_status hw_capture_begin(const hw_allocator *allocator,
                           hw_stream stream,
                           uint32_t mode,
                           const hw_pool *pool,
                           hw_pool **used_pool);

/**
 * Ends the capture begun on `stream` and returns its graph, which keeps the pool's memory.
 */
hw_status hw_capture_end(const hw_allocator *allocator, hw_stream stream, hw_graph **graph);

/**
 * Ends the capture begun on `stream`, whatever its state, and throws away its graph.
 */
hw_status hw_capture_abandon(const hw_allocator *allocator, hw_stream stream);

/**
 * Makes what comes in `after` wait for what is in `before`, on the device or in their capture, and remembers it: memory that `before` freed
 * in this capture can then serve `after`.
 */
hw_status hw_order_streams(const hw_allocator *allocator,
                           hw_stream before,
                           hw_stream after);

/**
 * Makes a graph runnable on the device it was captured on.
 */
hw_status hw_graph_instantiate(const hw_graph *graph, hw_graph_exec **exec);

/**
 * Launches a graph in `stream`. Memory outside of its pool that it touches is still good; no other graph of the pool, and nothing else that
 * uses the pool's memory, runs at the same time.
 */
hw_status hw_graph_launch(const hw_graph_exec *exec,
                          hw_stream stream);

/**
 * The driver's own value for a graph (`CUgraph`), for other libraries. It goes with the handle.
 */
hw_status hw_graph_raw(const hw_graph *graph, uint64_t *raw);

/**
 * The driver's own value for an executable graph (`CUgraphExec`). It goes with the handle. Whoever launches it by this value sees to it that
 * it has finished before the handle is destroyed.
 */
hw_status hw_graph_exec_raw(const hw_graph_exec *exec,
                            uint64_t *raw);

/**
 * Destroys a graph; what was instantiated from it lives on.
 */
hw_status hw_graph_destroy(hw_graph *graph);

/**
 * Destroys an executable graph; launches that are running still finish before its memory goes.
 */
hw_status hw_graph_exec_destroy(hw_graph_exec *exec);

/**
 * What the allocator counts, as it stands.
 */
hw_status hw_get_stats(const hw_allocator *allocator, hw_stats *stats);

/**
 * Everything that is counted, as one JSON object: `stats` by the flat names of `torch.cuda.memory_stats()`, `policy`, `settings`,
 * `limit_bytes`, `device` with its memory, `driver_calls` by name, `fragmentation` and (where there are any) `pools`. Give the text
 * back with `hw_string_free`.
 */
hw_status hw_stats_json(const hw_allocator *allocator,
                        char **text);

/**
 * A table for people. Give the text back with `hw_string_free`.
 */
hw_status hw_stats_summary(const hw_allocator *allocator, char **text);

/**
 * Lets every peak start again from now.
 */
hw_status hw_reset_peaks(const hw_allocator *allocator);

/**
 * Lets every total start again from zero.
 */
hw_status hw_reset_totals(const hw_allocator *allocator);

/**
 * Segments, blocks and (with the setting `history_events`) the latest events, as one JSON object with the keys of
 * `torch.cuda.memory._snapshot()`; private pools come as segments with their pool's id. Give the text back with `hw_string_free`.
 * Caching policies only.
 */
hw_status hw_snapshot_json(const hw_allocator *allocator,
                           char **text);

/**
 * The same as the pickle that `torch.cuda.memory._dump_snapshot` writes, for PyTorch's viewer and `headwater replay`. Give the bytes
 * back with `hw_bytes_free`.
 */
hw_status hw_snapshot_pickle(const hw_allocator *allocator,
                             uint8_t **bytes,
                             size_t *count);

/**
 * Records all that this handle is asked for from now on into the file `path`, which is made or emptied. `name` (may be null) is what
 * the trace is called. Blocks that are held already are not in it. Every call then costs some 100 ns more.
 */
hw_status hw_recording_start(const hw_allocator *allocator,
                             const char *path,
                             const char *name);

/**
 * Ends the recording and closes its file. `events` (may be null) gets the number of events in it.
 */
hw_status hw_recording_stop(const hw_allocator *allocator, uint64_t *events);

/**
 * Marks this moment in the recording.
 */
hw_status hw_recording_mark(const hw_allocator *allocator, const char *mark);

/**
 * Labels what the calling thread does until `hw_label_pop`: recordings and histories show it. Labels nest, the innermost counts.
 */
hw_status hw_label_push(const char *label);

/**
 * Ends the calling thread's innermost label.
 */
hw_status hw_label_pop(void);

/**
 * Sets up tiers.
 */
hw_status hw_tiers_create(const hw_tiers_options *options, hw_tiers **tiers);

/**
 * Shuts tiers down: waits end with `HW_STATUS_CANCELLED`, movers finish what they do. Reservations and buffers stay good until they are
 * released.
 */
hw_status hw_tiers_destroy(hw_tiers *tiers);

/**
 * Moves data out of a tier's space until `needed_bytes` are freed or nothing more can go. `freed_bytes` may be null. Needs `spill`.
 */
hw_status hw_tiers_make_room(const hw_tiers *tiers,
                             uint32_t tier,
                             uint32_t place,
                             uint64_t needed_bytes,
                             uint64_t *freed_bytes);

/**
 * All spaces and what the spill engine has counted, as one JSON object. Give the text back with `hw_string_free`.
 */
hw_status hw_tiers_json(const hw_tiers *tiers,
                        char **text);

/**
 * Reserves exactly `bytes` in a space of the tiers in `wanted_tiers` (values of `hw_tier`, the most wanted first), and waits for all of them
 * at once, `timeout_ms` at most. Host space is reserved in whole blocks.
 */
hw_status hw_reserve(const hw_tiers *tiers,
                     const uint32_t *wanted_tiers,
                     size_t wanted_count,
                     uint64_t bytes,
                     uint32_t timeout_ms,
                     hw_reservation **reservation);

/**
 * The same without waiting: where there is no room now, the answer is `HW_STATUS_OK` and a null reservation.
 */
hw_status hw_reserve_or_null(const hw_tiers *tiers,
                             const uint32_t *wanted_tiers,
                             size_t wanted_count,
                             uint64_t bytes,
                             hw_reservation **reservation);

/**
 * Reserves `bytes` in one space now, or as much as there is, perhaps nothing.
 */
hw_status hw_reserve_upto(const hw_tiers *tiers,
                          uint32_t tier,
                          uint32_t place,
                          uint64_t bytes,
                          hw_reservation **reservation);

/**
 * A reservation at this moment.
 */
hw_status hw_reservation_get_facts(const hw_reservation *reservation, hw_reservation_facts *facts);

/**
 * Promises `bytes` more, and waits for them `timeout_ms` at most; 0 does not wait.
 */
hw_status hw_reservation_grow(const hw_reservation *reservation, uint64_t bytes, uint32_t timeout_ms);

/**
 * Gives back `bytes` of what is not in use.
 */
hw_status hw_reservation_shrink(const hw_reservation *reservation, uint64_t bytes);

/**
 * Gives back all that is not in use. `given_back_bytes` may be null.
 */
hw_status hw_reservation_shrink_to_fit(const hw_reservation *reservation, uint64_t *given_back_bytes);

/**
 * Gives a reservation back and ends its handle. What is in use goes back when its block does.
 */
hw_status hw_reservation_release(hw_reservation *reservation);

/**
 * Allocates device memory within a reservation of a GPU space. `alignment_bytes` is 0 for 256. A request beyond the reservation is refused with
 * `HW_STATUS_NO_ROOM`.
 */
hw_status hw_reservation_allocate(const hw_reservation *reservation,
                                  uint64_t bytes,
                                  uint64_t alignment_bytes,
                                  hw_stream stream,
                                  hw_reserved_block **block,
                                  hw_device_ptr *ptr);

/**
 * Announces that work in `stream` uses a reserved block too.
 */
hw_status hw_reserved_block_record_stream(const hw_reserved_block *block, hw_stream stream);

/**
 * Gives a reserved block back, to the allocator and to its reservation, and ends its handle.
 */
hw_status hw_reserved_block_free(hw_reserved_block *block);

/**
 * The gauge of a space.
 */
hw_status hw_tiers_space_use(const hw_tiers *tiers, uint32_t tier, uint32_t place, hw_space_use *usage);

/**
 * Makes a buffer of `bytes` in `tier` (an `hw_tier`), with the bytes at `data`, or with zeros where that is null; zeros are made on the GPU
 * and moved down from there. Waits for room `timeout_ms` at most.
 */
hw_status hw_spill_buffer_create(const hw_tiers *tiers,
                                 uint32_t tier,
                                 const void *data,
                                 uint64_t bytes,
                                 uint32_t timeout_ms,
                                 hw_spill_buffer **buffer);

/**
 * Ends a buffer's handle. The data goes with it, once accesses have ended.
 */
hw_status hw_spill_buffer_destroy(hw_spill_buffer *buffer);

/**
 * Where the data is now (an `hw_tier`), and how many bytes there are. Each may be null.
 */
hw_status hw_spill_buffer_where(const hw_spill_buffer *buffer, uint32_t *tier, uint64_t *bytes);

/**
 * Who stays longer when room is needed: higher.
 */
hw_status hw_spill_buffer_set_priority(const hw_spill_buffer *buffer, int32_t priority);

/**
 * Pins the data on the device for work in `stream`, and moves it there first if need be, `timeout_ms` at most. `writes` is 1 for work that
 * writes: nobody else has access meanwhile. `ptr` is good until `hw_spill_access_end`; work that was queued in `stream` before that is
 * what later moves wait for.
 */
hw_status hw_spill_buffer_access(const hw_spill_buffer *buffer,
                                 hw_stream stream,
                                 uint32_t writes,
                                 uint32_t timeout_ms,
                                 hw_spill_access **access,
                                 hw_device_ptr *ptr);

/**
 * Ends an access: the data may move again once the work queued so far has finished.
 */
hw_status hw_spill_access_end(hw_spill_access *access);

/**
 * Copies `bytes` from `offset` on to host memory; the data moves to the HOST tier first if need be.
 */
hw_status hw_spill_buffer_read(const hw_spill_buffer *buffer,
                               uint64_t offset,
                               void *dst,
                               uint64_t bytes,
                               uint32_t timeout_ms);

/**
 * Copies `bytes` from host memory to `offset`; the data moves to the HOST tier first if need be.
 */
hw_status hw_spill_buffer_write(const hw_spill_buffer *buffer,
                                uint64_t offset,
                                const void *src,
                                uint64_t bytes,
                                uint32_t timeout_ms);

/**
 * Moves the data up to the device without using it yet.
 */
hw_status hw_spill_buffer_prefetch(const hw_spill_buffer *buffer, uint32_t timeout_ms);

/**
 * Moves the data down to `tier`; nothing happens where it is there or below.
 */
hw_status hw_spill_buffer_spill_to(const hw_spill_buffer *buffer, uint32_t tier, uint32_t timeout_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HEADWATER_H */

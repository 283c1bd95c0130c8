/*
 * The parts of the interface that the examples do not show, from C: callbacks, captures, filters, checkpoints, tiers, and mistakes.
 * Compiled and run by tests/programs.rs, against the shared and the static library. Every failed expectation ends the program.
 */

#include <headwater.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                                                                                                 \
    do {                                                                                                                             \
        if (!(what)) {                                                                                                               \
            fprintf(stderr, "line %d: %s (latest message: %s)\n", __LINE__, #what, hw_last_error_message());                         \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)
#define OK(call) EXPECT((call) == HW_STATUS_OK)

struct spare {
    hw_allocator *allocator;
    hw_device_ptr ptr;
    int calls;
};

static uint32_t free_the_spare(void *user, const hw_oom_report *report) {
    struct spare *spare = user;
    spare->calls += 1;
    EXPECT(report->struct_bytes == sizeof *report);
    if (spare->ptr == 0) {
        return 0;
    }
    OK(hw_give_back(spare->allocator, spare->ptr));
    spare->ptr = 0;
    return 1;
}

static void callbacks(hw_device *device) {
    const hw_allocator_options options = {.struct_bytes = sizeof options, .limit_bytes = 32 << 20};
    hw_allocator *allocator = NULL;
    OK(hw_allocator_create(device, &options, &allocator));
    struct spare spare = {.allocator = allocator};
    OK(hw_allocate(allocator, 20 << 20, 0, &spare.ptr));
    OK(hw_set_oom_callback(allocator, free_the_spare, &spare));
    hw_device_ptr ptr = 0;
    OK(hw_allocate(allocator, 20 << 20, 0, &ptr));
    EXPECT(spare.calls == 1 && spare.ptr == 0);
    OK(hw_give_back(allocator, ptr));
    OK(hw_allocator_destroy(allocator, 0));
}

static uint32_t is_this_stream(void *user, hw_stream stream) { return stream == *(hw_stream *)user; }

static void graphs(hw_device *device) {
    const hw_allocator_options options = {.struct_bytes = sizeof options, .graph_pools = 1, .policy = HW_POLICY_PAGED};
    hw_allocator *allocator = NULL;
    OK(hw_allocator_create(device, &options, &allocator));
    hw_stream stream = 0;
    OK(hw_stream_create(device, 1, 0, &stream));
    hw_device_ptr result = 0, scratch = 0;
    OK(hw_allocate(allocator, 4096, stream, &result));

    hw_pool *pool = NULL;
    hw_graph *graph = NULL;
    hw_graph_exec *exec = NULL;
    OK(hw_capture_begin(allocator, stream, HW_CAPTURE_MODE_GLOBAL, NULL, &pool));
    OK(hw_allocate(allocator, 4096, stream, &scratch));
    OK(hw_fill(device, scratch, 7, 4096, stream));
    OK(hw_copy_on_device(device, result, scratch, 4096, stream));
    OK(hw_give_back(allocator, scratch));
    OK(hw_capture_end(allocator, stream, &graph));
    OK(hw_graph_instantiate(graph, &exec));
    OK(hw_graph_launch(exec, stream));
    unsigned char back[4096] = {0};
    OK(hw_copy_to_host(device, back, result, sizeof back, stream));
    OK(hw_stream_synchronize(device, stream));
    EXPECT(back[0] == 7 && back[4095] == 7);
    OK(hw_graph_exec_destroy(exec));
    OK(hw_graph_destroy(graph));
    OK(hw_pool_destroy(pool));

    hw_pool_checkpoint *checkpoint = NULL;
    OK(hw_pool_create(allocator, &pool));
    OK(hw_pool_begin_allocate(pool, is_this_stream, &stream));
    OK(hw_allocate(allocator, 4096, stream, &scratch));
    OK(hw_pool_checkpoint_take(pool, &checkpoint));
    OK(hw_give_back(allocator, scratch));
    OK(hw_pool_end_allocate(pool));
    hw_device_ptr *freed = NULL, *held = NULL;
    size_t freed_count = 9, held_count = 9;
    OK(hw_stream_synchronize(device, stream));
    OK(hw_pool_restore(pool, checkpoint, &freed, &freed_count, &held, &held_count));
    EXPECT(freed_count == 0 && held_count == 1 && held[0] == scratch);
    hw_ptrs_free(freed, freed_count);
    hw_ptrs_free(held, held_count);
    OK(hw_give_back(allocator, scratch));
    OK(hw_pool_checkpoint_destroy(checkpoint));
    OK(hw_pool_release(pool));
    OK(hw_pool_destroy(pool));

    OK(hw_give_back(allocator, result));
    OK(hw_forget_stream(allocator, stream));
    OK(hw_stream_destroy(device, stream));
    OK(hw_allocator_destroy(allocator, 0));
}

static void tiers(hw_device *device) {
    hw_allocator *allocator = NULL;
    OK(hw_allocator_create(device, NULL, &allocator));
    hw_tiers_options options = {.struct_bytes = sizeof options,
                                .allocator = allocator,
                                .gpu_bytes = 4 << 20,
                                .host_bytes = 64 << 20,
                                .host_blocks_per_slab = 8,
                                .spill = 1};
    hw_tiers *machine = NULL;
    OK(hw_tiers_create(&options, &machine));

    enum { BUFFERS = 8, BYTES = 1 << 20 };
    hw_spill_buffer *buffers[BUFFERS];
    unsigned char *data = malloc(BYTES);
    EXPECT(data != NULL);
    for (int i = 0; i < BUFFERS; ++i) {
        memset(data, i, BYTES);
        OK(hw_spill_buffer_create(machine, HW_TIER_GPU, data, BYTES, 10000, &buffers[i]));
    }
    for (int i = 0; i < BUFFERS; ++i) {
        hw_spill_access *access = NULL;
        hw_device_ptr ptr = 0;
        OK(hw_spill_buffer_access(buffers[i], 0, 0, 10000, &access, &ptr));
        OK(hw_copy_to_host(device, data, ptr, BYTES, 0));
        OK(hw_stream_synchronize(device, 0));
        EXPECT(data[0] == i && data[BYTES - 1] == i);
        OK(hw_spill_access_end(access));
        OK(hw_spill_buffer_destroy(buffers[i]));
    }
    free(data);

    const uint32_t wanted[] = {HW_TIER_GPU};
    hw_reservation *reservation = NULL;
    hw_reserved_block *block = NULL;
    hw_device_ptr ptr = 0;
    OK(hw_reserve(machine, wanted, 1, 1 << 20, 10000, &reservation));
    OK(hw_reservation_allocate(reservation, 1 << 20, 0, 0, &block, &ptr));
    EXPECT(hw_reservation_grow(reservation, 64 << 20, 0) == HW_STATUS_NO_ROOM);
    OK(hw_reserved_block_free(block));
    OK(hw_reservation_release(reservation));
    OK(hw_tiers_destroy(machine));
    OK(hw_allocator_destroy(allocator, 0));
}

static void mistakes(hw_device *device) {
    hw_allocator *allocator = NULL;
    OK(hw_allocator_create(device, NULL, &allocator));
    hw_device_ptr ptr = 0;
    EXPECT(hw_allocate(NULL, 1, 0, &ptr) == HW_STATUS_INVALID_ARGUMENT);
    EXPECT(hw_allocate((hw_allocator *)device, 1, 0, &ptr) == HW_STATUS_INVALID_HANDLE);
    EXPECT(hw_allocate((hw_allocator *)&ptr, 1, 0, &ptr) == HW_STATUS_INVALID_HANDLE);
    EXPECT(hw_allocate(allocator, 1, 0, NULL) == HW_STATUS_INVALID_ARGUMENT);
    EXPECT(hw_give_back(allocator, 0x77) == HW_STATUS_INVALID_POINTER);
    OK(hw_allocate(allocator, 1, 0, &ptr));
    EXPECT(hw_allocator_destroy(allocator, 0) == HW_STATUS_STILL_IN_USE);
    EXPECT(strstr(hw_last_error_message(), "1 block") != NULL);
    OK(hw_give_back(allocator, ptr));
    EXPECT(hw_give_back(allocator, ptr) == HW_STATUS_INVALID_POINTER);
    OK(hw_allocator_destroy(allocator, 0));
    EXPECT(hw_allocate(allocator, 1, 0, &ptr) == HW_STATUS_INVALID_HANDLE);
    EXPECT(hw_allocator_destroy(allocator, 0) == HW_STATUS_INVALID_HANDLE);
}

static void *work(void *shared) {
    for (int round = 0; round < 1000; ++round) {
        hw_device_ptr ptr = 0;
        OK(hw_allocate(shared, 512u << (round % 10), 0, &ptr));
        OK(hw_give_back(shared, ptr));
    }
    /* This thread's latest failure is its own. */
    EXPECT(hw_last_status() == HW_STATUS_OK && hw_last_error_message()[0] == '\0');
    return NULL;
}

static void threads(hw_device *device) {
    const hw_allocator_options options = {.struct_bytes = sizeof options, .policy = HW_POLICY_BINNED};
    hw_allocator *allocator = NULL;
    OK(hw_allocator_create(device, &options, &allocator));
    pthread_t others[4];
    for (int i = 0; i < 4; ++i) {
        EXPECT(pthread_create(&others[i], NULL, work, allocator) == 0);
    }
    for (int i = 0; i < 4; ++i) {
        EXPECT(pthread_join(others[i], NULL) == 0);
    }
    hw_stats stats = {.struct_bytes = sizeof stats};
    OK(hw_get_stats(allocator, &stats));
    EXPECT(stats.allocation.all.allocated == 4000 && stats.allocation.all.current == 0);
    OK(hw_reconcile(allocator));
    OK(hw_allocator_destroy(allocator, 0));
}

int main(void) {
    hw_device *device = NULL;
    OK(hw_device_open("sim", &device));
    callbacks(device);
    graphs(device);
    tiers(device);
    mistakes(device);
    threads(device);
    uint64_t hazards = 1;
    OK(hw_sim_hazards(device, &hazards, NULL));
    EXPECT(hazards == 0);
    OK(hw_device_close(device));
    puts("all expectations met");
    return 0;
}

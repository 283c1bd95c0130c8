/*
 * Memory from a stream, used in a second one, and given back: the whole of Headwater's C interface that most programs need.
 *
 *     cc two_streams.c $(pkg-config --cflags --libs headwater) -o two_streams && ./two_streams [auto|sim|cuda:N]
 *
 * Works on the GPU where there is one, and on the simulated device otherwise, which also checks that nothing is used too early.
 */

#include <headwater.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1 << 16, ROUNDS = 100 };

/* Ends the program with the library's message. */
static void check(hw_status status, const char *what) {
    if (status != HW_STATUS_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, hw_status_text(status), hw_last_error_message());
        exit(1);
    }
}

/* Out of memory is a code, a sentence and the numbers. */
static void ask_for_too_much(hw_allocator *allocator) {
    hw_device_ptr ptr = 0;
    const hw_status status = hw_allocate(allocator, UINT64_C(1) << 40, 0, &ptr);
    if (status != HW_STATUS_OUT_OF_MEMORY) {
        fprintf(stderr, "a terabyte was given out: %s\n", hw_status_text(status));
        exit(1);
    }
    hw_oom_report report = {.struct_bytes = sizeof report};
    check(hw_last_oom(&report), "hw_last_oom");
    printf("refused, as it should be: %s\n", hw_last_error_message());
    printf("  asked for %" PRIu64 ", live %" PRIu64 ", cached %" PRIu64 "\n", report.requested_bytes, report.live_bytes,
           report.cached_bytes);
}

int main(int argc, char **argv) {
    hw_device *device = NULL;
    check(hw_device_open(argc > 1 ? argv[1] : "auto", &device), "hw_device_open");
    char *name = NULL, *why = NULL;
    check(hw_device_name(device, &name), "hw_device_name");
    check(hw_device_why(device, &why), "hw_device_why");
    printf("headwater %s on %s (%s)\n", hw_version(), name, why);
    hw_string_free(name);
    hw_string_free(why);

    hw_allocator_options options = {.struct_bytes = sizeof options, .settings = "memory_limit:1G"};
    hw_allocator *allocator = NULL;
    check(hw_allocator_create(device, &options, &allocator), "hw_allocator_create");

    hw_stream producer = 0, consumer = 0;
    hw_event ready = 0;
    check(hw_stream_create(device, 1, 0, &producer), "hw_stream_create");
    check(hw_stream_create(device, 1, 0, &consumer), "hw_stream_create");
    check(hw_event_create(device, 0, &ready), "hw_event_create");

    uint32_t *numbers = malloc(COUNT * sizeof *numbers);
    uint32_t *result = calloc(COUNT, sizeof *result);
    if (numbers == NULL || result == NULL) {
        return 1;
    }
    const uint64_t bytes = COUNT * sizeof *numbers;
    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < COUNT; ++i) {
            numbers[i] = (uint32_t)(round * COUNT + i);
        }
        /* The block belongs to `producer`, which may use it at once. */
        hw_device_ptr block = 0, copy = 0;
        check(hw_allocate(allocator, bytes, producer, &block), "hw_allocate");
        check(hw_copy_to_device(device, block, numbers, bytes, producer), "hw_copy_to_device");
        /* `consumer` waits for it on the device, and says that it uses the block too. */
        check(hw_event_record(device, ready, producer), "hw_event_record");
        check(hw_stream_wait_event(device, consumer, ready), "hw_stream_wait_event");
        check(hw_record_stream(allocator, block, consumer), "hw_record_stream");
        check(hw_allocate(allocator, bytes, consumer, &copy), "hw_allocate");
        check(hw_copy_on_device(device, copy, block, bytes, consumer), "hw_copy_on_device");
        /* Given back while `consumer` still reads it: it is not handed out again before that has finished. */
        check(hw_give_back(allocator, block), "hw_give_back");
        check(hw_copy_to_host(device, result, copy, bytes, consumer), "hw_copy_to_host");
        check(hw_give_back(allocator, copy), "hw_give_back");
        check(hw_stream_synchronize(device, consumer), "hw_stream_synchronize");
        if (memcmp(numbers, result, bytes) != 0) {
            fprintf(stderr, "round %d came back changed\n", round);
            return 1;
        }
    }
    free(numbers);
    free(result);
    ask_for_too_much(allocator);

    hw_stats stats = {.struct_bytes = sizeof stats};
    check(hw_get_stats(allocator, &stats), "hw_get_stats");
    printf("%" PRIu64 " requests from the cache, %" PRIu64 " from the driver; %" PRIu64 " bytes reserved at most\n", stats.num_hits,
           stats.num_misses, stats.reserved_bytes.all.peak);

    /* The allocator is told before its streams are destroyed. */
    check(hw_forget_stream(allocator, producer), "hw_forget_stream");
    check(hw_forget_stream(allocator, consumer), "hw_forget_stream");
    check(hw_stream_destroy(device, producer), "hw_stream_destroy");
    check(hw_stream_destroy(device, consumer), "hw_stream_destroy");
    check(hw_event_destroy(device, ready), "hw_event_destroy");
    check(hw_allocator_destroy(allocator, 0), "hw_allocator_destroy");

    uint64_t hazards = 0;
    if (hw_sim_hazards(device, &hazards, NULL) == HW_STATUS_OK) {
        printf("the simulated device noticed %" PRIu64 " mistakes\n", hazards);
    }
    check(hw_device_close(device), "hw_device_close");
    return hazards == 0 ? 0 : 1;
}

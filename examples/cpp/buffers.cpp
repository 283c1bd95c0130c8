/*
 * Buffers that give themselves back, exceptions with the numbers, and a limit for one part of a program.
 *
 *     c++ buffers.cpp $(pkg-config --cflags --libs headwater) -o buffers && ./buffers [auto|sim|cuda:N]
 */

#include <headwater.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

namespace {

/// Doubles the numbers the long way round: to the device, from one buffer to another, and back.
std::vector<float> there_and_back(const headwater::device &device, const headwater::allocator &allocator,
                                  const std::vector<float> &numbers, hw_stream stream) {
    const std::uint64_t bytes = numbers.size() * sizeof(float);
    headwater::buffer here(allocator, bytes, stream);
    headwater::buffer there(allocator, bytes, stream);
    device.copy_to_device(here.ptr(), numbers.data(), bytes, stream);
    headwater::check(hw_copy_on_device(device.get(), there.ptr(), here.ptr(), bytes, stream));
    std::vector<float> back(numbers.size());
    device.copy_to_host(back.data(), there.ptr(), bytes, stream);
    device.synchronize(stream);
    return back;
}

int run(const char *choice) {
    headwater::device device(choice);
    std::printf("headwater %s on %s\n", hw_version(), device.name().c_str());

    headwater::allocator_options options;
    options.policy = HW_POLICY_PAGED;
    headwater::allocator allocator(device, options);
    headwater::stream stream(device);

    std::vector<float> numbers(1 << 18);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    for (int round = 0; round < 50; ++round) {
        if (there_and_back(device, allocator, numbers, stream) != numbers) {
            std::fprintf(stderr, "round %d came back changed\n", round);
            return 1;
        }
    }

    // One part of the program gets 8 MiB and no more.
    {
        headwater::allocator scratch = allocator.limited(8 << 20);
        std::vector<headwater::buffer> buffers;
        try {
            for (;;) {
                buffers.emplace_back(scratch, 1 << 20, stream);
            }
        } catch (const headwater::out_of_memory &error) {
            std::printf("%zu MiB, and then: %s\n", buffers.size(), error.what());
            if (buffers.size() != 8 || error.report().over_limit != 1) {
                return 1;
            }
        }
    }

    // A mistake is an exception, and changes nothing.
    try {
        allocator.give_back(0x1234);
        return 1;
    } catch (const headwater::error &error) {
        std::printf("a mistake: %s\n", error.what());
        if (error.status() != HW_STATUS_INVALID_POINTER) {
            return 1;
        }
    }

    const hw_stats stats = allocator.stats();
    std::printf("%s", allocator.summary().c_str());
    if (stats.allocation.all.current != 0 || stats.num_hits == 0) {
        return 1;
    }
    allocator.forget_stream(stream);
    std::uint64_t hazards = 0;
    return hw_sim_hazards(device.get(), &hazards, nullptr) == HW_STATUS_OK && hazards != 0 ? 1 : 0;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return run(argc > 1 ? argv[1] : "auto");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

/*
 * Headwater for C++: values that give back what they hold, and exceptions with the message. C++11, header only.
 *
 *     headwater::device device("auto");
 *     headwater::allocator allocator(device);
 *     headwater::buffer buffer(allocator, 1 << 20);      // given back when it goes out of scope
 *
 * What is not wrapped here is called through headwater.h with the handles that get() returns; check() throws for it.
 */

#ifndef HEADWATER_HPP
#define HEADWATER_HPP

#include "headwater.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace headwater {

/// A call failed. what() is the library's message.
class error : public std::runtime_error {
public:
    error(hw_status status, const std::string &message) : std::runtime_error(message), status_(status) {}

    hw_status status() const noexcept { return status_; }

private:
    hw_status status_;
};

/// Memory ran out. report() has the numbers.
class out_of_memory : public error {
public:
    out_of_memory(const std::string &message, const hw_oom_report &report)
        : error(HW_STATUS_OUT_OF_MEMORY, message), report_(report) {}

    const hw_oom_report &report() const noexcept { return report_; }

private:
    hw_oom_report report_;
};

/// Throws where `status` is a failure of the calling thread's latest call.
inline void check(hw_status status) {
    if (status == HW_STATUS_OK) {
        return;
    }
    const std::string message = hw_last_error_message();
    hw_oom_report report = {};
    report.struct_bytes = sizeof report;
    if (status == HW_STATUS_OUT_OF_MEMORY && hw_last_oom(&report) == HW_STATUS_OK) {
        throw out_of_memory(message, report);
    }
    throw error(status, message);
}

/// A text of the library's, copied and given back.
inline std::string take_text(char *text) {
    std::string copy = text;
    hw_string_free(text);
    return copy;
}

/// A device that is closed when it goes out of scope.
class device {
public:
    /// `auto`, `sim`, `cuda` or `cuda:N`.
    explicit device(const char *choice = "auto") { check(hw_device_open(choice, &handle_)); }
    ~device() { close(); }

    device(device &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    device &operator=(device &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    device(const device &) = delete;
    device &operator=(const device &) = delete;

    hw_device *get() const noexcept { return handle_; }

    std::string name() const {
        char *text = nullptr;
        check(hw_device_name(handle_, &text));
        return take_text(text);
    }

    hw_device_info info() const {
        hw_device_info info = {};
        info.struct_bytes = sizeof info;
        check(hw_device_get_info(handle_, &info));
        return info;
    }

    void synchronize(hw_stream stream = 0) const { check(hw_stream_synchronize(handle_, stream)); }

    void copy_to_device(hw_device_ptr dst, const void *src, std::size_t bytes, hw_stream stream = 0) const {
        check(hw_copy_to_device(handle_, dst, src, bytes, stream));
    }

    void copy_to_host(void *dst, hw_device_ptr src, std::size_t bytes, hw_stream stream = 0) const {
        check(hw_copy_to_host(handle_, dst, src, bytes, stream));
    }

private:
    void close() noexcept {
        if (handle_ != nullptr) {
            (void)hw_device_close(handle_);
        }
    }

    hw_device *handle_ = nullptr;
};

/// A stream of a device's, destroyed when it goes out of scope. Allocators that it was used with are told with forget_stream() first.
class stream {
public:
    explicit stream(const device &owner, bool non_blocking = true, int priority = 0) : device_(owner.get()) {
        check(hw_stream_create(device_, non_blocking ? 1 : 0, priority, &value_));
    }
    ~stream() {
        if (value_ != 0) {
            (void)hw_stream_destroy(device_, value_);
        }
    }

    stream(stream &&other) noexcept : device_(other.device_), value_(other.value_) { other.value_ = 0; }
    stream &operator=(stream &&other) noexcept {
        std::swap(device_, other.device_);
        std::swap(value_, other.value_);
        return *this;
    }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    hw_stream get() const noexcept { return value_; }
    operator hw_stream() const noexcept { return value_; }

    void synchronize() const { check(hw_stream_synchronize(device_, value_)); }

private:
    hw_device *device_ = nullptr;
    hw_stream value_ = 0;
};

/// How an allocator is made: the C struct with its size filled in.
struct allocator_options : hw_allocator_options {
    allocator_options() : hw_allocator_options() { struct_bytes = sizeof(hw_allocator_options); }
};

/// An allocator, destroyed when it goes out of scope; blocks that were not given back go with it.
class allocator {
public:
    explicit allocator(const device &owner, const hw_allocator_options &options = allocator_options()) {
        check(hw_allocator_create(owner.get(), &options, &handle_));
    }
    ~allocator() {
        if (handle_ != nullptr) {
            (void)hw_allocator_destroy(handle_, 1);
        }
    }

    allocator(allocator &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    allocator &operator=(allocator &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    allocator(const allocator &) = delete;
    allocator &operator=(const allocator &) = delete;

    /// Around the same memory, for callers who together hold at most `limit_bytes`.
    allocator limited(std::uint64_t limit_bytes) const {
        allocator made;
        check(hw_allocator_create_limited(handle_, limit_bytes, &made.handle_));
        return made;
    }

    hw_allocator *get() const noexcept { return handle_; }

    hw_device_ptr allocate(std::uint64_t bytes, hw_stream stream = 0) const {
        hw_device_ptr ptr = 0;
        check(hw_allocate(handle_, bytes, stream, &ptr));
        return ptr;
    }

    void give_back(hw_device_ptr ptr) const { check(hw_give_back(handle_, ptr)); }
    void record_stream(hw_device_ptr ptr, hw_stream stream) const { check(hw_record_stream(handle_, ptr, stream)); }
    void forget_stream(hw_stream stream) const { check(hw_forget_stream(handle_, stream)); }

    std::uint64_t empty_cache() const {
        std::uint64_t released = 0;
        check(hw_empty_cache(handle_, &released));
        return released;
    }

    hw_stats stats() const {
        hw_stats stats = {};
        stats.struct_bytes = sizeof stats;
        check(hw_get_stats(handle_, &stats));
        return stats;
    }

    std::string summary() const {
        char *text = nullptr;
        check(hw_stats_summary(handle_, &text));
        return take_text(text);
    }

private:
    allocator() noexcept {}

    hw_allocator *handle_ = nullptr;
};

/// A piece of device memory with one owner. The allocator outlives it.
class buffer {
public:
    buffer() noexcept {}
    buffer(const allocator &from, std::uint64_t bytes, hw_stream stream = 0)
        : allocator_(from.get()), ptr_(from.allocate(bytes, stream)), bytes_(bytes) {}
    ~buffer() { give_back(); }

    buffer(buffer &&other) noexcept : allocator_(other.allocator_), ptr_(other.ptr_), bytes_(other.bytes_) {
        other.release();
    }
    buffer &operator=(buffer &&other) noexcept {
        std::swap(allocator_, other.allocator_);
        std::swap(ptr_, other.ptr_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;

    hw_device_ptr ptr() const noexcept { return ptr_; }
    std::uint64_t bytes() const noexcept { return bytes_; }

    /// Announces that work in `stream` uses it too.
    void record_stream(hw_stream stream) const { check(hw_record_stream(allocator_, ptr_, stream)); }

    /// Lets go of the block without giving it back: it is the caller's now.
    hw_device_ptr release() noexcept {
        const hw_device_ptr ptr = ptr_;
        ptr_ = 0;
        bytes_ = 0;
        return ptr;
    }

private:
    void give_back() noexcept {
        if (ptr_ != 0) {
            // A destructor cannot tell that the driver refused: the allocator then owes it the block.
            (void)hw_give_back_or_owe(allocator_, ptr_);
        }
    }

    hw_allocator *allocator_ = nullptr;
    hw_device_ptr ptr_ = 0;
    std::uint64_t bytes_ = 0;
};

} // namespace headwater

#endif // HEADWATER_HPP

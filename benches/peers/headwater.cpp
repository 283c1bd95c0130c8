// Headwater through its C interface, in a shared library that is loaded at run time.
// `--library PATH --policy paged|binned|classic|direct [--device cuda|sim]`.
//
// On the simulated device this measures what Headwater's own code costs, with no GPU at all.
#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "headwater.h"
#include "work/contestant.hpp"
#include "work/run.hpp"

namespace {

// The functions that are used, with the types that the header gives them.
struct Library {
  void* handle;
  decltype(&hw_device_open) device_open;
  decltype(&hw_allocator_create) allocator_create;
  decltype(&hw_stream_create) stream_create;
  decltype(&hw_stream_synchronize) stream_synchronize;
  decltype(&hw_allocate) allocate;
  decltype(&hw_give_back) give_back;
  decltype(&hw_record_stream) record_stream;
  decltype(&hw_empty_cache) empty_cache;
  decltype(&hw_last_error_message) last_error;

  explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    peers::check(handle != nullptr, handle == nullptr ? std::string(dlerror()) : path);
    find(device_open, "hw_device_open");
    find(allocator_create, "hw_allocator_create");
    find(stream_create, "hw_stream_create");
    find(stream_synchronize, "hw_stream_synchronize");
    find(allocate, "hw_allocate");
    find(give_back, "hw_give_back");
    find(record_stream, "hw_record_stream");
    find(empty_cache, "hw_empty_cache");
    find(last_error, "hw_last_error_message");
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    peers::check(function != nullptr, std::string("the library has no ") + name);
  }
};

uint32_t policy_number(const std::string& name) {
  if (name == "direct") return HW_POLICY_DIRECT;
  if (name == "binned") return HW_POLICY_BINNED;
  if (name == "classic") return HW_POLICY_CLASSIC;
  if (name == "paged") return HW_POLICY_PAGED;
  throw peers::Failed("unknown policy `" + name + "`");
}

class Headwater {
 public:
  using Stream = hw_stream;
  using Held = void*;
  static constexpr bool has_record_stream = true;
  static constexpr bool can_be_emptied = true;

  Headwater(const std::string& path, const std::string& policy, const std::string& device)
      : library_(path), name_("headwater_" + policy) {
    check(library_.device_open(device.c_str(), &device_), "hw_device_open");
    hw_allocator_options options = {};
    options.struct_bytes = sizeof options;
    options.policy = policy_number(policy);
    check(library_.allocator_create(device_, &options, &allocator_), "hw_allocator_create");
  }

  const char* name() const { return name_.c_str(); }

  void enter_thread() {}

  Stream make_stream() {
    Stream stream = 0;
    check(library_.stream_create(device_, 1, 0, &stream), "hw_stream_create");
    return stream;  // for as long as the program runs
  }

  void* allocate(size_t bytes, Stream stream) {
    hw_device_ptr ptr = 0;
    check(library_.allocate(allocator_, bytes, stream, &ptr), "hw_allocate");
    return reinterpret_cast<void*>(static_cast<uintptr_t>(ptr));
  }

  void deallocate(void* block, size_t, Stream) { check(library_.give_back(allocator_, ptr_of(block)), "hw_give_back"); }

  Held hold(size_t bytes, Stream stream) { return allocate(bytes, stream); }

  void announce(Held& held, Stream user) {
    check(library_.record_stream(allocator_, ptr_of(held), user), "hw_record_stream");
  }

  void release(Held& held, size_t bytes, Stream stream) { deallocate(held, bytes, stream); }

  void finish(Stream stream) { check(library_.stream_synchronize(device_, stream), "hw_stream_synchronize"); }

  void empty() { check(library_.empty_cache(allocator_, nullptr), "hw_empty_cache"); }

 private:
  static hw_device_ptr ptr_of(void* block) { return static_cast<hw_device_ptr>(reinterpret_cast<uintptr_t>(block)); }

  void check(hw_status status, const char* call) const {
    if (status != HW_STATUS_OK) throw peers::Failed(std::string(call) + ": " + library_.last_error());
  }

  Library library_;
  std::string name_;
  hw_device* device_ = nullptr;
  hw_allocator* allocator_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return peers::main_of(argc, argv, [&] {
    return std::make_unique<Headwater>(peers::option(argc, argv, "--library", "libheadwater.so"),
                                       peers::option(argc, argv, "--policy", "paged"),
                                       peers::option(argc, argv, "--device", "cuda"));
  });
}

// Calls the plain hooks as PyTorch does: C++ types by value, exceptions caught. Loaded into the interpreter by test_torch_hooks.py,
// because the extension's symbols need one.
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

using Stream = void*;
using Id = std::pair<unsigned long long, unsigned long long>;
using Alloc = void* (*)(size_t, int, Stream);
using Free = void (*)(void*, size_t, int, Stream);
using Begin = void (*)(int, Id, std::function<bool(Stream)>);
using End = void (*)(int, Id);

extern "C" const char* out_of_memory(void* alloc, size_t bytes) {
  static std::string message;
  try {
    reinterpret_cast<Alloc>(alloc)(bytes, 0, nullptr);
    return "nothing was thrown";
  } catch (const std::runtime_error& error) {
    message = error.what();
    return message.c_str();
  }
}

// How many times a filter was asked, and whether copies of it are alive.
extern "C" int pool_filter(void* alloc, void* free, void* begin, void* end, void* release) {
  auto asked = std::make_shared<int>(0);
  {
    // Larger than the two pointers that fit into the function itself, so that copies are made on the heap.
    char padding[64] = {1};
    std::function<bool(Stream)> filter = [asked, padding](Stream stream) {
      *asked += 1;
      return stream == nullptr && padding[0] == 1;
    };
    reinterpret_cast<Begin>(begin)(0, {7, 9}, filter);
  }
  if (asked.use_count() != 2) {
    return 1; // The hook has no copy, or too many.
  }
  void* inside = reinterpret_cast<Alloc>(alloc)(1 << 20, 0, nullptr);
  if (inside == nullptr || *asked == 0) {
    return 2;
  }
  try {
    // Twice is refused.
    reinterpret_cast<Begin>(begin)(0, {7, 9}, [](Stream) { return true; });
    return 3;
  } catch (const std::runtime_error&) {
  }
  reinterpret_cast<End>(end)(0, {7, 9});
  if (asked.use_count() != 1) {
    return 4; // The hook's copy is still there.
  }
  int before = *asked;
  void* outside = reinterpret_cast<Alloc>(alloc)(1 << 20, 0, nullptr);
  if (*asked != before) {
    return 5;
  }
  reinterpret_cast<Free>(free)(inside, 1 << 20, 0, nullptr);
  reinterpret_cast<Free>(free)(outside, 1 << 20, 0, nullptr);
  reinterpret_cast<End>(release)(0, {7, 9});
  return 0;
}

// What a filter throws comes out of the allocation.
extern "C" int throwing_filter(void* alloc, void* begin, void* end, void* release) {
  reinterpret_cast<Begin>(begin)(0, {0, 5}, [](Stream) -> bool { throw std::runtime_error("from the filter"); });
  int answer = 1;
  try {
    reinterpret_cast<Alloc>(alloc)(512, 0, nullptr);
  } catch (const std::runtime_error& error) {
    answer = std::strcmp(error.what(), "from the filter") == 0 ? 0 : 2;
  }
  reinterpret_cast<End>(end)(0, {0, 5});
  reinterpret_cast<End>(release)(0, {0, 5});
  return answer;
}

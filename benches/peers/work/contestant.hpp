// What the harness asks of an allocator. Each program defines one such type and hands it to `peers::run`.
//
//   struct Contestant {
//     using Stream = ...;                                   // a value
//     using Held = ...;                                     // a block that can be announced; often void*
//     static constexpr bool has_record_stream = ...;        // it can be told that another stream uses a block
//     static constexpr bool can_be_emptied = ...;           // it can give its cache back to the driver
//     const char* name() const;
//     Stream make_stream();
//     void enter_thread();                                  // what a new thread must do first
//     void* allocate(size_t bytes, Stream stream);
//     void deallocate(void* block, size_t bytes, Stream stream);
//     Held hold(size_t bytes, Stream stream);               // only where has_record_stream
//     void announce(Held& held, Stream user);
//     void release(Held& held, size_t bytes, Stream stream);
//     void finish(Stream stream);                           // waits until the stream has done its work
//     void empty();                                         // only where can_be_emptied
//   };
//
// Everything throws `peers::Failed`, or what its library throws, where it fails.
#pragma once

#include <stdexcept>
#include <string>

namespace peers {

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool worked, const std::string& what) {
  if (!worked) throw Failed(what);
}

}  // namespace peers

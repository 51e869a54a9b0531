// HDF5, wrapped once: handles that close themselves, and one checked call that turns the library's error
// stack into a sentence.
//
// Parallel HDF5 is not thread-safe, so every call of this process goes through one mutex: MOTLEY_HDF5 and
// Hdf5Handle take it themselves, everything else holds an Hdf5Lock. Whoever waits in a *collective* HDF5 call
// keeps the mutex meanwhile, so collective calls belong to one thread per process (design section 7).
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace motley::io {

// Recursive, so that a function that holds it may use MOTLEY_HDF5 and let handles go.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close_call) : id_(id), close_(close_call) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  void reset() noexcept;
  // Closes now and says whether that worked: closing is where the last bytes of a file are written.
  herr_t close();

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// Throws Error(code): "WHERE: HDF5 cannot open it: <the innermost message of HDF5's error stack>", in words for
// what CALL does, since the reason lies in the file or on the disk. Error(internal) is for whoever reads the
// source, and names the call: "WHERE: CALL failed: ...".
[[noreturn]] void fail_hdf5(const std::string& where, const char* call, ExitCode code);

// Opens an existing file for reading. Error(input) for a missing or unreadable file, a directory, anything
// that is not HDF5 (with what it looks like instead) and a file that HDF5 finds damaged. Takes no file lock:
// parallel file systems often refuse them, and readers need none.
Hdf5Handle open_hdf5(const std::string& path);

// "`images`, `labels` and the group `extra`": what lies directly below `group`.
std::string list_contents(hid_t group);

// The names of the links directly below `group`, in alphabetical order.
std::vector<std::string> link_names(hid_t group);

// HDF5's native memory type for integers and floats of 32 or 64 bits; Error(internal) for half types.
hid_t memory_type(DType dtype);

template <class Call>
auto checked_hdf5(const std::string& where, const char* text, ExitCode code, const Call& call) {
  const Hdf5Lock lock;
  const auto result = call();
  if (result < 0) fail_hdf5(where, text, code);
  return result;
}

}  // namespace motley::io

// MOTLEY_HDF5(where, code, H5Dread(...)) makes the call under the mutex and throws Error(code) when it fails.
// `where` is what a user knows the object by: the file, or the file and the data set.
#define MOTLEY_HDF5(where, code, ...) \
  ::motley::io::checked_hdf5((where), #__VA_ARGS__, (code), [&] { return __VA_ARGS__; })

// SPDX-License-Identifier: Apache-2.0
//
// A regular file open for reading at any offset, from any number of threads at once. The size is taken once,
// when the file is opened; a file that shrinks afterwards gives an error, never stale or missing bytes.
#pragma once

#include "input_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace moe {

class input_file {
 public:
  // `expected` completes the sentence "expected ...", for example "a safetensors file".
  // Throws input_error when the file cannot be opened or is not a regular file.
  input_file(std::string path, const std::string& expected) : path_{std::move(path)} {
    // O_NONBLOCK: opening a named pipe must fail below instead of waiting for a writer.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0)
      throw input_error{
          fmt::format("{}: cannot be read ({}); expected {}", shown(path_), system_message(), expected)};
    struct stat status {};
    const bool known = ::fstat(descriptor_, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      throw input_error{fmt::format("{}: not a regular file; expected {}", shown(path_), expected)};
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  input_file(const input_file&) = delete;
  input_file& operator=(const input_file&) = delete;
  ~input_file() { ::close(descriptor_); }

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; } // bytes

  // Fills `out` from the bytes at `offset`, straight into the caller's memory. Thread-safe.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw input_error{fmt::format("{}: reading failed ({})", shown(path_), system_message())};
      if (got == 0)
        throw input_error{
            fmt::format("{}: ends before byte {}; expected its {} bytes to stay while it is read",
                        shown(path_), offset + out.size(), size_)};
      offset += static_cast<std::uint64_t>(got);
      out = out.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

} // namespace moe

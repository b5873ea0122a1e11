// SPDX-License-Identifier: Apache-2.0
//
// A file that appears whole or not at all. Bytes go to a temporary file in the same folder; `commit` forces
// them to the disk and renames it over the target. A run that throws, or never commits, leaves the old file
// as it was.
#pragma once

#include "input_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace moe {

class atomic_file {
 public:
  // Throws input_error when the target is something other than a regular file (renaming over a device or a
  // pipe would replace it) or when its folder does not take a new file.
  explicit atomic_file(const std::string& path) {
    std::error_code ignored;
    std::filesystem::path target{path};
    if (std::filesystem::is_symlink(target, ignored)) {
      // Write through the link, as any program would, instead of replacing it.
      const auto pointed = std::filesystem::weakly_canonical(target, ignored);
      if (!pointed.empty()) target = pointed;
    }
    if (target.filename().empty() ||
        (std::filesystem::exists(target, ignored) && !std::filesystem::is_regular_file(target, ignored)))
      throw input_error{
          fmt::format("{}: not a regular file; expected the name of a file to write", shown(path))};
    path_ = target.string();
    folder_ = target.has_parent_path() ? target.parent_path().string() : std::string{"."};
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      temporary_ =
          fmt::format("{}/.{}.partial-{}-{}", folder_, target.filename().string(), ::getpid(), attempt);
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && !(errno == EEXIST && attempt < 100))
        throw input_error{
            fmt::format("{}: cannot be written ({}); expected a name in a folder that exists and can be "
                        "written to",
                        shown(path), system_message())};
    }
  }

  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  const std::string& path() const { return path_; }

  // Thread-safe for ranges that do not overlap. Throws output_error.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) fail("writing");
      offset += static_cast<std::uint64_t>(put);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }

  void write_at(std::uint64_t offset, std::string_view text) {
    write_at(offset, std::as_bytes(std::span{text.data(), text.size()}));
  }

  // Makes the file visible under its name. Throws output_error; then the target is as it was before.
  void commit() {
    if (::fsync(descriptor_) != 0) fail("flushing");
    const int closed = ::close(std::exchange(descriptor_, -1));
    if (closed != 0) fail("closing");
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming");
    committed_ = true;
    // The new name itself is on the disk only once the folder is. Some file systems refuse that call; the
    // file is complete either way, so its result is not an error.
    const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);
      ::close(folder);
    }
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    throw output_error{
        fmt::format("{}: {} failed ({}); nothing was saved", shown(path_), doing, system_message())};
  }

  std::string path_, folder_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

// Throws input_error if `path` could not be written now; leaves nothing behind. Called before a run, since a
// run that cannot save is lost.
inline void check_writable(const std::string& path) { atomic_file probe{path}; }

// Results go to regular files whole or not at all; to a pipe or a device, which has no old contents,
// directly.
inline bool is_special_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_character_file(path, ignored) || std::filesystem::is_fifo(path, ignored);
}

inline void check_result_file(const std::string& path) {
  if (!is_special_file(path)) check_writable(path);
}

// Throws input_error or output_error.
inline void write_result_file(const std::string& path, std::string_view text) {
  if (is_special_file(path)) {
    std::ofstream out{path};
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!out.flush()) throw output_error{fmt::format("{}: writing failed", shown(path))};
    return;
  }
  atomic_file file{path};
  file.write_at(0, text);
  file.commit();
}

} // namespace moe

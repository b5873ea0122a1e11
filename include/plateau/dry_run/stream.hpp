// SPDX-License-Identifier: Apache-2.0
//
// A stream of a dry run: a number and a name at its rank's recorder. Its end is a wait of the host, as it is
// on real machines.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/recorder.hpp>

#include <string>
#include <utility>

namespace plateau::inline v0::dry {

// Used by the host thread of its rank.
class stream {
 public:
  stream(recorder& r, const char* name) : recorder_(&r), number_(r.open_stream(name)) {}
  stream(stream&& other) noexcept
      : recorder_(std::exchange(other.recorder_, nullptr)), number_(other.number_) {}
  stream& operator=(stream&&) = delete;
  ~stream() {
    if (recorder_ != nullptr) recorder_->close_stream(number_);
  }

  const std::string& name() const { return recorder_->name_of(number_); }
  std::uint16_t number() const { return number_; }
  dry::recorder& recorded_by() const { return *recorder_; }

 private:
  dry::recorder* recorder_;
  std::uint16_t number_;
};

} // namespace plateau::inline v0::dry

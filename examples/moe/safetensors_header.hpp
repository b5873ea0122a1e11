// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: 8 bytes of length, then JSON that names each tensor's dtype, shape and
// place in the data that follows. It is read with a streaming parser that knows the only structure allowed,
// so a damaged or hostile header is refused at its first wrong token and never becomes a tree in memory. What
// passes is consistent: every tensor's bytes equal shape x dtype, and together they cover the data exactly,
// without overlap or hole.
#pragma once

#include "input_error.hpp"
#include "storage_type.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace moe {

using tensor_shape = std::vector<std::int64_t>;

struct stored_tensor {
  std::string name;
  storage_type type{};
  tensor_shape shape;
  std::int64_t elements = 0;
  std::uint64_t begin = 0, end = 0; // bytes within the data
};

struct safetensors_header {
  std::vector<stored_tensor> tensors; // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Larger headers exist only by damage: a model of a million tensors needs less.
inline constexpr std::uint64_t safetensors_header_limit_bytes = 100'000'000;

inline std::string shown(const tensor_shape& shape) {
  return shown(std::string_view{fmt::format("({})", fmt::join(shape, ", "))});
}

namespace detail {

// a x b, or false when that does not fit.
inline bool multiplied(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  product = a * b;
  return a == 0 || product / a == b;
}

// Receives the parser's events. Returning false ends the parse; `problem` then says why.
class header_events {
 public:
  std::vector<stored_tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_float(double, const std::string&) { return unexpected("a number that is not whole"); }
  bool binary(const std::vector<std::uint8_t>&) { return unexpected("binary data"); }
  bool number_integer(std::int64_t value) { return unexpected(fmt::format("the negative number {}", value)); }

  bool number_unsigned(std::uint64_t value) {
    if (!in_array_) return unexpected("a number");
    if (field_ == field::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return unexpected(fmt::format("the size {}", value));
      tensors.back().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (offsets_ == 2) return fail("data_offsets has more than two numbers");
    (offsets_ == 0 ? tensors.back().begin : tensors.back().end) = value;
    ++offsets_;
    return true;
  }

  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || field_ != field::dtype) return unexpected("text");
    const auto type = storage_type_named(value);
    if (!type)
      return fail(
          fmt::format("dtype '{}' is not known; expected F32, BF16, F16, F64, I64, ...", shown(value)));
    tensors.back().type = *type;
    return true;
  }

  bool start_object(std::size_t) {
    if (in_array_ || depth_ == 2) return unexpected("an object");
    ++depth_;
    return true;
  }

  bool end_object() {
    if (depth_ == 2 && !in_metadata_ && (seen_ != 7 || offsets_ != 2))
      return fail("expected dtype, shape and two data_offsets");
    --depth_;
    return true;
  }

  bool start_array(std::size_t) {
    const bool fits = depth_ == 2 && !in_metadata_ && !in_array_ && field_ != field::dtype;
    if (!fits) return unexpected("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() {
    in_array_ = false;
    return true;
  }

  bool key(std::string& name) {
    if (depth_ == 1) return start_entry(name);
    if (in_metadata_) {
      if (metadata.contains(name)) return fail(fmt::format("metadata '{}' is there twice", shown(name)));
      key_ = name;
      return true;
    }
    if (name == "dtype")
      field_ = field::dtype;
    else if (name == "shape")
      field_ = field::shape;
    else if (name == "data_offsets")
      field_ = field::offsets;
    else
      return fail(fmt::format("field '{}' is not known; expected dtype, shape, data_offsets", shown(name)));
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return fail(fmt::format("field '{}' is there twice", name));
    seen_ |= bit;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    problem = fmt::format("the header is no valid JSON at its byte {}", position);
    return false;
  }

 private:
  enum class field { dtype, shape, offsets };

  bool start_entry(const std::string& name) {
    if (!names_.insert(name).second) return fail(fmt::format("the entry '{}' is there twice", shown(name)));
    in_metadata_ = name == "__metadata__";
    key_ = name;
    seen_ = 0;
    offsets_ = 0;
    if (!in_metadata_) tensors.emplace_back().name = name;
    return true;
  }

  bool fail(std::string reason) {
    problem = depth_ < 2 ? std::move(reason)
                         : fmt::format("{}: {}",
                                       in_metadata_ ? std::string{"__metadata__"}
                                                    : fmt::format("tensor '{}'", shown(tensors.back().name)),
                                       reason);
    return false;
  }

  bool unexpected(std::string_view what) {
    return fail(fmt::format("the header holds {} where the format has none", what));
  }

  std::set<std::string> names_;
  std::string key_;
  int depth_ = 0;
  int offsets_ = 0;
  unsigned seen_ = 0;
  field field_ = field::dtype;
  bool in_array_ = false, in_metadata_ = false;
};

} // namespace detail

// `json`: the header's text. `data_bytes`: what follows it in the file. `path` is for messages only.
// Throws input_error.
inline safetensors_header parse_safetensors_header(const std::string& path, std::string_view json,
                                                   std::uint64_t data_bytes) {
  const auto refuse = [&](const std::string& reason) -> input_error {
    return input_error{fmt::format("{}: {}; expected a safetensors file", shown(path), reason)};
  };
  if (json.empty() || json.front() != '{') throw refuse("the header does not start with '{'");
  detail::header_events events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) throw refuse(events.problem);

  auto& tensors = events.tensors;
  for (auto& tensor : tensors) {
    std::uint64_t elements = 1, bytes = 0;
    bool fits = true;
    for (const std::int64_t extent : tensor.shape)
      fits = fits && detail::multiplied(elements, static_cast<std::uint64_t>(extent), elements);
    fits = fits && detail::multiplied(elements, bytes_of(tensor.type), bytes);
    if (!fits || bytes > data_bytes)
      throw refuse(fmt::format("tensor '{}': shape {} of {} needs more than the file's {} bytes of data",
                               shown(tensor.name), shown(tensor.shape), name_of(tensor.type), data_bytes));
    if (tensor.begin > tensor.end || tensor.end > data_bytes)
      throw refuse(fmt::format("tensor '{}': data_offsets {} to {} are not within the {} bytes of data",
                               shown(tensor.name), tensor.begin, tensor.end, data_bytes));
    if (tensor.end - tensor.begin != bytes)
      throw refuse(fmt::format("tensor '{}': shape {} of {} needs {} bytes, its data_offsets hold {}",
                               shown(tensor.name), shown(tensor.shape), name_of(tensor.type), bytes,
                               tensor.end - tensor.begin));
    tensor.elements = static_cast<std::int64_t>(elements);
  }

  std::sort(tensors.begin(), tensors.end(), [](const stored_tensor& a, const stored_tensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  std::uint64_t covered = 0;
  for (const auto& tensor : tensors) {
    if (tensor.begin < covered)
      throw refuse(fmt::format("tensor '{}': overlaps another one at byte {} of the data", shown(tensor.name),
                               tensor.begin));
    if (tensor.begin > covered) break;
    covered = tensor.end;
  }
  if (covered != data_bytes) throw refuse(fmt::format("byte {} of the data belongs to no tensor", covered));
  return {std::move(tensors), std::move(events.metadata)};
}

} // namespace moe

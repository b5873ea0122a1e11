// SPDX-License-Identifier: Apache-2.0
//
// Reads tensors by name from a safetensors file, straight into the caller's memory: the file is never held as
// a whole. The constructor checks the whole header (safetensors_header.hpp); a read states the shape that it
// expects. All calls but the constructor are const and may be made from any number of ranks at once.
#pragma once

#include "input_error.hpp"
#include "input_file.hpp"
#include "safetensors_header.hpp"
#include "storage_type.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

class safetensors_reader {
 public:
  // Throws input_error: unreadable, truncated, an absurd header, tensors that overlap, leave holes or lie
  // outside.
  explicit safetensors_reader(std::string path) : file_{std::move(path), "a safetensors file"} {
    std::uint64_t header_bytes = 0;
    if (file_.size() < sizeof(header_bytes))
      throw input_error{
          fmt::format("{}: {} bytes long; expected a safetensors file, which starts with 8 bytes of "
                      "header size",
                      shown(file_.path()), file_.size())};
    file_.read_at(0, std::as_writable_bytes(std::span{&header_bytes, 1}));
    if (header_bytes > safetensors_header_limit_bytes || header_bytes > file_.size() - sizeof(header_bytes))
      throw input_error{
          fmt::format("{}: announces a header of {} bytes; expected a safetensors file, whose header fits "
                      "into the file ({} bytes) and into {} bytes",
                      shown(file_.path()), header_bytes, file_.size(), safetensors_header_limit_bytes)};
    std::string json(header_bytes, '\0');
    file_.read_at(sizeof(header_bytes), std::as_writable_bytes(std::span{json.data(), json.size()}));
    data_begin_ = sizeof(header_bytes) + header_bytes;
    header_ = parse_safetensors_header(file_.path(), json, file_.size() - data_begin_);
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
  }

  const std::string& path() const { return file_.path(); }
  const std::vector<stored_tensor>& tensors() const { return header_.tensors; } // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  bool contains(std::string_view name) const { return index_.find(name) != index_.end(); }

  // Throws input_error when the tensor is missing.
  const stored_tensor& find(std::string_view name) const {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw input_error{fmt::format("{}: holds no tensor '{}'; expected it among its {} tensors",
                                    shown(path()), shown(name), header_.tensors.size())};
    return header_.tensors[found->second];
  }

  // Throws input_error when the tensor is missing or of another shape.
  const stored_tensor& find(std::string_view name, const tensor_shape& shape) const {
    const stored_tensor& tensor = find(name);
    if (tensor.shape != shape)
      throw input_error{fmt::format("{}: tensor '{}' has shape {}; expected {}", shown(path()), shown(name),
                                    shown(tensor.shape), shown(shape))};
    return tensor;
  }

  // The whole tensor widened to float. out.size() must be the product of `shape`.
  void read(std::string_view name, const tensor_shape& shape, std::span<float> out) const {
    read_all(name, shape, out, "F32, BF16, F16 or F64");
  }

  // Elements first, first + 1, ... of the flattened tensor, as many as `out` holds: a rank's share of it.
  void read_part(std::string_view name, const tensor_shape& shape, std::int64_t first,
                 std::span<float> out) const {
    read_widened(find(name, shape), first, out, "F32, BF16, F16 or F64");
  }

  // The whole tensor as 64-bit integers.
  void read(std::string_view name, const tensor_shape& shape, std::span<std::int64_t> out) const {
    read_all(name, shape, out, "I64, I32, I16, I8, U32, U16 or U8");
  }

  // The bytes as they lie, for a tensor that must be of exactly this type; from element `first` on.
  void read_bytes(std::string_view name, storage_type type, const tensor_shape& shape, std::int64_t first,
                  std::span<std::byte> out) const {
    const stored_tensor& tensor = find(name, shape);
    if (tensor.type != type)
      throw input_error{fmt::format("{}: tensor '{}' is {}; expected {}", shown(path()), shown(name),
                                    name_of(tensor.type), name_of(type))};
    if (out.size() % bytes_of(type) != 0)
      throw std::invalid_argument{"safetensors_reader: a part of an element"};
    check_range(tensor, first, out.size() / bytes_of(type));
    file_.read_at(offset_of(tensor, first), out);
  }

 private:
  std::uint64_t offset_of(const stored_tensor& tensor, std::int64_t element) const {
    return data_begin_ + tensor.begin + static_cast<std::uint64_t>(element) * bytes_of(tensor.type);
  }

  // A range outside the tensor is the calling program's mistake, not the file's.
  static void check_range(const stored_tensor& tensor, std::int64_t first, std::size_t count) {
    if (first < 0 || first > tensor.elements || count > static_cast<std::uint64_t>(tensor.elements - first))
      throw std::out_of_range{
          fmt::format("safetensors_reader: {} elements from element {} of '{}', which has {}", count, first,
                      shown(tensor.name), tensor.elements)};
  }

  template <class T>
  void read_all(std::string_view name, const tensor_shape& shape, std::span<T> out,
                std::string_view types) const {
    const stored_tensor& tensor = find(name, shape);
    if (out.size() != static_cast<std::uint64_t>(tensor.elements))
      throw std::out_of_range{fmt::format("safetensors_reader: room for {} elements of '{}', which has {}",
                                          out.size(), shown(name), tensor.elements)};
    read_widened(tensor, 0, out, types);
  }

  template <class T>
  void read_widened(const stored_tensor& tensor, std::int64_t first, std::span<T> out,
                    std::string_view types) const {
    check_range(tensor, first, out.size());
    if (!widen(tensor.type, {}, std::span<T>{}))
      throw input_error{fmt::format("{}: tensor '{}' is {}; expected {}", shown(path()), shown(tensor.name),
                                    name_of(tensor.type), types)};
    if (tensor.type == (sizeof(T) == 4 ? storage_type::f32 : storage_type::i64)) { // nothing to convert
      file_.read_at(offset_of(tensor, first), std::as_writable_bytes(out));
      return;
    }
    std::array<std::byte, 64 * 1024> chunk;
    while (!out.empty()) {
      const std::size_t count = std::min(out.size(), chunk.size() / bytes_of(tensor.type));
      const auto bytes = std::span{chunk}.first(count * bytes_of(tensor.type));
      file_.read_at(offset_of(tensor, first), bytes);
      widen(tensor.type, bytes, out.first(count));
      first += static_cast<std::int64_t>(count);
      out = out.subspan(count);
    }
  }

  input_file file_;
  std::uint64_t data_begin_ = 0;
  safetensors_header header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

} // namespace moe

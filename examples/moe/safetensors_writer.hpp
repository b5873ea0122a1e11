// SPDX-License-Identifier: Apache-2.0
//
// Writes a safetensors file piece by piece: the layout is fixed first, then ranks write their own parts of
// the tensors in any order and at the same time, and `commit` makes the file visible once every byte of it
// was written. The bytes depend on the layout and the contents alone, so two equal states give equal files.
#pragma once

#include "atomic_file.hpp"
#include "safetensors_header.hpp"
#include "storage_type.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moe {

struct tensor_layout {
  std::string name;
  storage_type type{};
  tensor_shape shape;
};

class safetensors_writer {
 public:
  // Tensors are laid out widest type first, otherwise in the order given, so that each is aligned to its own
  // type. Throws input_error when the file cannot be created, std::invalid_argument for a layout that is
  // none.
  safetensors_writer(const std::string& path, std::vector<tensor_layout> layout,
                     const std::map<std::string, std::string>& metadata = {})
      : file_{path} {
    std::stable_sort(layout.begin(), layout.end(), [](const tensor_layout& a, const tensor_layout& b) {
      return bytes_of(a.type) > bytes_of(b.type);
    });
    auto header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::uint64_t offset = 0;
    for (const auto& tensor : layout) {
      const std::uint64_t bytes = checked_bytes(tensor);
      if (tensor.name == "__metadata__" ||
          !places_.emplace(tensor.name, place{offset, bytes, 0, bytes_of(tensor.type)}).second)
        throw std::invalid_argument{
            fmt::format("safetensors_writer: the name '{}' is taken", shown(tensor.name))};
      header[tensor.name] = {{"dtype", name_of(tensor.type)},
                             {"shape", tensor.shape},
                             {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
    }
    std::string json = header.dump();
    json.resize((json.size() + 7) / 8 * 8, ' '); // the format's own padding: data starts 8-byte aligned
    const std::uint64_t header_bytes = json.size();
    file_.write_at(0, std::as_bytes(std::span{&header_bytes, 1}));
    file_.write_at(sizeof(header_bytes), json);
    data_begin_ = sizeof(header_bytes) + header_bytes;
  }

  // Elements from element `first` of the flattened tensor on. Thread-safe; write every element once.
  // Throws output_error when the disk does not take them.
  void write(std::string_view name, std::int64_t first, std::span<const std::byte> bytes) {
    std::uint64_t offset = 0;
    {
      const std::lock_guard lock{mutex_};
      const auto found = places_.find(name);
      if (found == places_.end())
        throw std::invalid_argument{
            fmt::format("safetensors_writer: no tensor '{}' in the layout", shown(name))};
      place& tensor = found->second;
      if (first < 0 || static_cast<std::uint64_t>(first) > tensor.bytes / tensor.element_bytes ||
          bytes.size() > tensor.bytes - static_cast<std::uint64_t>(first) * tensor.element_bytes)
        throw std::out_of_range{
            fmt::format("safetensors_writer: {} bytes from element {} of '{}', which has {} bytes",
                        bytes.size(), first, shown(name), tensor.bytes)};
      offset = data_begin_ + tensor.begin + static_cast<std::uint64_t>(first) * tensor.element_bytes;
      tensor.written += bytes.size();
    }
    file_.write_at(offset, bytes);
  }

  template <class T> void write(std::string_view name, std::int64_t first, std::span<const T> elements) {
    write(name, first, std::as_bytes(elements));
  }

  // After all writes have returned. Throws std::logic_error when a tensor was not written once and whole.
  void commit() {
    for (const auto& [name, tensor] : places_)
      if (tensor.written != tensor.bytes)
        throw std::logic_error{fmt::format("safetensors_writer: {} of {} bytes of '{}' were written",
                                           tensor.written, tensor.bytes, shown(name))};
    file_.commit();
  }

 private:
  struct place {
    std::uint64_t begin, bytes, written, element_bytes;
  };

  static std::uint64_t checked_bytes(const tensor_layout& tensor) {
    std::uint64_t bytes = bytes_of(tensor.type);
    for (const std::int64_t extent : tensor.shape)
      if (extent < 0 || !detail::multiplied(bytes, static_cast<std::uint64_t>(extent), bytes) ||
          bytes >> 62 != 0)
        throw std::invalid_argument{fmt::format("safetensors_writer: '{}' cannot have shape {}",
                                                shown(tensor.name), shown(tensor.shape))};
    return bytes;
  }

  atomic_file file_;
  std::uint64_t data_begin_ = 0;
  std::mutex mutex_;
  std::map<std::string, place, std::less<>> places_;
};

// One tensor and where its bytes come from: `fill` puts elements first, first + 1, ... into the bytes it is
// given.
struct tensor_source {
  tensor_layout layout;
  std::function<void(std::int64_t first, std::span<std::byte> bytes)> fill;
};

// The source of a tensor that lies in memory; the memory must outlive the save.
template <class T>
tensor_source source_of(std::string name, storage_type type, tensor_shape shape,
                        std::span<const T> elements) {
  const auto all = std::as_bytes(elements);
  return {{std::move(name), type, std::move(shape)},
          [all, type](std::int64_t first, std::span<std::byte> bytes) {
            const auto part = all.subspan(static_cast<std::size_t>(first) * bytes_of(type), bytes.size());
            std::copy(part.begin(), part.end(), bytes.begin());
          }};
}

// Saves all tensors through one buffer of `chunk_bytes`: a tensor is never held a second time.
inline void save_safetensors(const std::string& path, const std::vector<tensor_source>& tensors,
                             const std::map<std::string, std::string>& metadata = {},
                             std::size_t chunk_bytes = std::size_t{1} << 22) {
  std::vector<tensor_layout> layout;
  for (const auto& tensor : tensors) layout.push_back(tensor.layout);
  safetensors_writer writer{path, std::move(layout), metadata};
  std::vector<std::byte> chunk(std::max<std::size_t>(chunk_bytes, 8));
  for (const auto& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.layout.shape) elements *= extent;
    const auto step = static_cast<std::int64_t>(chunk.size() / bytes_of(tensor.layout.type));
    for (std::int64_t first = 0; first < elements; first += step) {
      const auto count = static_cast<std::size_t>(std::min(step, elements - first));
      const auto bytes = std::span{chunk}.first(count * bytes_of(tensor.layout.type));
      tensor.fill(first, bytes);
      writer.write(tensor.layout.name, first, std::span<const std::byte>{bytes});
    }
  }
  writer.commit();
}

} // namespace moe

// SPDX-License-Identifier: Apache-2.0
//
// How fast copies and products of the CUDA backend are on this GPU, beside what it could do at best. Nothing
// is asserted about time: results are looked at, rates are told, as text and as JSON in the file that the
// first argument names. Without a GPU it ends with 77. Needs nothing but CUDA, so that it builds everywhere.
#include <plateau/access.hpp>
#include <plateau/cuda.hpp>
#include <plateau/gemm.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using backend_type = pl::cuda_backend;

namespace {

int attribute(cudaDeviceAttr which) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess ? value : 0;
}

// What the GPU's data sheet comes to: operations of one multiprocessor in a clock, by architecture; 0 where
// that is not known here.
struct best_rates {
  double bf16_flops = 0, fp32_flops = 0, memory_bytes = 0; // a second

  best_rates() {
    const int architecture =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    const double clocks = 1e3 * attribute(cudaDevAttrClockRate) * attribute(cudaDevAttrMultiProcessorCount);
    if (architecture == 90) bf16_flops = 4096 * clocks, fp32_flops = 256 * clocks;
    if (architecture == 80) bf16_flops = 2048 * clocks, fp32_flops = 128 * clocks;
    // Two transfers a clock.
    memory_bytes =
        2e3 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  }
};

class stopwatch {
 public:
  stopwatch() {
    check(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
    check(cudaEventCreateWithFlags(&end_, cudaEventDefault));
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Seconds of issue() on the stream: the median of nine, after two that warm up.
  template <class Issue> double median(cudaStream_t stream, Issue issue) {
    std::vector<double> seconds;
    for (int i = 0; i < 11; ++i) {
      float milliseconds = 0;
      check(cudaEventRecord(begin_, stream));
      issue();
      check(cudaEventRecord(end_, stream));
      check(cudaEventSynchronize(end_));
      check(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (i >= 2) seconds.push_back(milliseconds * 1e-3);
    }
    std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
    return seconds[4];
  }
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

struct measured {
  std::string name;
  double rate = 0, best = 0; // bytes or operations a second; best 0: unknown
  double unit = 1;
  const char* unit_name = "";
};

class bench {
 public:
  std::vector<measured> run() {
    copies();
    products<pl::bfloat16>("bf16", best_.bf16_flops);
    products<float>("fp32", best_.fp32_flops);
    return std::move(results_);
  }

 private:
  void copies() {
    const index_t n = index_t{1} << 28; // bytes
    pl::device_buffer<unsigned char, backend_type> a(backend_.device(), n, pl::tag::other),
        b(backend_.device(), n, pl::tag::other);
    pl::pinned_buffer<unsigned char, backend_type> host(backend_.pinned(), n, pl::tag::other);
    auto stream = backend_.make_stream("copies");
    for (index_t i = 0; i < n; i += 4096) host.data()[i] = static_cast<unsigned char>(i / 4096 * 37 + 1);
    const auto rate = [&](const char* name, double bytes, double best, auto from, auto to) {
      const double seconds =
          watch_.median(stream.handle(), [&] { backend_.copy(stream, pl::in(from), pl::out(to)); });
      results_.push_back({name, bytes / seconds, best, 1e9, "GB/s"});
    };
    const auto bytes = static_cast<double>(n);
    rate("copy, pinned host to device", bytes, 0, host.all(), a.all());
    // Each byte is read and written.
    rate("copy, device to device", 2 * bytes, best_.memory_bytes, a.all(), b.all());
    for (index_t i = 0; i < n; i += 4096) host.data()[i] = 0;
    rate("copy, device to pinned host", bytes, 0, b.all(), host.all());
    for (index_t i = 0; i < n; i += 4096)
      require(host.data()[i] == static_cast<unsigned char>(i / 4096 * 37 + 1), "a copy changed its bytes");
  }

  template <class T> void products(const char* type, double best) {
    struct extents {
      index_t m, n, k;
    };
    for (const extents& s :
         {extents{8192, 8192, 8192}, {4096, 4096, 4096}, {16384, 1408, 2048}, {512, 4096, 4096}}) {
      pl::device_buffer<T, backend_type> a(backend_.device(), s.m * s.k, pl::tag::other),
          b(backend_.device(), s.n * s.k, pl::tag::other), c(backend_.device(), s.m * s.n, pl::tag::other);
      const auto scratch_bytes =
          backend_type::gemm_scratch_bytes<T, T, T>(pl::transpose::no, pl::transpose::yes, s.m, s.n, s.k);
      pl::device_buffer<unsigned char, backend_type> scratch(
          backend_.device(), static_cast<index_t>(scratch_bytes), pl::tag::other);
      pl::pinned_buffer<T, backend_type> found(backend_.pinned(), s.n, pl::tag::other);
      auto stream = backend_.make_stream("products");
      const T one = static_cast<T>(1.0F);
      backend_.launch(stream, pl::elements{s.m * s.k}, pl::fill<T>{one}, pl::out(a.all()));
      backend_.launch(stream, pl::elements{s.n * s.k}, pl::fill<T>{one}, pl::out(b.all()));
      const double seconds = watch_.median(stream.handle(), [&] {
        backend_.gemm(stream, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(a.matrix(s.m, s.k)),
                      pl::in(b.matrix(s.n, s.k)), 0.0F, pl::out(c.matrix(s.m, s.n)), scratch.all());
      });
      backend_.copy(stream, pl::in(c.all().sub((s.m - 1) * s.n, s.n)), pl::out(found.all()));
      backend_.wait(backend_.record(stream));
      for (index_t i = 0; i < s.n; ++i) // sums of ones, exact in bf16 too for these k
        require(static_cast<float>(found.data()[i]) == static_cast<float>(s.k), "a product of ones is wrong");
      results_.push_back(
          {std::string("gemm ") + type + " " + std::to_string(s.m) + " x " + std::to_string(s.n) + " x " +
               std::to_string(s.k),
           2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / seconds,
           best, 1e12, "TFLOP/s"});
    }
  }

  backend_type backend_;
  best_rates best_;
  stopwatch watch_;
  std::vector<measured> results_;
};

void tell(const std::vector<measured>& results, const char* path) {
  cudaDeviceProp device{};
  stopwatch::check(cudaGetDeviceProperties(&device, 0));
  const double clock = attribute(cudaDevAttrClockRate) * 1e-3;
  std::printf("%s, %.0f MHz at most\n", device.name, clock);
  std::string json = "{\"device\": \"" + std::string(device.name) +
                     "\", \"highest_clock_MHz\": " + std::to_string(clock) + ", \"measured\": [";
  std::string summary;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const measured& r = results[i];
    const double share = r.best > 0 ? r.rate / r.best : 0;
    std::printf("%-34s %9.1f %-8s", r.name.c_str(), r.rate / r.unit, r.unit_name);
    if (r.best > 0) std::printf(" %5.1f %% of %.0f", 100 * share, r.best / r.unit);
    std::printf("\n");
    char row[256];
    if (r.unit == 1e9 || r.name.find(" 8192 x 8192 x 8192") != std::string::npos) {
      std::snprintf(row, sizeof row, "%s%s %.1f %s", summary.empty() ? "" : ", ", r.name.c_str(),
                    r.rate / r.unit, r.unit_name);
      summary += row;
    }
    std::snprintf(row, sizeof row,
                  "%s\n    {\"name\": \"%s\", \"rate\": %.1f, \"unit\": \"%s\", \"share_of_peak\": ",
                  i == 0 ? "" : ",", r.name.c_str(), r.rate / r.unit, r.unit_name);
    json += row;
    json += r.best > 0 ? std::to_string(share) + "}" : "null}";
  }
  json += "\n  ]}\n";
  std::printf("note: %s\n", summary.c_str());
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "w");
  require(file != nullptr, "the file for the rates cannot be written");
  const bool written = std::fputs(json.c_str(), file) >= 0;
  require(std::fclose(file) == 0 && written, "the file for the rates cannot be written");
}

} // namespace

int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU to measure\n");
    return 77;
  }
  try {
    tell(bench().run(), count > 1 ? arguments[1] : nullptr);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// fp32 matrix products through the seam against the BLAS called directly, on one thread. Products are issued
// eight at a time, as operators do; a single one that the host waits for shows the hop to the worker too.
#include "table.hpp"

#include <plateau/host/backend.hpp>

#if PLATEAU_BENCH_HAS_BLAS
#include <plateau/blas/blas_gemm.hpp>

#include <cblas.h>

#include <algorithm>

namespace {

using plateau::index_t;
using plateau::transpose;

template <class Gemm> class through_seam {
 public:
  through_seam(index_t n, const float* a, const float* b, float* c)
      : a_{a, n, n, n}, b_{b, n, n, n}, c_{c, n, n, n},
        scratch_(
            std::max<std::size_t>(1, decltype(backend_)::template gemm_scratch_bytes<float, float, float>(
                                         transpose::no, transpose::no, n, n, n))) {}
  void operator()(int products) {
    for (int i = 0; i < products; ++i)
      backend_.gemm(stream_, transpose::no, transpose::no, 1.0f, plateau::in(a_), plateau::in(b_), 0.0f,
                    plateau::out(c_), {scratch_.data(), static_cast<index_t>(scratch_.size())});
    backend_.wait(backend_.record(stream_));
  }

 private:
  plateau::basic_host_backend<Gemm> backend_;
  plateau::tile<const float> a_, b_;
  plateau::tile<float> c_;
  bench::touched_buffer<unsigned char> scratch_;
  typename plateau::basic_host_backend<Gemm>::stream stream_ = backend_.make_stream("main");
};

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  for (const index_t n : {512, 1024}) {
    const auto elements = static_cast<std::size_t>(n * n);
    const bench::touched_buffer<float> a(elements, 1.0f), b(elements, 0.5f), c(elements);
    through_seam<plateau::blas_gemm> blas(n, a.data(), b.data(), c.data());
    through_seam<plateau::block_gemm> block(n, a.data(), b.data(), c.data());
    const auto direct = [&](int products) {
      const auto k = static_cast<blasint>(n);
      for (int i = 0; i < products; ++i)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, k, k, k, 1.0f, a.data(), k, b.data(), k, 0.0f,
                    c.data(), k);
    };
    const int repeats = n == 512 ? 101 : 31;
    constexpr int products = 8;
    const auto with_blas = bench::in_turns(
        repeats, [&] { blas(products); }, [&] { direct(products); });
    table.row(fmt::format("GEMM {}, BLAS through the seam / BLAS", n), with_blas.speed(),
              bench::goal::at_least(0.97));
    const auto single = bench::in_turns(
        repeats, [&] { blas(1); }, [&] { direct(1); });
    table.row(fmt::format("GEMM {}, BLAS, one product and a wait / BLAS", n), single.speed());
    const auto built_in = bench::in_turns(
        repeats, [&] { block(products); }, [&] { direct(products); });
    table.row(fmt::format("GEMM {}, built-in through the seam / BLAS", n), built_in.speed(),
              bench::goal::at_least(0.5));
    const bench::spread t = with_blas.reference.in(2e-9 * products * static_cast<double>(n * n * n));
    const bench::spread rate{1 / t.median, 1 / t.p90, 1 / t.p10, 1 / t.minimum, 1 / t.processor};
    table.row(fmt::format("GEMM {}, BLAS called directly, GFLOP/s", n), rate);
  }
}
#else
int main(int, char**) { fmt::print("gemm_bench needs the component plateau::blas\n"); }
#endif

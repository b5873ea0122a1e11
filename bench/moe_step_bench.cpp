// SPDX-License-Identifier: Apache-2.0
//
// A training step of the reference model at hidden size 512 against its own matrix products: each step writes
// down what every rank multiplies, and the same products run again right after it, by as many threads at the
// same time and with nothing between them. What the step takes beyond that is everything that is not a matrix
// product: kernels, copies, exchanges, waiting.
#include "table.hpp"

#include "trainer.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>
#if PLATEAU_BENCH_HAS_BLAS
#include <plateau/blas/blas_gemm.hpp>
#endif

#include <algorithm>
#include <barrier>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::transpose;

struct product {
  transpose op_a, op_b;
  index_t m, n, k, lda, ldb, ldc;
  float alpha, beta;

  index_t elements_a() const { return (op_a == transpose::no ? m : k) * lda; }
  index_t elements_b() const { return (op_b == transpose::no ? k : n) * ldb; }
  index_t elements_c() const { return m * ldc; }
};
using product_list = std::vector<product>;

// One list for each thread that multiplies: the worker of a rank's stream.
class notebook {
 public:
  product_list& mine() {
    thread_local product_list* list = nullptr;
    if (list == nullptr) {
      const std::lock_guard lock(mutex_);
      list = lists_.emplace_back(std::make_unique<product_list>()).get();
      list->reserve(1 << 14);
    }
    return *list;
  }
  std::vector<product_list> take() {
    const std::lock_guard lock(mutex_);
    std::vector<product_list> all;
    for (const auto& each : lists_) {
      if (!each->empty()) all.push_back(*each);
      each->clear();
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<product_list>> lists_;
};

// A GEMM policy that writes down what it is asked for.
template <class Gemm> struct recording : Gemm {
  static notebook& book() {
    static notebook one;
    return one;
  }
  template <class A, class B, class C>
  static void run(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, float alpha, const A* a,
                  index_t lda, const B* b, index_t ldb, float beta, C* c, index_t ldc, void* scratch,
                  pl::cpu_level level) {
    static_assert(std::is_same_v<A, float> && std::is_same_v<B, float> && std::is_same_v<C, float>);
    book().mine().push_back({op_a, op_b, m, n, k, lda, ldb, ldc, alpha, beta});
    Gemm::run(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, scratch, level);
  }
};

// One thread's products again, on memory of its own that is large enough for each of them.
template <class Gemm> class replay {
 public:
  void prepare(const product_list& list) {
    index_t a = 0, b = 0, c = 0;
    std::size_t scratch = 0;
    for (const product& p : list) {
      a = std::max(a, p.elements_a());
      b = std::max(b, p.elements_b());
      c = std::max(c, p.elements_c());
      constexpr auto fp32 = pl::scalar_kind::fp32;
      scratch = std::max(scratch, Gemm::scratch_bytes(p.op_a, p.op_b, p.m, p.n, p.k, fp32, fp32, fp32));
    }
    grow(a_, static_cast<std::size_t>(a), 0.25F);
    grow(b_, static_cast<std::size_t>(b), 0.001F);
    grow(c_, static_cast<std::size_t>(c), 0.0F);
    grow(scratch_, scratch, static_cast<unsigned char>(0));
    list_ = list;
  }
  void operator()() const {
    for (const product& p : list_)
      Gemm::run(p.op_a, p.op_b, p.m, p.n, p.k, p.alpha, a_->data(), p.lda, b_->data(), p.ldb, p.beta,
                c_->data(), p.ldc, scratch_->data(), pl::detect_cpu_level());
  }
  double flops() const {
    double sum = 0;
    for (const product& p : list_) sum += pl::gemm_shape{p.op_a, p.op_b, p.m, p.n, p.k}.flops();
    return sum;
  }

 private:
  template <class T> using held = std::unique_ptr<bench::touched_buffer<T>>;
  template <class T> static void grow(held<T>& buffer, std::size_t n, T value) {
    if (!buffer || buffer->size() < n) buffer = std::make_unique<bench::touched_buffer<T>>(n, value);
  }
  held<float> a_, b_, c_;
  held<unsigned char> scratch_;
  product_list list_;
};

moe::corpus text_of_chance(std::int64_t vocabulary) {
  std::mt19937_64 engine(1);
  moe::corpus text;
  text.name = "a text of chance";
  text.vocabulary = vocabulary;
  for (int i = 0; i < 200'000; ++i)
    text.tokens.push_back(static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary)));
  return text;
}

template <class Gemm> void steps(bench::table& table, index_t vocabulary) {
  constexpr int repeats = 5;
  using policy = recording<Gemm>;
  using backend_type = pl::basic_host_backend<policy>;
  moe::model_config config;
  config.hidden = 512;
  config.heads = 8;
  config.kv_heads = 4;
  config.intermediate = 1024;
  config.vocabulary = vocabulary;
  const moe::rank_grid grid{4, 2};
  moe::training_settings settings;
  settings.context = 128;
  settings.batch = 16;
  const moe::corpus text = text_of_chance(vocabulary);
  const moe::token_sampler sampler(text, settings.context, 1);

  std::barrier together(grid.ranks);
  std::vector<replay<Gemm>> replays(static_cast<std::size_t>(grid.ranks));
  bench::pairs p;
  double flops = 0;
  pl::run_ranks(grid.ranks, [&](pl::thread_communicator& world) {
    const bool first = world.rank() == 0;
    backend_type backend;
    moe::trainer<backend_type, pl::thread_communicator, float> train(backend, world, config, grid, settings);
    train.initialise(1);
    const auto side = [&](bench::series* times, auto f) {
      together.arrive_and_wait();
      const auto all = [&] {
        f();
        together.arrive_and_wait();
      };
      if (first && times != nullptr)
        times->time(all);
      else
        all();
    };
    for (int i = -1; i < repeats; ++i) { // the first one warms up
      const bool counts = i >= 0;
      side(counts ? &p.ours : nullptr, [&] { train.run_step(sampler, i + 1); });
      if (first) {
        const std::vector<product_list> lists = policy::book().take();
        for (std::size_t r = 0; r < lists.size(); ++r) replays[r].prepare(lists[r]);
        flops = 0;
        for (const auto& each : replays) flops += each.flops();
      }
      side(counts ? &p.reference : nullptr, [&] { replays[static_cast<std::size_t>(world.rank())](); });
    }
  });
  const std::string what = fmt::format("training step, {} GEMM, vocabulary {}", Gemm::name, vocabulary);
  table.row(what + " / its GEMMs", p.time(), bench::goal::at_most(1.5));
  table.row("  the step, seconds", p.ours.in(1));
  table.row("  its GEMMs replayed, seconds", p.reference.in(1));
  const bench::spread t = p.reference.in(flops * 1e-9);
  table.row("  its GEMMs replayed, GFLOP/s of all ranks",
            {1 / t.median, 1 / t.p90, 1 / t.p10, 1 / t.minimum, 1 / t.processor});
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  // A vocabulary at which experts and attention count, and that of byte pairs, at which the logits do.
  for (const index_t vocabulary : {8192, 65'536}) {
    steps<pl::block_gemm>(table, vocabulary);
#if PLATEAU_BENCH_HAS_BLAS
    steps<pl::blas_gemm>(table, vocabulary);
#endif
  }
}

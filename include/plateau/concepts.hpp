// SPDX-License-Identifier: Apache-2.0
//
// What a backend and a communicator are: one small probe for each operation, and their conjunctions. The
// library calls nothing that is not here. To write a backend of your own, satisfy these: `check_backend` in
// checks.hpp says in a sentence what is missing, docs/backends.md what each operation must do beyond that.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

// One probe for each operation. They are public so that a test, or you, can ask which one fails.
namespace probe {

struct element_kernel {
  PLATEAU_HD void operator()(index_t i, view<const float> a, view<float> b) const { b[i] = a[i]; }
};
struct row_kernel {
  template <class Team> PLATEAU_HD void operator()(Team& team, index_t row, view<float> b) const {
    team.once([=] { b[row] = 0; });
  }
};
struct host_function {
  void operator()(view<const float, host_space>, view<float, host_space>) const {}
};

using device_view = view<float, device_space>;
using pinned_view = view<float, host_space>;
using device_tile = tile<float, device_space>;
using pinned_tile = tile<float, host_space>;
using device_batch = tile_batch<float, device_space>;
using narrow_tile = tile<bfloat16, device_space>;
using narrow_batch = tile_batch<bfloat16, device_space>;
template <class A, class C> using groups_of = std::span<const gemm_group<A, A, C>>;
template <class B> using stream_of = typename B::stream;
template <class B> using event_of = typename B::event;

template <class B>
concept types = std::move_constructible<typename B::stream> && std::movable<typename B::event> &&
    std::default_initializable<typename B::event> && requires {
  typename B::device_memory;
  typename B::host_memory;
};
template <class B>
concept resources = metered_resource<typename B::device_memory> &&
    metered_resource<typename B::host_memory> &&
    std::same_as<typename B::device_memory::space, device_space> &&
    std::same_as<typename B::host_memory::space, host_space> &&
    requires(B& b, const void* p, stream_of<B>& s) {
  { b.device() } -> std::same_as<typename B::device_memory&>;
  { b.pinned() } -> std::same_as<typename B::host_memory&>;
  b.adopt(p, std::size_t{}, s);
};
template <class B>
concept streams = requires(B& b) {
  { b.make_stream("name") } -> std::same_as<stream_of<B>>;
};
template <class B>
concept records = requires(B& b, stream_of<B>& s) {
  { b.record(s) } -> std::same_as<event_of<B>>;
};
template <class B>
concept waits = requires(B& b, stream_of<B>& s, const event_of<B>& e) {
  b.wait(s, e);
  b.wait(e);
};
template <class B>
concept copies = requires(B& b, stream_of<B>& s, device_view d, pinned_view h, device_tile t, pinned_tile u) {
  b.copy(s, in(h), out(d));
  b.copy(s, in(d), out(h));
  b.copy(s, in(d), out(d));
  b.copy(s, in(u), out(t));
  b.copy(s, in(t), out(u));
  b.copy(s, in(t), out(t));
};
template <class B>
concept launches_elements = requires(B& b, stream_of<B>& s, device_view d) {
  b.launch(s, elements{1}, element_kernel{}, in(d), out(d));
};
template <class B>
concept launches_rows = requires(B& b, stream_of<B>& s, device_view d) {
  b.launch(s, rows{1}, row_kernel{}, inout(d));
};
template <class B>
concept multiplies = requires(B& b, stream_of<B>& s, device_tile t, narrow_tile h, scratch_view w) {
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(t), in(t), 0.0F, out(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(t), in(t), 1.0F, inout(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 0.0F, out(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 1.0F, inout(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 0.0F, out(h), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 1.0F, inout(h), w);
  {
    B::template gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, index_t{}, index_t{},
                                                        index_t{})
    } -> std::convertible_to<std::size_t>;
  {
    B::template gemm_scratch_bytes<bfloat16, bfloat16, float>(transpose::no, transpose::no, index_t{},
                                                              index_t{}, index_t{})
    } -> std::convertible_to<std::size_t>;
  { B::row_invariant } -> std::convertible_to<bool>;
};
template <class B>
concept multiplies_batches = requires(B& b, stream_of<B>& s, device_batch t, narrow_batch h, scratch_view w) {
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(t), in(t), 0.0F, out(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(t), in(t), 1.0F, inout(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 0.0F, out(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 1.0F, inout(t), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 0.0F, out(h), w);
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(h), in(h), 1.0F, inout(h), w);
};
template <class B>
concept multiplies_groups = requires(B& b, stream_of<B>& s, groups_of<float, float> f,
                                     groups_of<bfloat16, float> m, groups_of<bfloat16, bfloat16> h,
                                     scratch_view w) {
  b.grouped_gemm(s, transpose::no, transpose::yes, 1.0F, 0.0F, f, w);
  b.grouped_gemm(s, transpose::no, transpose::yes, 1.0F, 0.0F, m, w);
  b.grouped_gemm(s, transpose::no, transpose::yes, 1.0F, 0.0F, h, w);
};
template <class B>
concept groups_by_key = requires(B& b, stream_of<B>& s, view<std::int32_t> ids, view<std::int64_t> sums,
                                 scratch_view w) {
  b.group_by_key(s, in(ids), out(ids), out(sums), w);
  { B::group_by_key_scratch_bytes(index_t{}, index_t{}) } -> std::convertible_to<std::size_t>;
};
template <class B>
concept scans = requires(B& b, stream_of<B>& s, view<std::int64_t> v, scratch_view w) {
  b.exclusive_scan(s, in(v), out(v), w);
  { B::exclusive_scan_scratch_bytes(index_t{}) } -> std::convertible_to<std::size_t>;
};
template <class B>
concept runs_host_tasks = requires(B& b, stream_of<B>& s, pinned_view h) {
  b.host_task(s, host_function{}, in(h), out(h));
};
template <class B>
concept fetches = requires(B& b, const event_of<B>& e, pinned_view h, std::span<float> into) {
  b.fetch(e, in(h), into, "label", 1.0F);
  b.fetch(e, in(h), into, "label");
};
template <class T>
concept counts = requires(const T& t) {
  requires std::same_as<std::remove_cvref_t<decltype(t.counters())>, counters>;
};

template <class C>
concept ranks = requires(const C& c) {
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
};
template <class C>
concept splits = requires(C& c) {
  { c.split(0, 0) } -> std::same_as<C>;
};
template <class C, class B>
concept exchanges = requires(C& c, stream_of<B>& s, std::span<const send_op> out,
                             std::span<const receive_op> in) {
  c.exchange(s, out, in);
  c.exchange(s, out, in, "what");
  c.exchange(s, {send_op{}}, {receive_op{}});
  c.exchange(s, {send_op{}}, {receive_op{}}, "what");
};
template <class C>
concept exchanges_integers = requires(C& c, std::span<const std::int64_t> mine, std::span<std::int64_t> all) {
  c.host_exchange(mine, all);
  c.host_exchange(mine, all, "what");
};
template <class C>
concept closes_steps = requires(C& c) {
  c.close_step();
  c.abort(std::string("cause"));
};
template <class C>
concept latches = requires(C& c, failure why) {
  c.latch(why);
};

} // namespace probe

template <class B>
concept backend =
    probe::types<B> && probe::resources<B> && probe::streams<B> && probe::records<B> && probe::waits<B> &&
    probe::copies<B> && probe::launches_elements<B> && probe::launches_rows<B> && probe::multiplies<B> &&
    probe::multiplies_batches<B> && probe::multiplies_groups<B> && probe::groups_by_key<B> &&
    probe::scans<B> && probe::runs_host_tasks<B> && probe::fetches<B> && probe::counts<B>;

template <class C, class B>
concept communicator = probe::ranks<C> && probe::splits<C> && probe::exchanges<C, B> &&
    probe::exchanges_integers<C> && probe::closes_steps<C> && probe::latches<C> && probe::counts<C>;

} // namespace plateau::inline v0

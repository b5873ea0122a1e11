// SPDX-License-Identifier: Apache-2.0
//
// Two ways to read one list of memory: counted, it is a working set; taken from an open phase of a workspace,
// it is the memory. An operator writes its list once, as a constructor over a source, so that what it
// promises and what it takes cannot disagree.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

namespace plateau::inline v0 {

// Gives null views and adds up what is asked.
class counting_source {
 public:
  explicit counting_source(working_set& set) : set_(&set) {}

  template <class T> view<T, device_space> device(const char* what, index_t n) {
    set_->device<T>(what, n);
    return {};
  }
  template <class T> view<T, host_space> pinned(const char* what, index_t n) {
    set_->pinned<T>(what, n);
    return {};
  }

 private:
  working_set* set_;
};

// Takes what is asked from an open phase, which must outlive what is done with it.
template <class Backend> class phase_source {
 public:
  explicit phase_source(typename workspace<Backend>::phase& open) : open_(&open) {}

  template <class T> view<T, device_space> device(const char*, index_t n) {
    return open_->template device<T>(n);
  }
  template <class T> view<T, host_space> pinned(const char*, index_t n) {
    return open_->template pinned<T>(n);
  }

 private:
  typename workspace<Backend>::phase* open_;
};

} // namespace plateau::inline v0

// SPDX-License-Identifier: Apache-2.0
//
// For what other processes have been waiting for long, as far as they have told. The waits stand in this
// process's record beside its own, so that a deadline can follow who waits for whom through all processes.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/abort_record.hpp>

#include <algorithm>
#include <list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace plateau::inline v0::mpi {

// The names of other processes' operations. They stay: logs and waits refer to them.
class known_names {
 public:
  const char* operator()(std::string_view name) {
    auto it = names_.find(name);
    if (it == names_.end()) it = names_.emplace(name).first;
    return it->c_str();
  }

 private:
  std::set<std::string, std::less<>> names_;
};

// With the record's lock held.
class remote_waits {
 public:
  explicit remote_waits(host::abort_record& record) : record_(record) {}

  // A rank tells two waits apart by their keys. Returns the list of the ranks that it waits for.
  std::vector<std::uint64_t>& begun(int rank, std::uint64_t key, const char* operation,
                                    std::uint64_t sequence) {
    ended(rank, key);
    return waits_.emplace_back(record_, rank, key, operation, sequence).site.whom;
  }
  void ended(int rank, std::uint64_t key) {
    waits_.remove_if([&](const entry& w) { return w.site.rank == rank && w.site.key == key; });
  }
  void clear() { waits_.clear(); }

 private:
  struct remote_wait final : host::wait_site {
    remote_wait(int waiting, std::uint64_t k, const char* in, std::uint64_t at)
        : wait_site(waiting, in, at), key(k) {}
    bool awaits(int other) const override {
      return std::find(whom.begin(), whom.end(), static_cast<std::uint64_t>(other)) != whom.end();
    }
    std::uint64_t key;
    std::vector<std::uint64_t> whom;
  };
  struct entry {
    entry(host::abort_record& record, int rank, std::uint64_t key, const char* in, std::uint64_t at)
        : site(rank, key, in, at), here{record, site} {}
    remote_wait site;
    host::abort_record::listed here;
  };
  host::abort_record& record_;
  std::list<entry> waits_;
};

} // namespace plateau::inline v0::mpi

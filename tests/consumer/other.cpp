// SPDX-License-Identifier: Apache-2.0
//
// A second translation unit, so that a function without `inline` in any header is a link error.
#if __has_include(<plateau/plateau.hpp>)
#include <plateau/plateau.hpp>
#else
#include <plateau/config.hpp>
#endif

plateau::index_t rows_of_the_other_file();
plateau::index_t rows_of_the_other_file() { return 42; }

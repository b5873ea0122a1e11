// SPDX-License-Identifier: Apache-2.0
//
// The documentation is held to the sources: C++ shown in README.md and docs/ stands, line for line, in a file
// that is compiled (a header, an example, a test); relative links lead somewhere; scripts that are named
// exist.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using lines = std::vector<std::string>;

const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();

std::string trimmed(const std::string& line) {
  const auto first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : line.substr(first, last - first + 1);
}

// Without indentation and empty lines, which differ between a page and its source.
lines read(const fs::path& path) {
  std::ifstream file(path);
  lines all;
  for (std::string line; std::getline(file, line);)
    if (const std::string text = trimmed(line); !text.empty()) all.push_back(text);
  return all;
}

std::vector<fs::path> files_under(const fs::path& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() &&
        std::find(extensions.begin(), extensions.end(), entry.path().extension()) != extensions.end())
      found.push_back(entry.path());
  return found;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> all = files_under(root / "docs", {".md"});
  all.push_back(root / "README.md");
  return all;
}

// The page without its code blocks.
lines prose(const lines& page) {
  lines out;
  bool inside = false;
  for (const std::string& line : page) {
    if (line.rfind("```", 0) == 0)
      inside = !inside;
    else if (!inside)
      out.push_back(line);
  }
  return out;
}

std::vector<lines> code_blocks(const lines& page, const std::string& language) {
  std::vector<lines> blocks;
  bool inside = false, wanted = false;
  for (const std::string& line : page) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
      wanted = inside && line == "```" + language;
      if (wanted) blocks.emplace_back();
    } else if (wanted && inside)
      blocks.back().push_back(line);
  }
  return blocks;
}

} // namespace

TEST_CASE("C++ in the documentation stands in a file that is compiled") {
  std::vector<lines> sources;
  for (const char* folder : {"include", "examples", "tests"})
    for (const fs::path& file : files_under(root / folder, {".hpp", ".cpp", ".cu"}))
      sources.push_back(read(file));
  std::size_t blocks = 0;
  for (const fs::path& page : pages())
    for (const lines& block : code_blocks(read(page), "cpp")) {
      ++blocks;
      const std::string shown =
          page.filename().string() + ": " + (block.empty() ? "an empty block" : block.front());
      CAPTURE(shown);
      const bool found = std::any_of(sources.begin(), sources.end(), [&](const lines& source) {
        return std::search(source.begin(), source.end(), block.begin(), block.end()) != source.end();
      });
      CHECK_MESSAGE((found && !block.empty()), "no compiled file holds these lines");
    }
  CHECK(blocks > 0);
}

TEST_CASE("relative links in the documentation lead somewhere") {
  const std::regex link(R"(\]\(([^)#]+)(#[^)]*)?\))");
  for (const fs::path& page : pages())
    for (const std::string& line : prose(read(page)))
      for (std::sregex_iterator i(line.begin(), line.end(), link), end; i != end; ++i) {
        const std::string target = (*i)[1];
        if (target.rfind("http", 0) == 0) continue;
        CAPTURE(page.string());
        CAPTURE(target);
        CHECK(fs::exists(page.parent_path() / target));
      }
}

TEST_CASE("scripts that the documentation names exist and can be run") {
  const std::regex script(R"((?:^|[\s`$])((?:scripts|\.ci)/[a-z_-]+)(?![a-z_/.-]))");
  std::size_t named = 0;
  for (const fs::path& page : pages())
    for (const std::string& line : read(page))
      for (std::sregex_iterator i(line.begin(), line.end(), script), end; i != end; ++i, ++named) {
        const fs::path file = root / std::string((*i)[1]);
        CAPTURE(file.string());
        REQUIRE(fs::exists(file));
        if (fs::is_regular_file(file))
          CHECK((fs::status(file).permissions() & fs::perms::owner_exec) != fs::perms::none);
      }
  CHECK(named > 0);
}

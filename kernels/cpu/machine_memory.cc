#include "kernels/cpu/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "kernels/backend.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

void lower_to_file(const fs::path& file, std::optional<std::size_t>& limit) {
  std::size_t bytes = 0;
  // Version 2 says "max" where there is no limit, version 1 a number beyond all memory.
  if (std::ifstream in(file); in >> bytes) limit = std::min(limit.value_or(bytes), bytes);
}

// A group may not use more than any group above it. In a container the path may be the host's, of which only
// the end of the way up, the mount itself, exists.
void lower_to_groups(const fs::path& mount, fs::path group, const char* file,
                     std::optional<std::size_t>& limit) {
  group = group.relative_path();
  for (; !group.empty(); group = group.parent_path()) lower_to_file(mount / group / file, limit);
  lower_to_file(mount / file, limit);
}

bool lists(const std::string& controllers, const std::string& name) {
  std::istringstream list(controllers);
  for (std::string one; std::getline(list, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

std::optional<std::size_t> cgroup_memory_limit(const std::string& membership, const fs::path& mounts) {
  std::optional<std::size_t> limit;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/job_7", in version 2 "0::/job_7"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty()) {
      lower_to_groups(mounts, group, "memory.max", limit);
      lower_to_groups(mounts / "unified", group, "memory.max", limit);
    } else if (lists(controllers, "memory")) {
      lower_to_groups(mounts / "memory", group, "memory.limit_in_bytes", limit);
    }
  }
  return limit;
}

std::size_t machine_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  MOTLEY_CHECK(pages > 0 && page_bytes > 0);
  const std::size_t all = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
  std::ifstream file("/proc/self/cgroup");
  const std::string membership{std::istreambuf_iterator<char>(file), {}};
  return std::min(all, cgroup_memory_limit(membership, "/sys/fs/cgroup").value_or(all));
}

}  // namespace motley

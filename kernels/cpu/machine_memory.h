// How much memory a process may use.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace motley {

// The least limit of the control groups that `membership` names, in the form of /proc/self/cgroup, and of
// those above them, of version 1 and 2 alike; `mounts` is where they are mounted, /sys/fs/cgroup as a rule.
// None where no file says so.
std::optional<std::size_t> cgroup_memory_limit(const std::string& membership,
                                               const std::filesystem::path& mounts);

}  // namespace motley

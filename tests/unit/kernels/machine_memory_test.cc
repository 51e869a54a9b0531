#include "kernels/cpu/machine_memory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kernels/backend.h"
#include "support/paths.h"

namespace motley {
namespace {

class CgroupMemory : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = directory_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::optional<std::size_t> limit(const std::string& membership) {
    return cgroup_memory_limit(membership, directory_.path());
  }

  test::TemporaryDirectory directory_;
};

TEST_F(CgroupMemory, is_the_least_of_a_group_and_those_above_it) {
  write("job/memory.max", "2000");
  write("job/step/memory.max", "max");
  write("job/step/task/memory.max", "3000");
  EXPECT_EQ(limit("0::/job/step/task\n"), 2000u);
  EXPECT_EQ(limit("0::/job/step\n"), 2000u);
  write("job/step/memory.max", "1000");
  EXPECT_EQ(limit("0::/job/step/task\n"), 1000u);
  write("memory.max", "10");
  EXPECT_EQ(limit("0::/job/step/task\n"), 10u);
  EXPECT_EQ(limit("0::/\n"), 10u);
}

TEST_F(CgroupMemory, is_found_by_version_1_too) {
  write("memory/slurm/job_7/memory.limit_in_bytes", "5000");
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(limit("12:pids:/other\n4:cpu,memory:/slurm/job_7/step_0\n0::/\n"), 5000u);
  write("unified/memory.max", "400");
  EXPECT_EQ(limit("4:memory:/slurm/job_7/step_0\n0::/\n"), 400u);
}

TEST_F(CgroupMemory, of_a_container_stands_at_the_mount) {
  write("memory/memory.limit_in_bytes", "700");
  EXPECT_EQ(limit("4:memory:/docker/0123456789abcdef\n"), 700u);
}

TEST_F(CgroupMemory, is_none_where_nothing_says_so) {
  write("job/memory.max", "max");
  write("job/memory.high", "5");
  for (const char* membership : {"", "0::/job\n", "0::/gone\n", "3:cpuset:/job\n", "nonsense", "::", ":\n0"})
    EXPECT_EQ(limit(membership), std::nullopt) << membership;
}

TEST(MachineMemory, is_what_a_backend_may_use_by_default) {
  EXPECT_GT(machine_memory_bytes(), std::size_t{1} << 20);
  EXPECT_EQ(make_cpu_backend(1)->device().memory_limit_bytes, machine_memory_bytes());
}

}  // namespace
}  // namespace motley

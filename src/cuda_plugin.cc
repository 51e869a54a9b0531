#include "cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/log.h"

namespace motley {
namespace {

struct Plugin {
  const train::GpuSupport* support = nullptr;
  bool there = false;
  std::string why_not;  // when there is no support
};

std::filesystem::path plugin_file() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "lib" / "motley" / "libmotley_cuda.so";
}

Plugin load() {
  const std::filesystem::path file = plugin_file();
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    return {
        nullptr, false,
        fmt::format(
            "this program was built without CUDA ({} is not there); build it where the CUDA toolkit, cuDNN "
            "and NCCL are",
            file.string())};
  }
  // Never closed: the libraries of CUDA leave threads and handlers behind.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {nullptr, true,
            fmt::format(
                "{} cannot be loaded ({}); the libraries of CUDA that it was built with have to be where the "
                "loader looks, as in LD_LIBRARY_PATH",
                file.string(), ::dlerror())};
  }
  const auto interface_of = reinterpret_cast<decltype(&motley_cuda_plugin_interface)>(
      ::dlsym(library, "motley_cuda_plugin_interface"));
  const auto support_of =
      reinterpret_cast<decltype(&motley_cuda_plugin_support)>(::dlsym(library, "motley_cuda_plugin_support"));
  if (interface_of == nullptr || support_of == nullptr ||
      std::string(interface_of()) != cuda_plugin_interface) {
    return {
        nullptr, true,
        fmt::format("{} belongs to another build of Motley than this program; install both from one build",
                    file.string())};
  }
  return {support_of(), true, {}};
}

// Without the driver's library there is nothing that the plugin could use.
bool driver_is_here() {
  static const bool here = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  return here;
}

}  // namespace

const train::GpuSupport* cuda_plugin(bool insist) {
  if (!insist && !driver_is_here()) return nullptr;
  static const Plugin plugin = load();
  if (plugin.support == nullptr) {
    if (insist) fail(ExitCode::device, "--device cuda: {}, or use --device cpu", plugin.why_not);
    static const bool said = [] {
      if (plugin.there) log::warn("using the CPU beside an NVIDIA driver: {}", plugin.why_not);
      return true;
    }();
    static_cast<void>(said);
  }
  return plugin.support;
}

}  // namespace motley

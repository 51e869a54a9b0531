#include "train/device.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "comm/agree.h"
#include "comm/mpi.h"
#include "core/log.h"
#include "train/gpus.h"

namespace motley::train {
namespace {

FindGpuSupport find_support = nullptr;

// The GPUs that this rank may take one of; none when it shall use the CPU.
std::vector<GpuInfo> visible_gpus(const std::string& device, const std::string& host) {
  if (device == "cpu") return {};
  const GpuSupport* const support = find_gpu_support(device == "cuda");
  if (support == nullptr) return {};
  std::vector<GpuInfo> gpus = support->driver->devices();
  if (gpus.empty() && device == "cuda") {
    fail(ExitCode::device,
         "--device cuda: there is no NVIDIA GPU that this process may use on host {} (nvidia-smi and "
         "CUDA_VISIBLE_DEVICES say more); use --device cpu",
         host);
  }
  // Batch systems write an empty value, -1 or NoDevFiles where they give no GPU.
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (gpus.empty() && visible != nullptr && std::isdigit(static_cast<unsigned char>(*visible)) != 0)
    log::warn("CUDA_VISIBLE_DEVICES={} leaves this rank no GPU: it uses the CPU", visible);
  return gpus;
}

// The ids of the GPUs that each rank of a host sees, in the order of its ranks.
std::vector<std::vector<double>> seen_by_ranks(const std::vector<GpuInfo>& gpus,
                                               const comm::Communicator& host) {
  constexpr const char* what = "which GPUs the ranks of this host see";
  double most[] = {static_cast<double>(gpus.size())};
  host.all_reduce_max(most, what);
  std::vector<double> mine(static_cast<std::size_t>(most[0]), -1.0);
  std::transform(gpus.begin(), gpus.end(), mine.begin(),
                 [](const GpuInfo& gpu) { return static_cast<double>(gpu.id); });
  const std::vector<double> all = host.all_gather(mine, what);
  std::vector<std::vector<double>> seen(static_cast<std::size_t>(host.size()));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] >= 0) seen[i / mine.size()].push_back(all[i]);
  return seen;
}

// Gives each rank a card of its own, as far as it goes: augmenting paths (Kuhn's algorithm), ranks and cards in
// order, so that all that see the same cards take them in turn. Every rank works out the choice of all.
class CardChoice {
 public:
  explicit CardChoice(const std::vector<std::vector<double>>& seen) : seen_(seen) {
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
      std::set<double> tried;
      if (!seen[rank].empty() && !place(rank, tried)) enough_ = false;
    }
  }

  bool enough() const { return enough_; }
  // Its place in what the rank sees; -1: none.
  int of(std::size_t rank) const {
    for (const auto& [card, owner] : owner_) {
      if (owner != rank) continue;
      return static_cast<int>(std::find(seen_[rank].begin(), seen_[rank].end(), card) - seen_[rank].begin());
    }
    return -1;
  }

 private:
  bool place(std::size_t rank, std::set<double>& tried) {
    for (const double card : seen_[rank]) {
      if (owner_.contains(card) || !tried.insert(card).second) continue;
      owner_[card] = rank;
      return true;
    }
    for (const double card : seen_[rank]) {
      if (!tried.insert(card).second) continue;
      if (!place(owner_[card], tried)) continue;
      owner_[card] = rank;
      return true;
    }
    return false;
  }

  const std::vector<std::vector<double>>& seen_;
  std::map<double, std::size_t> owner_;
  bool enough_ = true;
};

// Which of the GPUs that it sees `rank` takes, -1 for none.
int choose_gpu(const std::vector<std::vector<double>>& seen, int rank, const std::string& host) {
  const CardChoice choice(seen);
  if (choice.enough()) return choice.of(static_cast<std::size_t>(rank));
  std::set<double> cards;
  for (const std::vector<double>& of_rank : seen) cards.insert(of_rank.begin(), of_rank.end());
  fail(ExitCode::device,
       "host {} has {} GPU(s) for its ranks, but {} of them want one each: start no more than that on it, or "
       "give the others --device cpu",
       host, cards.size(),
       std::count_if(seen.begin(), seen.end(), [](const auto& of_rank) { return !of_rank.empty(); }));
}

}  // namespace

void set_gpu_support(FindGpuSupport find) {
  find_support = find;
}

const GpuSupport* find_gpu_support(bool insist) {
  if (find_support != nullptr) return find_support(insist);
  if (insist) {
    fail(ExitCode::device,
         "--device cuda: this program was built without CUDA; build it where the CUDA toolkit, cuDNN and "
         "NCCL are, or "
         "use --device cpu");
  }
  return nullptr;
}

std::unique_ptr<Backend> make_backend(const DeviceOptions& options, const comm::Communicator& world) {
  std::vector<GpuInfo> gpus;
  comm::agree(world, "looking for GPUs", [&] { gpus = visible_gpus(options.device, world.host()); });
  const std::unique_ptr<comm::Communicator> host = comm::ranks_of_host(world);
  const std::vector<std::vector<double>> seen = seen_by_ranks(gpus, *host);
  int gpu = -1;
  comm::agree(world, "choosing GPUs", [&] { gpu = choose_gpu(seen, host->rank(), world.host()); });
  const comm::ProcessorShare share = comm::processor_share(world, gpu >= 0);
  std::unique_ptr<Backend> backend;
  comm::agree(world, "opening the device", [&] {
    if (gpu >= 0) {
      backend = find_gpu_support(true)->driver->open(
          gpu, {.deterministic = options.deterministic, .graphs = options.cuda_graph});
      return;
    }
    const int threads = options.threads > 0 ? options.threads : comm::threads_per_rank(share);
    backend = make_cpu_backend(threads, comm::memory_per_cpu_rank(machine_memory_bytes(), share));
  });
  return backend;
}

std::string devices_text(const Backend& backend, const comm::Communicator& world) {
  const DeviceInfo& mine = backend.device();
  const std::string device =
      mine.kind == "cpu" ? fmt::format("{} with {} thread(s) each", mine.name, mine.threads) : mine.name;
  std::vector<std::pair<std::string, int>> devices;  // in the order of the ranks that have them first
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string of_rank = world.broadcast(device, rank, "the devices of the ranks");
    const auto same = std::find_if(devices.begin(), devices.end(),
                                   [&](const auto& entry) { return entry.first == of_rank; });
    if (same == devices.end()) {
      devices.emplace_back(of_rank, 1);
    } else {
      ++same->second;
    }
  }
  std::string text;
  for (const auto& [name, ranks] : devices)
    text += text.empty() ? fmt::format("{} rank(s) on {}", ranks, name)
                         : fmt::format(" and {} on {}", ranks, name);
  return text;
}

void check_precision(const std::string& precision, const Backend& backend, const comm::Communicator& world) {
  comm::agree(world, "the precision", [&] {
    if (precision == "fp16" && backend.device().kind != "cuda")
      fail(ExitCode::usage, "--precision fp16 is for GPUs, and this rank has none; expected fp32 or bf16");
  });
}

}  // namespace motley::train

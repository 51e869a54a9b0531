#include "train/reducers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/agree.h"
#include "comm/host_reducer.h"
#include "comm/host_sum.h"
#include "train/gpus.h"

namespace motley::train {
namespace {

// Sums an arena in `inner`'s type: what is ready is converted to it, and the sums back.
class ConvertingReducer final : public comm::GradientReducer {
 public:
  ConvertingReducer(Backend& backend, std::unique_ptr<comm::GradientReducer> inner, std::size_t bucket_bytes)
      : GradientReducer(inner->elements(), 2 * bucket_bytes, DType::f32),
        backend_(backend),
        inner_(std::move(inner)),
        memory_(backend, inner_->elements() * size_of(inner_->dtype())) {}

  void begin(View gradients) override {
    gradients_ = gradients;
    converted_ = 0;
    inner_->begin(memory_.view(inner_->dtype(), gradients.shape));
  }

  void ready_up_to(std::size_t ready) override {
    // Whole buckets only, so that conversions are few and large.
    const std::size_t whole = whole_buckets(ready);
    const std::size_t end = whole == 0 ? 0 : bucket_ends()[whole - 1];
    if (end <= converted_) return;
    backend_.cast(part(gradients_.data, DType::f32, converted_, end),
                  part(memory_.data(), inner_->dtype(), converted_, end));
    converted_ = end;
    inner_->ready_up_to(end);
  }

  bool sent() const override { return inner_->sent(); }

  double finish() override {
    ready_up_to(elements());
    const double waited_s = inner_->finish();
    backend_.cast(part(memory_.data(), inner_->dtype(), 0, elements()),
                  part(gradients_.data, DType::f32, 0, elements()));
    return waited_s;
  }

 private:
  static View part(void* data, DType dtype, std::size_t begin, std::size_t end) {
    return {static_cast<std::byte*>(data) + begin * size_of(dtype), dtype,
            Shape{static_cast<std::int64_t>(end - begin)}};
  }

  Backend& backend_;
  std::unique_ptr<comm::GradientReducer> inner_;
  Buffer memory_;
  View gradients_;
  std::size_t converted_ = 0;  // elements
};

std::string version_text(double version) {
  const int code = static_cast<int>(version);
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

// NCCL fails late and with obscure words when its versions differ. `versions`: by rank, 0 without a GPU.
void require_one_version(const std::vector<double>& versions, const comm::Communicator& world) {
  comm::agree(world, "comparing NCCL's versions", [&] {
    for (std::size_t rank = 0; rank < versions.size(); ++rank) {
      const double mine = versions[static_cast<std::size_t>(world.rank())];
      if (mine == 0 || versions[rank] == 0 || versions[rank] == mine) continue;
      fail(ExitCode::communication,
           "NCCL is {} here but {} on rank {}: all ranks with GPUs need the same version", version_text(mine),
           version_text(versions[rank]), rank);
    }
  });
}

// How a rank reaches the others. Without GPUs in the run all is null.
struct Groups {
  bool any_gpus = false;
  bool any_cpu_ranks = false;
  std::unique_ptr<comm::Communicator> gpus;  // on ranks with a GPU: those
  std::unique_ptr<comm::Communicator>
      hosts;  // the ranks without and the first with one, on these, where there are both
};

Groups make_groups(const comm::Communicator& world, Backend& backend) {
  const bool has_gpu = backend.device().kind == "cuda";
  double version[] = {0};
  comm::agree(world, "asking for NCCL's version", [&] {
    if (has_gpu) version[0] = find_gpu_support(true)->nccl_version();
  });
  // By rank, 0 without a GPU.
  const std::vector<double> versions = world.all_gather(version, "which ranks have GPUs");
  const auto leader =
      std::find_if(versions.begin(), versions.end(), [](double v) { return v > 0; }) - versions.begin();
  Groups groups;
  groups.any_gpus = leader != std::ssize(versions);
  if (!groups.any_gpus) return groups;
  require_one_version(versions, world);
  groups.any_cpu_ranks = std::find(versions.begin(), versions.end(), 0.0) != versions.end();
  groups.gpus = comm::part_of(world, has_gpu);
  if (groups.any_cpu_ranks) groups.hosts = comm::part_of(world, !has_gpu || world.rank() == leader);
  return groups;
}

std::unique_ptr<comm::GradientReducer> make_plain_reducer(const comm::Communicator& world, Backend& backend,
                                                          std::size_t elements, std::size_t bucket_bytes,
                                                          DType dtype) {
  Groups groups = make_groups(world, backend);
  if (!groups.any_gpus) return std::make_unique<comm::HostReducer>(world, elements, bucket_bytes, dtype);
  if (!groups.gpus) return std::make_unique<comm::HostReducer>(*groups.hosts, elements, bucket_bytes, dtype);
  return find_gpu_support(true)->make_reducer(
      {std::move(groups.gpus), groups.any_cpu_ranks, std::move(groups.hosts)}, backend, elements,
      bucket_bytes, dtype);
}

}  // namespace

std::size_t gradient_bucket_bytes(double cap_mb, std::size_t elements) {
  constexpr std::size_t buckets_wanted = 5, smallest_bytes = 256 << 10;
  const std::size_t even = elements * sizeof(float) / buckets_wanted;
  return std::min(static_cast<std::size_t>(cap_mb * (1 << 20)), std::max(even, smallest_bytes));
}

std::unique_ptr<comm::GradientReducer> make_reducer(const comm::Communicator& world, Backend& backend,
                                                    std::size_t elements, std::size_t bucket_bytes,
                                                    const std::string& wire) {
  if (wire != "bf16" || world.size() == 1)
    return make_plain_reducer(world, backend, elements, bucket_bytes, DType::f32);
  return std::make_unique<ConvertingReducer>(
      backend, make_plain_reducer(world, backend, elements, bucket_bytes, DType::bf16), bucket_bytes);
}

std::unique_ptr<comm::SmallSum> make_small_sum(const comm::Communicator& world, Backend& backend,
                                               std::size_t most_values) {
  if (world.size() == 1) return nullptr;
  Groups groups = make_groups(world, backend);
  if (!groups.any_gpus) return std::make_unique<comm::HostSum>(world);
  if (!groups.gpus) return std::make_unique<comm::HostSum>(*groups.hosts);
  return find_gpu_support(true)->make_small_sum(
      {std::move(groups.gpus), groups.any_cpu_ranks, std::move(groups.hosts)}, backend, most_values);
}

}  // namespace motley::train

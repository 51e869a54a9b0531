#include "train/device.h"

#include "comm/agree.h"
#include "comm/mpi.h"

namespace motley::train {

std::unique_ptr<Backend> make_backend(const std::string& device, int threads,
                                      const comm::Communicator& world) {
  std::unique_ptr<Backend> backend;
  const comm::ProcessorShare share = comm::processor_share(world);
  const int count = threads > 0 ? threads : comm::threads_per_rank(share);
  comm::agree(world, "opening the device", [&] {
    if (device == "cuda") {
      fail(ExitCode::device, "--device cuda: this build of motley has no CUDA backend; use --device cpu");
    }
    backend = make_cpu_backend(count, machine_memory_bytes() / static_cast<std::size_t>(share.host_ranks));
  });
  return backend;
}

}  // namespace motley::train
